//! Copies of disks after a crash of their host, at every point of a sync.

mod faults;
mod resize;
mod slow;
mod snapshot;

use super::server::Server;
use super::*;
use crate::health::lock;
use crate::nbd::Backing;
use plover_types::{BlockNo, DISK_BLOCK_BYTES, PageLayout, PageSet};
use rustix::fd::BorrowedFd;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;

const BLOCKS: u32 = 24;

struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn specs(&self) -> Vec<DiskSpec> {
        let spec = |name: &str, blocks: u32, read_only| DiskSpec {
            path: self.dir.path().join(name),
            read_only,
            bytes: (!read_only).then_some(u64::from(blocks) * DISK_BLOCK_BYTES as u64),
            bytes_max: None,
            delay: Duration::ZERO,
        };
        let cd = self.dir.path().join("cd");
        std::fs::write(&cd, [3; DISK_BLOCK_BYTES]).unwrap();
        // Two writable disks with a read-only one between them.
        vec![
            spec("a", 16, false),
            spec("cd", 1, true),
            spec("b", BLOCKS - 16, false),
        ]
    }

    fn open(&self) -> Disks {
        // The thread of disks that were dropped a moment ago may still have them open.
        let (specs, journal) = (self.specs(), self.dir.path().join("journal"));
        loop {
            match Disks::open(&specs, &journal) {
                Err(DiskError::InUse(_)) => std::thread::yield_now(),
                opened => return opened.unwrap(),
            }
        }
    }

    /// The files after a crash of the host at this moment, as if the kernel had written all dirty pages.
    fn crash(&self) -> Self {
        let copy = Self::new();
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.dir.path().join(entry.file_name())).unwrap();
        }
        copy
    }
}

/// For a guest that boots, once the threads of the last guest have ended, however busy this machine is.
fn attach_at_rest(disks: &mut Disks) -> Result<Attachment, DiskError> {
    loop {
        match disks.attach_to_boot() {
            Err(DiskError::Busy) => {}
            attached => return attached,
        }
    }
}

fn contents(attachment: &Attachment) -> Vec<u8> {
    let mut all = Vec::new();
    for block in (0..BLOCKS).map(BlockNo) {
        let mut bytes = [0; DISK_BLOCK_BYTES];
        attachment.direct().read(block, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn block");
        all.push(bytes[0]);
    }
    all
}

fn put(attachment: &Attachment, block: u32, fill: u8) {
    attachment
        .direct()
        .write(BlockNo(block), &[fill; DISK_BLOCK_BYTES]);
}

fn wait(disks: &mut Disks) -> DiskEvent {
    // SAFETY: the disks keep the descriptor open and outlive the borrow.
    let fd = unsafe { BorrowedFd::borrow_raw(disks.wait_fd()) };
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
        fd,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, None).unwrap();
    let mut events = Vec::new();
    disks.take_events(&mut events);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// The server of one image for the guest that has the disks.
fn server(disks: &Disks, image: usize) -> Server {
    let inner = Arc::clone(&disks.opened().inner);
    let life = inner.life.load(Ordering::Acquire);
    Server { inner, image, life }
}

/// The guest fills a block of the image.
fn guest_writes(server: &Server, block: u64, fill: u8) -> io::Result<()> {
    let (at, content) = (block * DISK_BLOCK_BYTES as u64, [fill; DISK_BLOCK_BYTES]);
    server.change(at, DISK_BLOCK_BYTES as u64, &mut |image| {
        image.write(at, &content)
    })
}

fn batch(blocks: &BTreeMap<u32, u8>) -> Batch {
    let mut batch = Batch::new();
    for (block, fill) in blocks {
        batch.push(BlockNo(*block), &[*fill; DISK_BLOCK_BYTES]);
    }
    batch
}

/// If a host dies while a syncvm is applied, a restart finds its disks before or after the syncvm: before
/// the staging is durable, with any number of blocks written, and settled or not.
#[test]
fn a_copy_is_before_or_after_a_sync_wherever_its_host_dies() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    for block in 0..BLOCKS {
        put(&attachment, block, 1);
    }
    let before = contents(&attachment);
    let staged = BTreeMap::from([(0, 7), (15, 8), (16, 9), (23, 10)]);
    let mut after = before.clone();
    for (block, fill) in &staged {
        after[*block as usize] = *fill;
    }
    let after_crash = |expected: &[u8]| {
        let copy = scratch.crash();
        let mut disks = copy.open();
        assert!(disks.is_whole());
        assert_eq!(contents(&disks.attach_to_boot().unwrap()), expected);
    };
    after_crash(&before);
    disks.stage(SyncNo(5), batch(&staged));
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(5)));
    after_crash(&after);
    for (block, fill) in &staged {
        put(&attachment, *block, *fill);
        after_crash(&after);
    }
    disks.settle();
    // It is settled as soon as the guest's write is let through.
    let server = server(&disks, 0);
    guest_writes(&server, 0, 99).unwrap();
    after[0] = 99;
    after_crash(&after);
}

