//! A slow disk: callers with other work do not wait for it.

use super::*;
use std::sync::mpsc::channel;
use std::time::Instant;

const DELAY: Duration = Duration::from_millis(20);

fn slow(scratch: &Scratch) -> Disks {
    let mut specs = scratch.specs();
    specs.iter_mut().for_each(|spec| spec.delay = DELAY);
    Disks::open(&specs, &scratch.dir.path().join("journal")).unwrap()
}

fn write_all(attachment: &Attachment, fill: u8) {
    attachment.begin_writing(move |blocks| {
        (0..BLOCKS).for_each(|block| blocks.write(BlockNo(block), &[fill; DISK_BLOCK_BYTES]));
    });
}

/// The caller goes on at once, work is reported in order, and the guest reads the written content.
#[test]
fn work_is_reported_in_order_and_the_guest_waits_for_it() {
    let scratch = Scratch::new();
    let mut disks = slow(&scratch);
    let attachment = disks.attach_to_boot().unwrap();
    let (told, heard) = channel();
    let (go, may_go) = channel();
    attachment.begin(move |_| may_go.recv().unwrap());
    let begun = Instant::now();
    write_all(&attachment, 7);
    for number in 0..2 {
        let told = told.clone();
        attachment.begin(move |blocks| {
            let mut bytes = [0; DISK_BLOCK_BYTES];
            blocks.read(BlockNo(BLOCKS - 1), &mut bytes);
            told.send((number, bytes[0])).unwrap();
        });
    }
    assert!(heard.try_recv().is_err(), "nothing is done yet");
    go.send(()).unwrap();
    // The guest reads meanwhile, and gets the written content.
    let server = server(&disks, 2);
    let mut bytes = [0; DISK_BLOCK_BYTES];
    server
        .read(7 * DISK_BLOCK_BYTES as u64, &mut bytes)
        .unwrap();
    assert_eq!(bytes[0], 7);
    assert!(begun.elapsed() >= DELAY * BLOCKS);
    assert_eq!(heard.recv().unwrap(), (0, 7));
    assert_eq!(heard.recv().unwrap(), (1, 7));
    let mut events = Vec::new();
    while events.len() < 4 {
        disks.take_events(&mut events);
    }
    assert_eq!(events, [const { DiskEvent::Worked }; 4]);
}

/// The journal is written after earlier work and before later work.
#[test]
fn a_stage_waits_for_earlier_writes() {
    let scratch = Scratch::new();
    let mut disks = slow(&scratch);
    let attachment = disks.attach_for_copy().unwrap();
    write_all(&attachment, 7);
    disks.stage(SyncNo(1), Batch::new());
    let mut events = Vec::new();
    while !events.contains(&DiskEvent::Staged(SyncNo(1))) {
        // Only a whole copy is compared: the blocks of another one are being written.
        if scratch.crash().open().is_whole() {
            assert_eq!(contents(&attachment), [7; BLOCKS as usize]);
        }
        disks.take_events(&mut events);
    }
    assert_eq!(
        contents(&scratch.crash().open().attach_to_boot().unwrap()),
        [7; 24]
    );
}

/// A guest whose start was given up keeps its disks until QEMU's program has been loaded.
#[test]
fn the_end_of_an_older_guest_leaves_the_disks_to_the_next_one() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let late = disks.attach_to_boot().unwrap();
    let attachment = disks.attach_to_boot().unwrap();
    drop(late);
    write_all(&attachment, 7);
    attachment.wait_until_written();
    assert_eq!(contents(&attachment), [7; 24]);
}

/// Work for a guest that is gone is neither waited for nor carried out.
#[test]
fn work_for_a_guest_that_is_no_more_ends() {
    let scratch = Scratch::new();
    let mut disks = slow(&scratch);
    let attachment = disks.attach_to_boot().unwrap();
    write_all(&attachment, 7);
    drop(attachment);
    let attachment = disks.attach_to_boot().unwrap();
    write_all(&attachment, 9);
    attachment.wait_until_written();
    assert_eq!(contents(&attachment), [9; 24]);
}
