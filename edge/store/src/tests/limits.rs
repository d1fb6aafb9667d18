//! Full disks, other processes, other groups.

use super::*;
use crate::StoreError;
use rustix::fd::OwnedFd;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// A file system of that size in memory, mounted nowhere: it is gone when the descriptor is closed.
fn small_disk(size: &str) -> (OwnedFd, PathBuf) {
    let made = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|tmpfs| {
        fsconfig_set_string(&tmpfs, "size", size)?;
        fsconfig_create(&tmpfs)?;
        fsmount(
            &tmpfs,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )
    });
    let mount = made.expect("a small disk needs root: run the tests with `./x test`");
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    (mount, path.into())
}

#[test]
fn a_full_disk_stops_the_store_and_loses_nothing() {
    let (_mount, dir) = small_disk("128k");
    let (mut store, _) = open(&dir);
    store.persist_state(promise(1));
    let (mut last, mut stored) = (Viewstamp::default(), Viewstamp::default());
    let error = loop {
        let next = entry(1, last.index.0 + 1, 500);
        store.persist_entries(last, None, std::slice::from_ref(&next));
        last = next.viewstamp;
        assert!(last.index.0 < 1000, "the disk does not fill up");
        match synced(&mut store).pop() {
            Some(Completion::EntriesPersisted(last)) => stored = last,
            Some(Completion::Failed(error)) => break error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert!(
        error.contains("disk full") && error.contains("free space"),
        "{error}"
    );
    assert!(error.contains(dir.to_str().unwrap()), "{error}");
    store.persist_entries(last, None, &[entry(1, last.index.0 + 1, 1)]);
    assert!(synced(&mut store).is_empty(), "nothing after a failure");
    drop(store);
    let (_, found) = open(&dir);
    assert!(!found.forgotten);
    assert!(found.log.last().unwrap().viewstamp >= stored);
}

#[test]
fn space_that_is_freed_in_time_is_used() {
    let (_mount, dir) = small_disk("48k");
    let (mut store, _) = open(&dir);
    let mut segment = first_segment(&dir).1;
    let mut next = || {
        segment = segment.next();
        dir.join(segment.to_string())
    };
    let second = next();
    while !second.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let ballast = dir.join("ballast");
    // Fills the disk; the last write fails.
    let _ = std::fs::write(&ballast, vec![0; 64 << 10]);
    let mut last = Viewstamp::default();
    for index in 1..=20 {
        if index == 12 {
            // The second segment is in use, and the third could not be prepared.
            std::fs::remove_file(&ballast).unwrap();
        }
        store.persist_entries(last, None, &[entry(1, index, 500)]);
        last = stamp(1, index);
        let done = synced(&mut store);
        assert!(
            matches!(done[..], [Completion::EntriesPersisted(v)] if v == last),
            "{done:?}"
        );
    }
    assert!(next().exists());
}

#[test]
fn a_directory_in_use_is_refused_and_its_holder_named() {
    let dir = directory();
    let holder = open(dir.path());
    let error = Store::open(dir.path(), &options()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    drop(holder);
    Store::open(dir.path(), &options()).unwrap();
}

#[test]
fn a_directory_of_another_group_is_left_alone() {
    let dir = directory();
    drop(open(dir.path()));
    let other = Options::new("another", Durability::Disk);
    let error = Store::open(dir.path(), &other).unwrap_err().to_string();
    assert!(
        error.contains("'group'") && error.contains("'another'"),
        "{error}"
    );
}

#[test]
fn a_name_that_does_not_fit_is_refused() {
    let dir = directory();
    let with = |bytes: usize| Options::new("g".repeat(bytes), Durability::Memory);
    let refused = Store::open(dir.path(), &with(256));
    assert!(matches!(refused, Err(StoreError::LongName(_))));
    Store::open(dir.path(), &with(255)).unwrap();
}
