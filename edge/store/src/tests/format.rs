//! Directories of other releases are understood, or refused with a sentence and left as they are.

use super::*;
use crate::SegmentNumber;
use crate::StoreError;
use crate::directory::Directory;
use crate::record::{Base, Kind, push, stamp as seal};
use crate::state::{FORMAT, State, StateFile, push_copy};
use apus::{Configuration, EntryKind};
use plover_types::ReplicaSet;
use plover_types::forms::{assert_form, fingerprint};

/// A closed store with a log.
fn origin() -> TempDir {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    store.persist_state(promise(1));
    store.persist_entries(Viewstamp::default(), None, &[entry(1, 1, 100)]);
    synced(&mut store);
    dir
}

fn is_refused(dir: &Path, words: &[&str]) {
    let before = Files::of(dir);
    let error = Store::open(dir, &options()).unwrap_err();
    assert!(matches!(error, StoreError::OtherRelease { .. }), "{error}");
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "no '{word}' in: {said}");
    }
    assert!(
        Files::of(dir) == before,
        "nothing is changed, nothing deleted"
    );
}

/// How a release that speaks no version newer than `newest` opens the directory.
fn up_to(newest: u8) -> Options {
    Options {
        newest_version: newest,
        ..options()
    }
}

fn is_left_behind(dir: &Path, options: &Options) {
    let before = Files::of(dir);
    let error = Store::open(dir, options).unwrap_err();
    assert!(matches!(error, StoreError::GroupVersion { .. }), "{error}");
    let said = error.to_string();
    for word in [
        "has wire version 3",
        "speaks wire version 2",
        "group.version_max",
    ] {
        assert!(said.contains(word), "no '{word}' in: {said}");
    }
    assert!(Files::of(dir) == before, "nothing is changed");
}

/// Releases that speak 2, and 2 and 3, use a directory in turns until the group has version 3.
#[test]
fn a_release_goes_back_until_the_group_has_the_newer_version() {
    let dir = directory();
    for (round, newest) in [(1, 2), (2, 3), (3, 2), (4, 3)] {
        let (mut store, found) = Store::open(dir.path(), &up_to(newest)).unwrap();
        assert_eq!(found.log.len() as u64, round - 1);
        store.persist_state(promise(round));
        store.persist_entries(found_end(&found), None, &[entry(1, round, 100)]);
        synced(&mut store);
    }
    let (mut store, _) = Store::open(dir.path(), &up_to(3)).unwrap();
    let raised = DurableState {
        version: 3,
        ..promise(5)
    };
    store.persist_state(raised);
    synced(&mut store);
    drop(store);
    is_left_behind(dir.path(), &up_to(2));
    let memory = Options {
        durability: Durability::Memory,
        ..up_to(2)
    };
    is_left_behind(dir.path(), &memory);
    let (_, found) = Store::open(dir.path(), &up_to(3)).unwrap();
    assert_eq!((found.promise, found.log.len()), (Some(raised), 4));
}

fn found_end(found: &Recovered) -> Viewstamp {
    let last = found.log.last().map(|entry| entry.viewstamp);
    last.unwrap_or(found.base.viewstamp)
}

/// The entry is durable before the version that it names.
#[test]
fn a_log_that_names_a_newer_version_is_left_alone() {
    let dir = origin();
    let (mut store, _) = open(dir.path());
    let raised = Entry {
        kind: EntryKind::Version(3),
        payload: Vec::new(),
        ..entry(1, 2, 0)
    };
    store.persist_entries(stamp(1, 1), None, &[raised]);
    synced(&mut store);
    drop(store);
    is_left_behind(dir.path(), &up_to(2));
    assert_eq!(open(dir.path()).1.log.len(), 2);
}

#[test]
fn a_store_changes_to_disk_mode_and_keeps_its_promise() {
    let dir = directory();
    let memory = Options::new("group", Durability::Memory);
    let mut store = Store::open(dir.path(), &memory).unwrap().0;
    store.persist_state(promise(1));
    synced(&mut store);
    drop(store);
    let (mut store, found) = open(dir.path());
    assert_eq!(found.promise, Some(promise(1)));
    store.persist_state(promise(2));
    synced(&mut store);
    drop(store);
    assert!(!open(dir.path()).1.forgotten);
}

#[test]
fn a_record_that_is_whole_and_unknown_is_left_alone() {
    let dir = origin();
    let opened = Directory::open(dir.path()).unwrap();
    let salt = StateFile::open(&opened).unwrap().state.salt;
    let (path, segment) = first_segment(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] = 99;
    seal(&mut bytes, salt, segment, 0);
    std::fs::write(&path, bytes).unwrap();
    is_refused(dir.path(), &["unknown kind 99", "start that release"]);
}

#[test]
fn a_promise_of_a_later_format_is_left_alone() {
    let dir = origin();
    let path = dir.path().join("state");
    let mut bytes = std::fs::read(&path).unwrap();
    for copy in bytes.chunks_mut(4096) {
        copy[7] = b'4';
    }
    std::fs::write(&path, bytes).unwrap();
    is_refused(
        dir.path(),
        &["format 4", "start that release", "move the directory"],
    );
}

fn state() -> State {
    State {
        generation: 1001,
        group: "a group".into(),
        salt: 1002,
        durability: Durability::Disk,
        promise: Some(DurableState {
            promised: View(1003),
            generation: View(1004),
            amnesiac: true,
            milestone: Some(stamp(1005, 1006)),
            version: 101,
        }),
        whole: false,
    }
}

/// A change of the form must raise `FORMAT`.
#[test]
fn the_form_of_the_promise_is_that_of_its_format() {
    let mut bytes = Vec::new();
    push_copy(&mut bytes, &state());
    let sum = fingerprint([&bytes[8..]]);
    assert_eq!(
        (FORMAT, sum),
        (b'3', 0xee7e_2b6c_4f3d_e08f),
        "{sum:#x}: raise FORMAT"
    );
}

#[test]
fn the_form_of_records_is_that_of_their_version() {
    let members = apus::Members::of(ReplicaSet(0b111));
    let base = Base {
        viewstamp: stamp(1001, 1002),
        configuration: Configuration {
            in_sync: ReplicaSet(0b11),
            members,
            version: 102,
        },
    };
    let last = stamp(1003, 1004);
    let sealed = |put: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        put(&mut bytes);
        seal(&mut bytes, 1005, SegmentNumber(1006), 1007);
        bytes
    };
    let records = [
        sealed(&|to| push(to, Kind::Begin, &(base, last))),
        sealed(&|to| push(to, Kind::Entry, &entry(1008, 1009, 10))),
        sealed(&|to| push(to, Kind::Cut, &last)),
        sealed(&|to| push(to, Kind::Anew, &base)),
        sealed(&|to| push(to, Kind::Trim, &base)),
        sealed(&|to| push(to, Kind::End, &())),
        sealed(&|to| push(to, Kind::Seal, &())),
    ];
    assert_form("stored log", &records);
}
