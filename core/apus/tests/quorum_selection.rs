//! Whom a leader with quorum selection sends an entry at once, and what happens when they do not answer.

mod network;

use apus::Durability;
use network::{Setup, World};
use plover_types::{Micros, ReplicaId};

/// A group of nine that only replicates its log, led by replica 0.
fn nine(quorum_selection: bool) -> World {
    let mut world = World::new(Setup {
        any_voter_stands: true,
        manage_in_sync: false,
        quorum_selection,
        ..Setup::new(11, 9, Durability::Memory)
    });
    world.run(Micros::from_ms(500));
    assert_eq!(world.leader(), Some(0));
    world
}

/// Proposes one entry after the other, each once the last is committed, and says how many were
/// within `span`.
fn commits_within(world: &mut World, span: Micros) -> u64 {
    let end = world.now + span;
    let before = world.core(0).status().commit;
    while world.now < end {
        let viewstamp = world.propose(0, b"entry".to_vec()).unwrap();
        let left = end.since(world.now);
        let index = viewstamp.index;
        world.run_until(left, |world| world.core(0).status().commit >= index);
    }
    world.core(0).status().commit.0 - before.0
}

#[test]
fn an_entry_costs_fewer_messages_and_reaches_everyone() {
    let [all, quorum_selection] = [false, true].map(|quorum_selection| {
        let mut world = nine(quorum_selection);
        let writes = world.writes;
        let commits = commits_within(&mut world, Micros::from_ms(500));
        let messages = (world.writes - writes) as f64 / commits as f64;
        world.run(Micros::from_ms(50));
        let last = world.core(0).status().last;
        for node in 1..9 {
            assert_eq!(world.core(node).status().last, last, "replica {node}");
            assert_eq!(world.nodes[node].cursor, Some(last.index));
        }
        messages
    });
    // Eight backups and their answers against four, and the others' now and then.
    assert!(
        quorum_selection < all * 0.9,
        "{quorum_selection} messages an entry, not {all}"
    );
}

#[test]
fn a_leader_goes_on_when_those_it_counted_on_die() {
    let mut world = nine(true);
    assert!(commits_within(&mut world, Micros::from_ms(100)) > 0);
    // Whoever they are, some of any four are counted on.
    for node in 1..5 {
        world.crash(node);
        let commits = commits_within(&mut world, Micros::from_ms(300));
        assert!(commits > 10, "{commits} commits without replica {node}");
        assert_eq!(world.leader(), Some(0));
    }
    let silent = world.core(0).matched(ReplicaId(1));
    assert!(silent < Some(world.core(0).status().commit));
}

#[test]
fn a_stopped_backup_costs_a_moment_and_no_election() {
    let mut world = nine(true);
    for node in 1..5 {
        world.pause(node, Micros::from_ms(400));
    }
    let commits = commits_within(&mut world, Micros::from_ms(300));
    assert!(commits > 10, "{commits}");
    world.run(Micros::from_ms(600));
    assert_eq!(world.leader(), Some(0));
    let last = world.core(0).status().last;
    assert!((0..9).all(|node| world.core(node).status().last == last));
}

/// Whoever they are, some of any four are counted on; that they are slow, and not dead, is found out.
#[test]
fn who_became_slow_is_not_counted_on_for_long() {
    let span = Micros::from_ms(500);
    for slow in [1..5, 5..9] {
        let mut world = nine(true);
        let before = commits_within(&mut world, span);
        slow.clone()
            .for_each(|node| world.slow[node] = Micros::from_ms(2));
        commits_within(&mut world, span);
        let after = commits_within(&mut world, span);
        assert!(after * 10 > before * 8, "{before}, then {after}: {slow:?}");
    }
}

#[test]
fn nothing_is_committed_before_as_many_as_are_awaited_have_answered() {
    for quorum_selection in [false, true] {
        let mut world = nine(quorum_selection);
        assert!(commits_within(&mut world, Micros::from_ms(100)) > 0);
        world.run(Micros::from_ms(50));
        assert_eq!(world.core(0).awaited(), None, "nothing is on its way");
        let mut most = 0;
        for round in 0..200 {
            let index = world.propose(0, b"entry".to_vec()).unwrap().index;
            let mut awaited = world.core(0).awaited();
            most = most.max(awaited.map_or(0, |it| it.count));
            while world.core(0).status().commit < index {
                awaited = world.core(0).awaited();
                let changed = |world: &World| {
                    let core = world.core(0);
                    core.awaited() != awaited || core.status().commit >= index
                };
                assert!(world.run_until(Micros::from_ms(500), changed));
            }
            let answered = |id| world.core(0).matched(id) >= Some(index);
            // Who is still behind with earlier entries is sent nothing, so it may wait for all.
            let missed = awaited
                .is_some_and(|it| it.from.iter().filter(|id| answered(*id)).count() < it.count);
            assert!(!missed, "round {round}");
        }
        assert_eq!(most, 4, "with the leader a majority of nine");
    }
}
