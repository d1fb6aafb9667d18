//! Disks as they were, while their guest and its syncs write them.

use super::*;
use crate::export::{Base, export};
use crate::image::Image;
use crate::import::Source;
use crate::nbd::Extent;
use crate::snapshot::{Snapshot, SnapshotLimits, SnapshotRoom};
use proptest::prelude::*;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

const BLOCK: usize = DISK_BLOCK_BYTES;

/// The folder of the old content is gone when the snapshot is taken: the guest waits for no folder.
fn take(attachment: &Attachment, kept_blocks: u64) -> Result<Snapshot, String> {
    let (told, taken) = channel();
    let folder = tempfile::tempdir().unwrap();
    let limits = SnapshotLimits {
        kept_bytes: kept_blocks * BLOCK as u64,
        bytes_per_s: u64::MAX,
    };
    let room = SnapshotRoom::make(folder.path(), limits).unwrap();
    folder.close().unwrap();
    attachment.snapshot(room, move |snapshot| told.send(snapshot).unwrap());
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
        let attachment = disks.attach_to_boot().unwrap();
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
    let attachment = disks.attach_to_boot().unwrap();
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

/// The newest writes may not be on the disk, and the files are opened anew.
#[test]
fn a_snapshot_ends_when_its_disks_fail() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let snapshot = take(&attachment, 2).unwrap();
    disks.opened().inner.note_failure("a test");
    let why = snapshot.kept_bytes().unwrap_err();
    assert!(why.contains("a test"), "{why}");
    let why = take(&attachment, 2).unwrap_err();
    assert!(why.contains("a test"), "{why}");
    drop(attachment);
    let attachment = attach_at_rest(&mut disks).unwrap();
    assert!(read(&snapshot, BLOCK).is_err());
    drop(snapshot);
    take(&attachment, 2).unwrap();
}

/// Exports the first disk of a snapshot. `false` without `qemu-img`.
fn back_up(snapshot: &Arc<Snapshot>, image: &Path, base: Option<Base<'_>>) -> bool {
    let disk = snapshot.disks()[0];
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (serving, only_changes) = (Arc::clone(snapshot), base.is_some());
    std::thread::spawn(move || serving.serve(disk.disk, only_changes, ours));
    match export(theirs, disk.bytes, image, base, |_| (), || true) {
        Err(DiskError::NoTool(_)) => {
            eprintln!("skipped: qemu-img does not run");
            false
        }
        done => {
            done.unwrap();
            true
        }
    }
}

#[test]
fn a_backup_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.qcow2");
    let (_, theirs) = UnixStream::pair().unwrap();
    let error = export(theirs, 1 << 20, &image, None, |_| (), || true);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("a.qcow2"), "{error}");
}

/// A chain of backups under writes: whole, then of changes, with one among them that was given up, and another one after the
/// disk has grown. Each is the disk as its snapshot has it, and has no more than was written since the one before.
#[test]
fn backups_of_changes_are_the_disk_as_it_was() {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    let dir = scratch.dir.path();
    let spec = DiskSpec {
        path: dir.join("disk"),
        read_only: false,
        bytes: Some(4 * MIB),
        bytes_max: Some(8 * MIB),
        delay: Duration::ZERO,
    };
    let mut disks = Disks::open(&[spec], &dir.join("journal")).unwrap();
    let attachment = disks.attach_to_boot().unwrap();
    let server = server(&disks, 0);
    let discard = |block: u64| {
        let (at, bytes) = (block * BLOCK as u64, BLOCK as u64);
        let zero = &mut |image: &Image| image.write_zeroes(at, bytes, true);
        server.change(at, bytes, zero).unwrap();
    };
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut finished = None;
    for round in 0..5u8 {
        // Half of the disk first, then a cluster or two a round, one of them by a syncvm; and a hole.
        let most = if round == 0 { 512 } else { 4 };
        for block in 0..most {
            guest_writes(&server, u64::from(round) * 40 + block, round + 1).unwrap();
        }
        put(&attachment, 700 + u32::from(round), round + 1);
        discard(u64::from(round) * 17);
        if round == 3 {
            let (done, grown) = channel();
            attachment.resize(0, 8 * MIB, move |fd| done.send(fd.is_ok()).unwrap());
            assert!(grown.recv().unwrap());
            guest_writes(&server, 1500, 77).unwrap();
        }
        let snapshot = Arc::new(take(&attachment, 1024).unwrap());
        assert_eq!(snapshot.since(), finished);
        let was = read(&snapshot, BLOCK).unwrap();
        // The guest goes on, in what is backed up, in a hole, and elsewhere.
        for block in [u64::from(round) * 40 + 1, 900, 300 + u64::from(round)] {
            guest_writes(&server, block, 99).unwrap();
        }
        discard(u64::from(round) * 40 + 2);
        let folder = dir.join(format!("backup-{round}"));
        std::fs::create_dir(&folder).unwrap();
        let image = folder.join("disk.qcow2");
        let last = folders.first().and_then(|last| last.file_name());
        let name = last.map(|name| format!("../{}/disk.qcow2", name.to_str().unwrap()));
        let base = name.as_ref().map(|name| Base {
            name,
            folders: &folders,
        });
        if !back_up(&snapshot, &image, base) {
            return;
        }
        let source = Source::look_with(&image, &folders).unwrap().unwrap();
        let raw = dir.join(format!("raw-{round}"));
        source.import(&raw, |_| (), || true).unwrap();
        assert!(std::fs::read(&raw).unwrap() == was, "backup {round}");
        let stored = std::fs::metadata(&image).unwrap().len();
        assert_eq!(stored > 2 * MIB, round == 0, "{stored} bytes in {round}");
        if round != 2 {
            snapshot.finish();
            finished = Some(snapshot.mark());
            folders.insert(0, folder);
        }
    }
}

/// A client is told of data, holes, and blocks that it has already.
#[test]
fn a_snapshot_tells_what_must_be_read() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let server = server(&disks, 0);
    for block in [0, 1, 4] {
        guest_writes(&server, block, 5).unwrap();
    }
    let first = take(&attachment, 64).unwrap();
    guest_writes(&server, 9, 5).unwrap();
    let told = |snapshot: &Snapshot, since: Option<&crate::changes::Since>, at: usize| {
        let export = crate::snapshot::Export {
            snapshot,
            disk: snapshot.disks()[0],
            since,
        };
        let rest = (16 * BLOCK - at) as u64;
        export.extents(at as u64, rest).unwrap()
    };
    let block = BLOCK as u64;
    // Block 9 was a hole, and is kept as such, which takes it for data.
    let whole = [
        (2 * block, Extent::Data),
        (2 * block, Extent::Zero),
        (block, Extent::Data),
        (4 * block, Extent::Zero),
        (block, Extent::Data),
        (6 * block, Extent::Zero),
    ];
    assert_eq!(told(&first, None, 0), whole);
    assert_eq!(told(&first, None, BLOCK + 7)[0], (block - 7, Extent::Data));
    first.finish();
    drop(first);
    let second = take(&attachment, 64).unwrap();
    // Its cluster was written; the other disk was not.
    assert_eq!(told(&second, second.since_of(0), 0)[0], whole[0]);
    second.finish();
    drop(second);
    let third = take(&attachment, 64).unwrap();
    let all = [(16 * block, Extent::Elsewhere)];
    assert_eq!(told(&third, third.since_of(0), 0), all);
    third.end("a test");
    let export = crate::snapshot::Export {
        snapshot: &third,
        disk: third.disks()[0],
        since: third.since_of(0),
    };
    assert!(export.extents(0, block).is_err(), "it has ended");
}
