//! Disks that fail, go away and come back.

use super::*;
use std::time::Instant;

/// Tries again and again, as a leader makes a replica do, until it succeeds.
fn attach_for_copy(disks: &mut Disks) -> Attachment {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match disks.attach_for_copy() {
            Ok(attachment) => return attachment,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Why they cannot be attached for a copy.
fn refused_for_copy(disks: &mut Disks) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match disks.attach_for_copy() {
            Err(DiskError::Waiting(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            attached => return attached.err().unwrap().to_string(),
        }
    }
}

/// Ends a copy, as a first syncvm does.
fn complete(disks: &mut Disks, sync: u64) {
    disks.stage(SyncNo(sync), Batch::new());
    assert_eq!(wait(disks), DiskEvent::Staged(SyncNo(sync)));
}

#[test]
fn a_disk_that_failed_is_tried_again_and_mended() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    // The end of the image is gone, as under a disk with bad sectors.
    let image = scratch.dir.path().join("b");
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(0).unwrap();
    attachment
        .direct()
        .read(BlockNo(20), &mut [0; DISK_BLOCK_BYTES]);
    let why = attachment.failure().unwrap();
    assert!(
        why.contains("cannot read the disk image") && why.contains("mend"),
        "{why}"
    );
    drop(attachment);
    assert!(disks.failure().is_some_and(|said| said.starts_with(&why)));
    // However slow this test is, the failure was a moment ago.
    let hour = Duration::from_secs(3600);
    disks.health.failed_at(Some(Instant::now() + hour));
    let early = disks.attach_for_copy().err().unwrap().to_string();
    assert!(
        early.contains(&why) && early.contains("again later"),
        "{early}"
    );
    // The next try sees the present file.
    for _ in 0..2 {
        let seen = attach_at_rest(&mut disks).err().unwrap().to_string();
        assert!(seen.contains("0 bytes, not"), "{seen}");
    }
    file.set_len(8 * DISK_BLOCK_BYTES as u64).unwrap();
    disks.health.failed_at(None);
    let attachment = attach_for_copy(&mut disks);
    assert!(
        disks.failure().is_some() && !disks.is_whole(),
        "a try is no cure"
    );
    put(&attachment, 20, 5);
    complete(&mut disks, 1);
    assert_eq!(disks.failure(), None);
    assert_eq!(contents(&attachment)[20], 5);
    assert!(scratch.crash().open().is_whole());
}

/// The caller does not wait. Nothing is attached for a guest that was given up, and the next one has the disks as soon as they
/// answer.
#[test]
fn disks_that_hang_are_given_up_and_attached_when_they_answer() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let image = scratch.dir.path().join("a");
    let inner = Arc::clone(&disks.opened().inner);
    let hangs = lock(&inner.journal);
    disks.begin_attach(Purpose::Copy, &image).unwrap();
    assert_eq!(wait(&mut disks), DiskEvent::Attached);
    let busy = disks.take_attachment().map(Result::err);
    assert!(matches!(busy, Some(Some(DiskError::Busy))), "{busy:?}");
    assert!(disks.is_whole() && disks.failure().is_none());
    disks.begin_attach(Purpose::Boot, &image).unwrap();
    let why = disks.fail_attaching();
    assert!(
        why.contains("journal") && why.contains("not answered"),
        "{why}"
    );
    assert!(disks.failure().is_some_and(|said| said.starts_with(&why)));
    let hour = Duration::from_secs(3600);
    disks.health.failed_at(Some(Instant::now() + hour));
    let early = disks.begin_attach(Purpose::Copy, &image);
    let early = early.unwrap_err().to_string();
    assert!(early.contains("again later"), "{early}");
    disks.begin_attach(Purpose::Boot, &image).unwrap();
    drop(hangs);
    drop(inner);
    let attachment = loop {
        assert_eq!(wait(&mut disks), DiskEvent::Attached);
        match disks.take_attachment() {
            Some(Err(DiskError::Busy)) => disks.begin_attach(Purpose::Boot, &image).unwrap(),
            Some(attached) => break attached.unwrap(),
            None => {}
        }
    };
    assert!(attachment.found());
    put(&attachment, 3, 5);
    assert_eq!(contents(&attachment)[3], 5);
    assert_eq!(disks.failure(), None);
}

