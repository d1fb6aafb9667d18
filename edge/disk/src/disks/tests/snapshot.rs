//! Disks as they were, while their guest and its syncs write them.

use super::*;
use crate::export::export;
use crate::import::Source;
use crate::snapshot::{Snapshot, SnapshotLimits};
use proptest::prelude::*;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

const BLOCK: usize = DISK_BLOCK_BYTES;

fn take(attachment: &Attachment, kept_blocks: u64) -> Result<Snapshot, String> {
    let (told, taken) = channel();
    let limits = SnapshotLimits {
        kept_bytes: kept_blocks * BLOCK as u64,
        bytes_per_s: u64::MAX,
    };
    attachment.snapshot(limits, move |snapshot| told.send(snapshot).unwrap());
    taken.recv().unwrap()
}

/// All writable disks, as the snapshot has them, read in pieces of `step` bytes.
fn read(snapshot: &Snapshot, step: usize) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    for disk in snapshot.disks() {
        let mut bytes = vec![0; disk.bytes as usize];
        for (i, part) in bytes.chunks_mut(step).enumerate() {
            snapshot.read(disk.disk, (i * step) as u64, part)?;
        }
        all.extend(bytes);
    }
    Ok(all)
}

/// One change of the disks.
#[derive(Clone, Debug)]
enum Change {
    /// The guest writes bytes of its first disk.
    Guest(usize, Vec<u8>),
    /// The guest discards blocks of it.
    Discard(u64, u64),
    /// A syncvm writes a block.
    Sync(u32, u8),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..15 * BLOCK, prop::collection::vec(any::<u8>(), 1..BLOCK))
            .prop_map(|(at, bytes)| Change::Guest(at, bytes)),
        (0u64..14, 1u64..3).prop_map(|(block, count)| Change::Discard(block, count)),
        (0..BLOCKS, any::<u8>()).prop_map(|(block, fill)| Change::Sync(block, fill)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written meanwhile, and in whatever pieces it is read: the disks are as they were.
    #[test]
    fn a_snapshot_stays_as_it_was(before in prop::collection::vec(change(), 0..12), after in prop::collection::vec(change(), 0..24), step in 1usize..3 * BLOCK) {
        let scratch = Scratch::new();
        let mut disks = scratch.open();
        let attachment = disks.attach().unwrap();
        let server = server(&disks, 0);
        let apply = |change: &Change| match change {
            Change::Guest(at, bytes) => server
                .change(*at as u64, bytes.len() as u64, &mut |image| image.write(*at as u64, bytes))
                .unwrap(),
            Change::Discard(block, count) => {
                let (at, bytes) = (block * BLOCK as u64, count * BLOCK as u64);
                server.change(at, bytes, &mut |image| image.write_zeroes(at, bytes, true)).unwrap();
            }
            Change::Sync(block, fill) => put(&attachment, *block, *fill),
        };
        before.iter().for_each(apply);
        let snapshot = take(&attachment, 64).unwrap();
        let was = read(&snapshot, BLOCK).unwrap();
        for change in &after {
            apply(change);
        }
        prop_assert!(read(&snapshot, step).unwrap() == was);
    }
}

/// The room for old content is used up: the snapshot ends with a reason, lets the room go, and the guest's write is
/// carried out.
#[test]
fn a_snapshot_ends_before_the_guest_waits() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach().unwrap();
    let server = server(&disks, 0);
    let snapshot = take(&attachment, 2).unwrap();
    let second = take(&attachment, 2).unwrap_err();
    assert!(second.contains("another backup"), "{second}");
    for block in 0..2 {
        guest_writes(&server, block, 7).unwrap();
        guest_writes(&server, block, 8).unwrap();
    }
    assert_eq!(snapshot.kept_bytes(), Ok(2 * BLOCK as u64));
    guest_writes(&server, 2, 7).unwrap();
    let why = snapshot.kept_bytes().unwrap_err();
    assert!(why.contains("--keep-mib"), "{why}");
    assert_eq!(read(&snapshot, BLOCK), Err(why));
    assert_eq!(contents(&attachment)[..4], [8, 8, 7, 0]);
    drop(snapshot);
    take(&attachment, 2).unwrap();
}

/// The disks failed and were opened anew: nobody can tell what was written between.
#[test]
fn a_snapshot_ends_when_its_disks_are_opened_anew() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach().unwrap();
    let snapshot = take(&attachment, 2).unwrap();
    drop(attachment);
    disks.opened().inner.note_failure("a test");
    let _attachment = loop {
        match disks.attach() {
            Err(DiskError::Busy) => {}
            attached => break attached.unwrap(),
        }
    };
    let why = snapshot.kept_bytes().unwrap_err();
    assert!(why.contains("opened anew"), "{why}");
    assert!(read(&snapshot, BLOCK).is_err());
}

#[test]
fn a_backup_is_the_disk_as_it_was() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach().unwrap();
    let server = server(&disks, 0);
    for block in 0..BLOCKS {
        put(&attachment, block, block as u8 % 5);
    }
    let snapshot = Arc::new(take(&attachment, 64).unwrap());
    guest_writes(&server, 3, 99).unwrap();
    let disk = snapshot.disks()[0];
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = Arc::clone(&snapshot);
    std::thread::spawn(move || serving.serve(disk.disk, ours));
    let (image, raw) = (
        scratch.dir.path().join("a.qcow2"),
        scratch.dir.path().join("raw"),
    );
    match export(theirs, disk.bytes, &image, |_| (), || true) {
        Err(DiskError::NoTool(_)) => return eprintln!("skipped: qemu-img does not run"),
        done => done.unwrap(),
    }
    let source = Source::look(&image).unwrap().unwrap();
    source.import(&raw, |_| ()).unwrap();
    let first: Vec<u8> = std::fs::read(raw)
        .unwrap()
        .chunks(BLOCK)
        .map(|block| block[0])
        .collect();
    let was: Vec<u8> = (0..16).map(|block| block % 5).collect();
    assert_eq!(first, was);
    let (_, theirs) = UnixStream::pair().unwrap();
    let error = export(theirs, disk.bytes, &image, |_| (), || true)
        .unwrap_err()
        .to_string();
    assert!(error.contains("a.qcow2"), "{error}");
}
