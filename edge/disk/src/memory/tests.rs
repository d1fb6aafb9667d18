use super::*;
use crate::export::export;
use crate::import::Source;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGES: u32 = LAST_PAGES_MAX + 500;

fn memory(pages: u32) -> File {
    let fd = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, u64::from(pages) * PAGE).unwrap();
    fd.into()
}

fn write(ram: &File, page: u32, fill: u8) {
    let content = [fill; PAGE_BYTES];
    ram.write_all_at(&content, u64::from(page) * PAGE).unwrap();
}

fn content(ram: &File, pages: u32) -> Vec<u8> {
    let mut all = vec![0; pages as usize * PAGE_BYTES];
    ram.read_exact_at(&mut all, 0).unwrap();
    all
}

fn state() -> MachineState {
    MachineState {
        machine: "QEMU 7.2, machine microvm".into(),
        devices: vec![5; 70_000],
    }
}

/// The copy as `qemu-img` gets it, back in a memory.
fn through_a_backup(copy: &MemoryCopy, pages: u32) -> (File, MachineState) {
    let dir = tempfile::tempdir().unwrap();
    let (qcow2, raw) = (dir.path().join("memory.qcow2"), dir.path().join("memory"));
    let bytes = copy.wait_until_whole().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| copy.serve(ours).unwrap());
        export(theirs, bytes, &qcow2, None, |_| {}, || true).unwrap();
    });
    let source = Source::look(&qcow2).unwrap().unwrap();
    source.import(&raw, |_| {}, || true).unwrap();
    let image = MemoryImage::open(&raw, u64::from(pages) * PAGE).unwrap();
    let ram = memory(pages);
    // QEMU has put something there.
    ram.write_all_at(&vec![0xee; pages as usize * PAGE_BYTES], 0)
        .unwrap();
    let mut last = 0;
    image.fill(&ram, |percent| last = percent).unwrap();
    assert!(last > 0, "progress was told");
    (ram, image.state)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Pages are written while the copy goes on, and the copy is of the moment in which it is finished.
    #[test]
    fn a_copy_is_the_memory_at_its_last_moment(
        before in prop::collection::vec((0..PAGES, 1u8..), 1..200),
        slots in prop::collection::vec(prop::collection::vec((0..PAGES, any::<u8>()), 0..200), 1..20),
        after in prop::collection::vec((0..PAGES, any::<u8>()), 0..50),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let ram = memory(PAGES);
        // More than the last step takes, so that the thread has to read.
        (0..PAGES).for_each(|page| write(&ram, page, 1));
        before.iter().for_each(|(page, fill)| write(&ram, *page, *fill));
        write(&ram, PAGES - 1, 0);
        let bytes = u64::from(PAGES) * PAGE;
        let copy = MemoryCopy::begin(ram.try_clone().unwrap(), bytes, dir.path(), u64::MAX).unwrap();
        for slot in slots {
            let mut written = PageSet::new(PAGES);
            for (page, fill) in slot {
                write(&ram, page, fill);
                written.insert(PageNo(page));
            }
            copy.wrote(&written);
        }
        while !copy.is_close().unwrap() {
            std::thread::yield_now();
        }
        copy.finish(&state()).unwrap();
        let then = content(&ram, PAGES);
        after.iter().for_each(|(page, fill)| write(&ram, *page, *fill));
        let (restored, machine) = through_a_backup(&copy, PAGES);
        prop_assert_eq!(machine, state());
        prop_assert!(content(&restored, PAGES) == then, "the restored memory is another one");
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left");
    }
}

#[test]
fn a_copy_that_has_ended_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let copy = MemoryCopy::begin(memory(8), 8 * PAGE, dir.path(), 1).unwrap();
    copy.end("the guest was lost");
    copy.end("something later");
    let why = Err("the guest was lost".to_string());
    assert_eq!(copy.owed().map(|_| ()), why);
    assert_eq!(copy.finish(&state()).map(|_| ()), why);
    assert_eq!(copy.wait_until_whole().map(|_| ()), why);
}

/// A memory that the last step could take whole: before it is known which pages have data, only those that were written since
/// are owed.
#[test]
fn a_copy_that_has_not_begun_is_not_finished() {
    let dir = tempfile::tempdir().unwrap();
    let ram = memory(8);
    write(&ram, 5, 9);
    let copy = MemoryCopy::new(ram, 8 * PAGE, dir.path(), 1);
    assert_eq!((copy.owed(), copy.is_close()), (Ok(8), Ok(false)));
    assert!(copy.finish(&state()).is_err());
    copy.owe_all();
    assert_eq!((copy.owed(), copy.is_close()), (Ok(1), Ok(true)));
    assert!(copy.finish(&state()).is_ok());
}

#[test]
fn a_copy_without_room_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // All that is free, of which a copy may take half.
    let room = scratch::room(dir.path()).unwrap();
    let copy = MemoryCopy::begin(memory(1), room, dir.path(), 1).unwrap();
    let error = copy.wait_until_whole().unwrap_err();
    assert!(error.contains("make room"), "{error}");
}

#[test]
fn another_file_is_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    let mut bytes = vec![3; 2 * PAGE_BYTES];
    bytes.extend(state().to_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let opened = MemoryImage::open(&path, 2 * PAGE).unwrap();
    assert_eq!(opened.state, state());
    // Of another size, cut off, of something else.
    assert!(MemoryImage::open(&path, PAGE).is_err());
    assert!(MemoryImage::open(&path, 1 << 40).is_err());
    for cut in [bytes.len() - 2 * PAGE_BYTES, 2 * PAGE_BYTES + 10] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(MemoryImage::open(&path, 2 * PAGE).is_err(), "{cut} bytes");
    }
}