/// If a write of staged blocks fails, the syncvm stays in the journal until its blocks are on the disk.
#[test]
fn a_sync_that_could_not_be_written_is_not_settled() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    disks.stage(SyncNo(1), batch(&BTreeMap::from([(20, 5)])));
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(1)));
    attachment.begin_writing(|blocks| blocks.inner.note_failure("a bad sector"));
    assert_eq!(wait(&mut disks), DiskEvent::Worked);
    disks.settle();
    assert!(matches!(wait(&mut disks), DiskEvent::Failed(why) if why.contains("a bad sector")));
    let after = scratch.crash();
    assert_eq!(contents(&after.open().attach_to_boot().unwrap())[20], 5);
}

/// A replica whose image is missing at the start can still vote. It takes a copy once there is a place
/// for it.
#[test]
fn a_replica_starts_without_its_image_if_it_had_one() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let (image, elsewhere) = (
        scratch.dir.path().join("a"),
        scratch.dir.path().join("gone"),
    );
    std::fs::rename(&image, &elsewhere).unwrap();
    std::fs::create_dir(&image).unwrap();
    let mut disks = scratch.open();
    assert_eq!(disks.blocks(), BLOCKS);
    assert!(!disks.is_whole());
    let why = disks.failure().unwrap();
    assert!(
        why.contains("cannot open the disk image") && why.contains("path"),
        "{why}"
    );
    assert!(disks.attach_to_boot().is_err());
    std::fs::remove_dir(&image).unwrap();
    std::fs::rename(&elsewhere, &image).unwrap();
    let _attachment = attach_for_copy(&mut disks);
    complete(&mut disks, 1);
    assert!(disks.is_whole() && disks.failure().is_none());
}

/// Its file system may be mounted late: no empty one takes its place, unless it is to be filled.
#[test]
fn an_image_that_is_gone_is_made_for_a_copy_only() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    assert!(disks.is_whole(), "the guest installs itself on it");
    put(&disks.attach_to_boot().unwrap(), 3, 5);
    drop(disks);
    let [image, elsewhere] = ["a", "gone"].map(|name| scratch.dir.path().join(name));
    std::fs::rename(&image, &elsewhere).unwrap();
    let mut disks = scratch.open();
    let why = disks.failure().unwrap();
    assert!(why.contains("is gone") && why.contains("mounted"), "{why}");
    assert!(disks.attach_to_boot().is_err() && !image.exists());
    std::fs::rename(&elsewhere, &image).unwrap();
    disks.opened_at -= Duration::from_secs(60);
    disks.open_again();
    assert_eq!(wait(&mut disks), DiskEvent::Attached);
    assert!(disks.take_attachment().is_none());
    assert!(disks.is_whole() && disks.failure().is_none());
    assert_eq!(contents(&disks.attach_to_boot().unwrap())[3], 5);
    drop(disks);

    std::fs::remove_file(&image).unwrap();
    let mut disks = scratch.open();
    drop(attach_for_copy(&mut disks));
    drop(disks);
    let mut disks = scratch.open();
    assert!(image.exists() && !disks.is_whole());
    let refused = disks.attach_to_boot().err().unwrap().to_string();
    assert!(refused.contains("incomplete"), "{refused}");
}

/// The empty image is made, and then the next one cannot be opened: the journal has been told before.
#[test]
fn an_image_that_was_lost_is_not_whole_when_another_one_failed_as_it_was_made() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let at = |name: &str| scratch.dir.path().join(name);
    std::fs::remove_file(at("a")).unwrap();
    std::fs::rename(at("b"), at("gone")).unwrap();
    std::fs::create_dir(at("b")).unwrap();
    let mut disks = scratch.open();
    let why = refused_for_copy(&mut disks);
    assert!(at("a").exists() && why.contains("cannot open"), "{why}");
    drop(disks);
    std::fs::remove_dir(at("b")).unwrap();
    std::fs::rename(at("gone"), at("b")).unwrap();
    let refused = scratch.open().attach_to_boot().err().unwrap().to_string();
    assert!(refused.contains("incomplete"), "{refused}");
}

