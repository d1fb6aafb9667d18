//! To whom a leader with quorum selection sends an entry at once, and what happens when they do
//! not answer.

use crate::group::{Group, HEARTBEAT, LONG, TIMEOUT, plain_config};
use apus::{Config, Durability, EntryKind};
use plover_types::{Awaited, Index, Micros, ReplicaId};

/// A group of nine that only replicates its log, led by replica 0.
fn nine(quorum_selection: bool) -> Group {
    let configs = (0..9).map(|me| Config {
        quorum_selection,
        ..plain_config(me, 9, Durability::Memory)
    });
    Group::of(configs.collect())
}

/// Proposes an entry a millisecond and says how many were committed at once.
fn commits_within(group: &mut Group, span: Micros) -> u64 {
    let until = group.now + span;
    let mut at_once = 0;
    while group.now < until {
        let index = group.app(10);
        group.settle();
        at_once += u64::from(group.commit(0) >= index);
        group.tick(Micros::from_ms(1));
        group.settle();
    }
    at_once
}

#[test]
fn an_entry_costs_fewer_messages_and_reaches_everyone() {
    let [all, selected] = [false, true].map(|quorum_selection| {
        let mut group = nine(quorum_selection);
        let writes = group.writes;
        let commits = commits_within(&mut group, Micros::from_ms(500));
        let messages = (group.writes - writes) as f64 / commits as f64;
        group.run(Micros::from_ms(50));
        let last = group.status(0).last;
        for core in 1..9 {
            assert_eq!(group.status(core).last, last, "replica {core}");
            assert_eq!(group.delivered_to(core), last.index);
        }
        messages
    });
    // Eight backups and their answers against four, and the others' now and then.
    assert!(
        selected < all * 0.8,
        "{selected} messages an entry, not {all}"
    );
}

/// Of the first and the last four backups, some are in the fast set. The leader goes on without them
/// whether they are dead or only stopped.
#[test]
fn a_leader_goes_on_without_those_it_counted_on() {
    for gone in [1..5, 5..9] {
        let mut dead = nine(true);
        let mut stopped = nine(true);
        for group in [&mut dead, &mut stopped] {
            assert!(commits_within(group, TIMEOUT) > 90);
        }
        for core in gone {
            dead.crash(core);
            stopped.stopped.insert(core);
        }
        for group in [&mut dead, &mut stopped] {
            // The leader notices when it next sends to the slow followers.
            commits_within(group, HEARTBEAT);
            assert!(commits_within(group, Micros::from_ms(300)) > 290);
            assert_eq!(group.leader(), Some(0));
        }
        stopped.stopped.clear();
        stopped.run(LONG);
        assert_eq!(stopped.leader(), Some(0), "and no election");
        let last = stopped.status(0).last;
        assert!((0..9).all(|core| stopped.status(core).last == last));
    }
}

#[test]
fn nothing_is_committed_before_as_many_as_are_awaited_have_answered() {
    for quorum_selection in [false, true] {
        let mut group = nine(quorum_selection);
        commits_within(&mut group, TIMEOUT);
        group.run(Micros::from_ms(50));
        assert_eq!(group.cores[0].awaited(), None, "nothing is on its way");
        let mut most = 0;
        for round in 0..200 {
            let index = group.propose(EntryKind::App, 10).unwrap().index;
            let mut awaited = group.cores[0].awaited();
            most = most.max(awaited.map_or(0, |it| it.count));
            while group.commit(0) < index {
                awaited = group.cores[0].awaited();
                match group.wire.pop_front() {
                    Some((from, to, bytes)) => group.carry(from, to, &bytes),
                    None => group.tick(Micros::from_ms(1)),
                }
            }
            // Backups that lack earlier entries are sent nothing, so the leader may wait for all.
            let has = |id: &ReplicaId| group.cores[0].matched(*id) >= Some(index);
            let answered = |it: Awaited| it.from.iter().filter(has).count();
            assert!(
                awaited.is_none_or(|it| answered(it) >= it.count),
                "round {round}"
            );
            group.settle();
        }
        assert_eq!(most, 4, "with the leader a majority of nine");
        assert!(group.commit(0) > Index(200));
    }
}