/// A syncvm that is staged while the one before it is still being settled waits for its own
/// settling.
#[test]
fn syncs_that_overlap_are_settled_one_by_one() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let server = server(&disks, 0);
    let fill = |fill: u8| batch(&BTreeMap::from([(0, fill)]));
    disks.stage(SyncNo(1), fill(1));
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(1)));
    let inner = Arc::clone(&disks.opened().inner);
    let busy = lock(&inner.journal);
    disks.settle();
    disks.stage(SyncNo(2), fill(2));
    drop(busy);
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(2)));
    disks.settle();
    guest_writes(&server, 0, 99).unwrap();
    drop(attachment);
    let copy = scratch.crash();
    let found = contents(&copy.open().attach_to_boot().unwrap());
    assert_eq!(found[0], 99, "the journal was written over the guest's own");
}

/// A replica that joins takes two syncvms before its guest runs.
#[test]
fn a_second_sync_comes_before_the_guest_runs() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let server = server(&disks, 0);
    for (sync, block, fill) in [(1, 0, 1), (2, 15, 2)] {
        disks.stage(SyncNo(sync), batch(&BTreeMap::from([(block, fill)])));
        assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(sync)));
        put(&attachment, block, fill);
    }
    disks.settle();
    guest_writes(&server, 0, 99).unwrap();
    drop(attachment);
    let copy = scratch.crash();
    let found = contents(&copy.open().attach_to_boot().unwrap());
    assert_eq!((found[0], found[15]), (99, 2));
}

/// A guest has died and its replica has not. The next guest finds the disks after the syncvm, and no
/// write of the old guest is carried out any more.
#[test]
fn the_next_guest_finds_the_staged_blocks() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let old = server(&disks, 0);
    disks.stage(SyncNo(1), batch(&BTreeMap::from([(3, 4)])));
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(1)));
    std::thread::scope(|scope| {
        // The write waits for a settling that never comes.
        let late = scope.spawn(|| guest_writes(&old, 0, 99));
        drop(attachment);
        assert!(late.join().unwrap().is_err());
    });
    let attachment = disks.attach_to_boot().unwrap();
    assert_eq!(contents(&attachment)[..4], [0, 0, 0, 4]);
    let stale = guest_writes(&old, 0, 99);
    assert!(stale.is_err());
    assert_eq!(contents(&attachment)[0], 0);
}

#[test]
fn a_copy_cut_short_is_no_copy() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    assert!(disks.is_whole());
    let attachment = disks.attach_for_copy().unwrap();
    put(&attachment, 20, 1);
    assert!(!scratch.crash().open().is_whole());
    disks.stage(SyncNo(2), Batch::new());
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(2)));
    assert!(scratch.crash().open().is_whole());
}

/// The next scan reports the blocks that the guest wrote, numbered through both disks.
#[test]
fn a_scan_finds_the_blocks_that_the_guest_wrote() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    disks.opened().inner.images[0].note(4096 + 100, 4096);
    disks.opened().inner.images[2].note(7 * 4096, 1);
    let layout = PageLayout::new(1000, BLOCKS);
    let mut set = PageSet::new(layout.pages());
    attachment.scan(layout, &mut set);
    let found: Vec<u32> = set.iter().map(|page| page.0).collect();
    assert_eq!(found, [1001, 1002, 1023]);
    set.clear();
    attachment.scan(layout, &mut set);
    assert!(set.is_empty());
    assert_eq!(disks.blocks(), BLOCKS);
}

#[test]
fn holes_are_known() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let runs = |attachment: &Attachment| {
        let (mut runs, mut at) = (Vec::new(), 0);
        while let Some((start, end)) = attachment.direct().next_data(BlockNo(at)) {
            runs.push((start, end));
            at = end;
        }
        runs
    };
    assert_eq!(runs(&attachment), []);
    put(&attachment, 2, 1);
    put(&attachment, 15, 1);
    put(&attachment, 16, 1);
    assert_eq!(runs(&attachment), [(2, 3), (15, 16), (16, 17)]);
    put(&attachment, 15, 0);
    assert_eq!(runs(&attachment), [(2, 3), (16, 17)]);
}

#[test]
fn files_that_are_no_images_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let path = dir.path().join("image");
    let open = |bytes| {
        let spec = DiskSpec {
            path: path.clone(),
            read_only: false,
            bytes,
            bytes_max: None,
            delay: Duration::ZERO,
        };
        Disks::open(&[spec], &journal).map(|_| ())
    };
    let says = |result: Result<(), DiskError>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("image"), "{error}");
    };
    says(open(None), "no disk image");
    std::fs::write(&path, vec![0; 5000]).unwrap();
    says(open(None), "truncate");
    std::fs::write(&path, vec![0; 8192]).unwrap();
    says(open(Some(4096)), "8192 bytes, not 4096");
    let held = File::open(&path).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    says(open(None), "another process");
    drop(held);
    let mut qcow2 = b"QFI\xfb".to_vec();
    qcow2.resize(8192, 0);
    std::fs::write(&path, qcow2).unwrap();
    says(open(None), "qemu-img convert");
    // Once a guest has used an image it is raw, whatever the guest writes.
    drop(Journal::open(&journal, 2).unwrap());
    assert!(open(None).is_ok());
    std::fs::remove_file(&journal).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    says(open(None), "cannot open");
}
