//! Directories of other releases are understood, or refused with a sentence and left as they are.

use super::*;
use crate::SegmentNumber;
use crate::StoreError;
use crate::directory::Directory;
use crate::record::{Base, Kind, push, stamp as seal};
use crate::state::{FORMAT, State, StateFile, push_copy};
use apus::Configuration;
use plover_types::ReplicaSet;
use plover_types::forms::{assert_form, fingerprint};
use plover_types::wire::WIRE_VERSION;

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

/// Makes the state what a release with other wire forms would have written.
fn with_wire(dir: &Path, wire: u8) {
    let mut file = StateFile::open(&Directory::open(dir).unwrap()).unwrap();
    file.update(|state| state.wire = wire).unwrap();
}

#[test]
fn entries_of_another_wire_version_are_left_alone() {
    let dir = origin();
    with_wire(dir.path(), WIRE_VERSION + 1);
    let version = format!("wire version {}", WIRE_VERSION + 1);
    is_refused(
        dir.path(),
        &[
            &version,
            "start that release",
            "a majority",
            "copy the whole",
            "log.*",
        ],
    );
    // The error says to do so.
    for segment in Files::of(dir.path()).segments() {
        std::fs::remove_file(dir.path().join(segment)).unwrap();
    }
    let (_, found) = open(dir.path());
    assert!(found.forgotten, "it recovers from the others");
    assert_eq!(found.promise, Some(promise(1)), "the promise is kept");
    let said = found.damage.unwrap().to_string();
    assert!(said.contains("gone") && !said.contains("damaged"), "{said}");
}

/// A log that would be removed anyway need not be understood.
#[test]
fn a_log_that_is_not_used_need_not_be_understood() {
    let dir = origin();
    with_wire(dir.path(), WIRE_VERSION + 1);
    let memory = Options::new("group", Durability::Memory);
    let (store, found) = Store::open(dir.path(), &memory).unwrap();
    assert_eq!(found.promise, Some(promise(1)));
    drop(store);

    let dir = origin();
    let mut store = open(dir.path()).0;
    let amnesiac = DurableState {
        amnesiac: true,
        ..promise(2)
    };
    store.persist_state(amnesiac);
    synced(&mut store);
    drop(store);
    with_wire(dir.path(), WIRE_VERSION + 1);
    let (_, found) = open(dir.path());
    assert!(found.forgotten && found.damage.is_none());
    assert_eq!(found.promise, Some(amnesiac));
}

#[test]
fn a_promise_outlives_the_release_that_made_it() {
    let dir = directory();
    let memory = Options::new("group", Durability::Memory);
    let mut store = Store::open(dir.path(), &memory).unwrap().0;
    store.persist_state(promise(1));
    synced(&mut store);
    drop(store);
    with_wire(dir.path(), WIRE_VERSION + 1);
    let (_, found) = Store::open(dir.path(), &memory).unwrap();
    assert_eq!(found.promise, Some(promise(1)));
    // A store that changes to disk mode has a log that it understands.
    let (mut store, _) = open(dir.path());
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
    let path = dir.path().join("log.0000000000000001");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] = 99;
    seal(&mut bytes, salt, SegmentNumber(1), 0);
    std::fs::write(&path, bytes).unwrap();
    is_refused(dir.path(), &["unknown kind 99", "start that release"]);
}

#[test]
fn a_promise_of_a_later_format_is_left_alone() {
    let dir = origin();
    let path = dir.path().join("state");
    let mut bytes = std::fs::read(&path).unwrap();
    for copy in bytes.chunks_mut(4096) {
        copy[7] = b'3';
    }
    std::fs::write(&path, bytes).unwrap();
    is_refused(
        dir.path(),
        &["format 3", "start that release", "move the directory"],
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
        }),
        whole: false,
        wire: 7,
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
        (b'2', 0x7c9c_23fc_9c9a_aa74),
        "{sum:#x}: raise FORMAT"
    );
}

/// Records are of the wire version that the state names.
#[test]
fn the_form_of_records_is_that_of_their_version() {
    let members = apus::Members::of(ReplicaSet(0b111));
    let base = Base {
        viewstamp: stamp(1001, 1002),
        configuration: Configuration {
            in_sync: ReplicaSet(0b11),
            members,
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
