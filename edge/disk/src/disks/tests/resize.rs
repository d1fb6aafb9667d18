//! Disks that get another size while a guest has them.

use super::*;
use std::sync::mpsc::channel;

const MIB: u64 = 1 << 20;

/// A disk of 1 MiB that may have 4, and one behind it.
fn specs(dir: &std::path::Path) -> Vec<DiskSpec> {
    let spec = |name: &str, max| DiskSpec {
        path: dir.join(name),
        read_only: false,
        bytes: Some(MIB),
        bytes_max: max,
        delay: Duration::ZERO,
    };
    vec![spec("a", Some(4 * MIB)), spec("b", None)]
}

fn resize(attachment: &Attachment, bytes: u64) -> Result<(), String> {
    let (done, result) = channel();
    attachment.resize(0, bytes, move |made| {
        let _ = done.send(made.map(drop));
    });
    result.recv().unwrap()
}

fn block(disks: &Attachment, block: u32) -> u8 {
    let mut bytes = [1; DISK_BLOCK_BYTES];
    disks.direct().read(BlockNo(block), &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn the_room_behind_the_end_has_numbers_and_is_zero() {
    let dir = tempfile::tempdir().unwrap();
    let mut disks = Disks::open(&specs(dir.path()), &dir.path().join("journal")).unwrap();
    assert_eq!(disks.blocks(), 5 * 256, "as if it had grown already");
    assert_eq!(disks.sizes(), [MIB, MIB]);
    let attachment = disks.attach_to_boot().unwrap();
    assert_eq!(attachment.sizes(), [MIB, 0], "the second one never changes");
    // The blocks of the second disk follow the room of the first.
    put(&attachment, 4 * 256, 9);
    assert_eq!(std::fs::read(dir.path().join("b")).unwrap()[0], 9);
    assert_eq!(block(&attachment, 700), 0);
    assert_eq!(
        attachment.direct().next_data(BlockNo(0)),
        Some((1024, 1025))
    );
    assert_eq!(attachment.direct().first_data(BlockNo(300)), 1024);

    resize(&attachment, 3 * MIB).unwrap();
    assert_eq!(attachment.sizes(), [3 * MIB, 0]);
    assert_eq!(
        std::fs::metadata(dir.path().join("a")).unwrap().len(),
        3 * MIB
    );
    put(&attachment, 700, 5);
    // A replica whose leader never got so far gives the room back.
    resize(&attachment, MIB).unwrap();
    assert_eq!(block(&attachment, 700), 0);
    assert_eq!(
        block(&attachment, 4 * 256),
        9,
        "the other disk is as it was"
    );
}

/// A copy brings blocks that lie behind the end of the image here, before the state with the size is loaded.
#[test]
fn an_image_grows_to_hold_what_a_copy_brings() {
    let dir = tempfile::tempdir().unwrap();
    let mut disks = Disks::open(&specs(dir.path()), &dir.path().join("journal")).unwrap();
    let attachment = disks.attach_to_boot().unwrap();
    put(&attachment, 600, 0);
    assert_eq!(attachment.sizes()[0], MIB, "zeroes need no room");
    put(&attachment, 700, 8);
    assert_eq!(attachment.sizes()[0], 701 * DISK_BLOCK_BYTES as u64);
    assert_eq!((block(&attachment, 700), block(&attachment, 699)), (8, 0));
    drop((attachment, disks));
    // After a restart, too.
    let specs = specs(dir.path());
    let reopened = loop {
        // The thread of disks that were dropped a moment ago may still have them open.
        match Disks::open(&specs, &dir.path().join("journal")) {
            Ok(disks) if !disks.sizes().is_empty() => break disks,
            Ok(_) | Err(DiskError::InUse(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(reopened.sizes()[0], 701 * DISK_BLOCK_BYTES as u64);
}

#[test]
fn a_size_that_cannot_be_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let disks = Disks::open(&specs(dir.path()), &dir.path().join("journal")).unwrap();
    assert_eq!(disks.why_not_resize(0, 2 * MIB), None);
    for (disk, bytes, words) in [
        (0, MIB / 2, "no disk is made smaller"),
        (0, 5 * MIB, "disk.max_size_mib"),
        (0, 2 * MIB + 1, "4096"),
        (1, 2 * MIB, "has no disk.max_size_mib"),
        (2, 2 * MIB, "there is no disk 2"),
    ] {
        let why = disks.why_not_resize(disk, bytes).unwrap();
        assert!(why.contains(words), "{why}");
    }
    // Twice of what is free, since others may remove files meanwhile.
    let vast_bytes = (2 * crate::scratch::room(dir.path()).unwrap()).next_multiple_of(MIB);
    if vast_bytes > 1 << 42 {
        eprintln!("skipped: a disk has room here, whatever its size");
        return;
    }
    let mut vast = specs(dir.path());
    vast[0].bytes_max = Some(vast_bytes);
    vast[0].path = dir.path().join("vast");
    vast.truncate(1);
    let disks = Disks::open(&vast, &dir.path().join("other")).unwrap();
    let why = disks.room_for(0, vast_bytes)().unwrap();
    assert!(why.contains("MiB free"), "{why}");
}

/// The disk grew while this replica was not there, and its file names the new size already.
#[test]
fn an_image_with_the_size_of_before_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let mut specs = specs(dir.path());
    drop(Disks::open(&specs, &journal).unwrap());
    specs[0].bytes = Some(2 * MIB);
    let disks = Disks::open(&specs, &journal).unwrap();
    assert_eq!(disks.failure(), None);
    assert!(disks.is_whole());
    assert_eq!((disks.sizes(), disks.blocks()), (vec![MIB, MIB], 5 * 256));
    drop(disks);
    // One that no guest has used is held to its size, and one that may not grow.
    let refused =
        |specs: &[DiskSpec], journal: &str| match Disks::open(specs, &dir.path().join(journal)) {
            Ok(disks) => disks.failure(),
            Err(error) => Some(error.to_string()),
        };
    let why = refused(&specs, "other").unwrap();
    assert!(why.contains("not 2097152"), "{why}");
    specs[0].bytes = Some(MIB);
    specs[1].bytes = Some(2 * MIB);
    let why = refused(&specs, "journal").unwrap();
    assert!(why.contains("not 2097152"), "{why}");
}

/// The kernel tells only once that writes are lost: a resize that hears of it tells the guest's disk.
#[test]
fn a_resize_that_cannot_be_made_durable_fails_the_disks() {
    let dir = tempfile::tempdir().unwrap();
    let mut disks = Disks::open(&specs(dir.path()), &dir.path().join("journal")).unwrap();
    let attachment = disks.attach_to_boot().unwrap();
    disks.opened().inner.images[0].break_it();
    for _ in 0..2 {
        resize(&attachment, 3 * MIB).unwrap_err();
    }
    assert!(disks.opened().inner.failure().is_some());
    assert!(disks.failure().is_some());
}
