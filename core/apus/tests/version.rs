//! The version of the group. Each test checks one fear.

use crate::group::{Group, LONG};
use apus::{Durability, EntryKind, Event};
use plover_types::ReplicaId;
use plover_types::wire::{OLDEST_VERSION, Versions, WIRE_VERSION};

const OLD: u8 = OLDEST_VERSION;
const NEW: u8 = WIRE_VERSION;

/// The replica `peer` tells all others that it speaks no version newer than `newest`, at new links.
fn tell(group: &mut Group, peer: usize, newest: u8) {
    let id = ReplicaId(peer as u8);
    for to in (0..3).filter(|to| *to != peer) {
        let versions = Versions::up_to(newest);
        for up in [false, true] {
            if up {
                group.apply(to, Event::Speaks { peer: id, versions });
            }
            group.apply(to, Event::Link { peer: id, up });
        }
    }
}

fn versions(group: &Group) -> [u8; 3] {
    [0, 1, 2].map(|core: usize| group.status(core).version)
}

#[test]
fn the_version_is_raised_when_the_last_member_speaks_it() {
    let mut group = Group::protected(Durability::Memory);
    tell(&mut group, 0, NEW);
    tell(&mut group, 1, NEW);
    group.run(LONG);
    assert_eq!(
        versions(&group),
        [0; 3],
        "nobody knows what the witness speaks"
    );
    assert_eq!(group.cores[0].behind(), [(ReplicaId(2), None)]);
    tell(&mut group, 2, OLD);
    group.run(LONG);
    assert_eq!(versions(&group), [OLD; 3]);
    assert_eq!(group.cores[0].behind(), [(ReplicaId(2), Some(OLD))]);
    tell(&mut group, 2, NEW);
    group.run(LONG);
    assert_eq!(versions(&group), [NEW; 3]);
    assert_eq!(group.cores[0].behind(), []);
}

/// A word counts only while its link is up: the next process may be of the former release.
#[test]
fn a_word_ends_with_its_link() {
    let mut group = Group::protected(Durability::Memory);
    for peer in [1, 2] {
        tell(&mut group, peer, NEW);
    }
    let (peer, up) = (ReplicaId(2), false);
    group.apply(0, Event::Link { peer, up });
    group.run(LONG);
    assert_eq!(versions(&group), [0; 3]);
}

/// A replica that has gone back to the former release gets nothing that it may not know.
#[test]
fn one_that_went_back_is_sent_no_log() {
    let mut group = Group::protected(Durability::Memory);
    for peer in 0..3 {
        tell(&mut group, peer, NEW);
    }
    group.settle();
    // The entry is in the leader's log alone when the witness comes back.
    group.cut(0, 1);
    group.cut(0, 2);
    let named = group
        .propose_on(0, EntryKind::Version(NEW), 0)
        .unwrap()
        .index;
    tell(&mut group, 2, OLD);
    group.cut.clear();
    let to_witness = |group: &Group| group.wire.iter().filter(|it| it.1 == 2).count();
    group.app(5);
    assert_eq!(to_witness(&group), 0);
    group.run(LONG);
    assert!(group.commit(0) >= named, "two of three commit it");
    assert_eq!(group.status(2).version, 0);
    assert!(group.status(2).last.index < named);
}

#[test]
fn a_version_outlives_processes_and_generations() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut group = Group::protected(durability);
        for peer in 0..3 {
            tell(&mut group, peer, NEW);
        }
        group.run(LONG);
        assert_eq!(versions(&group), [NEW; 3]);
        for core in 0..3 {
            group.crash(core);
        }
        for core in 0..3 {
            group.restart(core);
        }
        assert_eq!(versions(&group), [NEW; 3], "as storage has it");
        group.run(LONG);
        group.bootstrap(0);
        group.run(LONG);
        assert_eq!(group.leader(), Some(0));
        assert_eq!(group.cores[0].named_version(), NEW);
    }
}