/// One that is made in part is no image, and one of which nothing was made is refused.
#[test]
fn an_image_that_cannot_be_made_is_not_left() {
    let scratch = Scratch::new();
    let (mut specs, journal) = (scratch.specs(), scratch.dir.path().join("journal"));
    let image = scratch.dir.path().join("a");
    // No file is as large.
    let size = specs[0].bytes.replace(u64::MAX);
    for used_before in [false, true] {
        if used_before {
            drop(scratch.open());
            std::fs::remove_file(&image).unwrap();
        }
        let why = match Disks::open(&specs, &journal) {
            Ok(mut disks) => refused_for_copy(&mut disks),
            Err(error) => error.to_string(),
        };
        assert!(why.contains("cannot create the disk image"), "{why}");
        assert!(!image.exists(), "used before: {used_before}");
    }
    File::create(&image).unwrap();
    specs[0].bytes = size;
    let why = Disks::open(&specs, &journal).unwrap().failure().unwrap();
    assert!(why.contains("0 bytes") && why.contains("remove"), "{why}");
    std::fs::remove_file(&image).unwrap();
    assert!(!scratch.open().is_whole());
}

/// A read that failed leaves nothing unwritten behind, and yet the guest of these disks may not go on.
#[test]
fn a_guest_whose_disks_have_failed_takes_no_sync() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let _attachment = disks.attach_to_boot().unwrap();
    disks.stage(SyncNo(1), Batch::new());
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(1)));
    disks.opened().inner.note_failure("a bad sector");
    disks.stage(SyncNo(2), Batch::new());
    assert!(matches!(wait(&mut disks), DiskEvent::Failed(why) if why.contains("a bad sector")));
}

/// The read-only image is a pipe that nobody writes to: whoever opens it waits.
#[test]
fn a_replica_whose_disk_hangs_at_its_start_votes_without_it() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let (specs, journal) = (scratch.specs(), scratch.dir.path().join("journal"));
    let hung = &specs.iter().find(|spec| spec.read_only).unwrap().path;
    let kept = hung.with_extension("kept");
    std::fs::rename(hung, &kept).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, hung, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut disks = Disks::open_within(&specs, &journal, crate::calls::HANGS_AFTER).unwrap();
    assert_eq!((disks.blocks(), disks.is_whole()), (BLOCKS, false));
    let why = disks.failure().unwrap();
    assert!(why.contains("have not answered"), "{why}");
    // A guest waits for it; then it answers, and is found to be no image.
    disks.begin_attach(Purpose::Boot, Path::new("")).unwrap();
    assert!(disks.take_attachment().is_none());
    let pipe = File::options().write(true).open(hung).unwrap();
    std::fs::rename(&kept, hung).unwrap();
    drop(pipe);
    attach_at_rest(&mut disks).unwrap();
    assert_eq!(disks.failure(), None);
}

#[test]
fn a_disk_that_answers_late_is_taken_then() {
    let scratch = Scratch::new();
    let mut disks = scratch.open();
    let attachment = disks.attach_to_boot().unwrap();
    let fill = BTreeMap::from([(0, 7), (1, 8)]);
    disks.stage(SyncNo(5), batch(&fill));
    assert_eq!(wait(&mut disks), DiskEvent::Staged(SyncNo(5)));
    let copy = scratch.crash();
    drop(attachment);
    let mut specs = copy.specs();
    // Completing the syncvm takes twice as long.
    specs[0].delay = Duration::from_millis(200);
    let journal = copy.dir.path().join("journal");
    let mut disks = Disks::open_within(&specs, &journal, Duration::ZERO).unwrap();
    assert_eq!((disks.blocks(), disks.is_whole()), (BLOCKS, false));
    assert_eq!(wait(&mut disks), DiskEvent::Attached);
    assert!(disks.take_attachment().is_none() && disks.is_whole());
    let found = std::fs::read(&specs[0].path).unwrap();
    assert_eq!((found[0], found[DISK_BLOCK_BYTES]), (7, 8));
}
