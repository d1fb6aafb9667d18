//! A full file system, as a limit on the size of files. The limit holds for the whole process, so the
//! test has a process of its own.

use plover_disk::{Attachment, Batch, DiskEvent, DiskSpec, Disks};
use plover_types::{BlockNo, DISK_BLOCK_BYTES, SyncNo};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::time::Duration;

/// Lets files grow to `bytes`; writes beyond fail.
fn room_for(bytes: Option<u64>) {
    // SAFETY: ignoring a signal changes no memory; without it the process would be ended instead of
    // the write being refused.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    setrlimit(Resource::Fsize, limit).expect("the limit is set");
}

fn wait(disks: &mut Disks) -> DiskEvent {
    let mut events = Vec::new();
    while events.is_empty() {
        disks.take_events(&mut events);
        std::thread::sleep(Duration::from_millis(5));
    }
    events.remove(0)
}

/// Takes a copy as soon as the wait after a failure is over.
fn attach_again(disks: &mut Disks) -> Attachment {
    loop {
        match disks.attach_for_copy() {
            Ok(attachment) => return attachment,
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn put(attachment: &Attachment, block: u32, fill: u8) {
    attachment
        .direct()
        .write(BlockNo(block), &[fill; DISK_BLOCK_BYTES]);
}

fn staged(fill: u8) -> Batch {
    let mut batch = Batch::new();
    for block in 0..8 {
        batch.push(BlockNo(block), &[fill; DISK_BLOCK_BYTES]);
    }
    batch
}

#[test]
fn a_full_file_system_is_told_and_room_mends_it() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let spec = DiskSpec {
        path: dir.path().join("image"),
        read_only: false,
        bytes: Some(64 << 10),
        bytes_max: None,
        delay: Duration::ZERO,
    };
    let mut disks = Disks::open(&[spec], &dir.path().join("journal")).expect("they open");

    // A copy for which there is no room.
    room_for(Some(32 << 10));
    let attachment = disks
        .attach_for_copy()
        .expect("there is none but for the end");
    put(&attachment, 1, 1);
    assert_eq!(attachment.failure(), None);
    put(&attachment, 12, 1);
    let why = attachment.failure().expect("it fails");
    assert!(why.contains("image") && why.contains("make room"), "{why}");
    drop(attachment);
    assert!(disks.failure().is_some_and(|said| said.starts_with(&why)));
    assert!(!disks.is_whole());

    // A syncvm for whose journal there is no room.
    let attachment = attach_again(&mut disks);
    disks.stage(SyncNo(1), staged(2));
    match wait(&mut disks) {
        DiskEvent::Failed(why) => {
            assert!(
                why.contains("journal") && why.contains("make room"),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
    drop(attachment);
    assert!(!disks.is_whole(), "nothing of it counts");

    // Room is made.
    room_for(None);
    let attachment = attach_again(&mut disks);
    put(&attachment, 12, 1);
    disks.stage(SyncNo(2), staged(3));
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(2)));
    assert_eq!(disks.failure(), None);
    assert!(disks.is_whole());
}
