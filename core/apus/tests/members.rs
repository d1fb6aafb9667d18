//! How a group changes while it runs: one test a fear (Ongaro's thesis, §4).

mod network;

use apus::{Canary, Durability, EntryKind, Members, MembersError, Phase, ProposeError};
use network::{Setup, World};
use plover_types::{Micros, ReplicaId, ReplicaSet};

const BOTH: [Durability; 2] = [Durability::Memory, Durability::Disk];

fn set(ids: &[u8]) -> ReplicaSet {
    ReplicaSet::of(ids.iter().map(|id| ReplicaId(*id)))
}

fn setup(replicas: u8, voters: u8, durability: Durability) -> Setup {
    Setup {
        voters,
        any_voter_stands: true,
        manage_in_sync: false,
        ..Setup::new(7, replicas, durability)
    }
}

/// A group that only replicates its log, led by replica 0.
fn led(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.run(Micros::from_ms(500));
    assert_eq!(world.leader(), Some(0));
    world
}

fn change(world: &mut World, voters: &[u8], learners: &[u8]) -> Result<(), ProposeError> {
    let members = Members {
        voters: set(voters),
        learners: set(learners),
    };
    let leader = world.leader().expect("somebody leads");
    let addresses = b"where the newcomers are".to_vec();
    let proposed = world.propose_kind(leader, EntryKind::Members(members), addresses);
    proposed.map(|_| ())
}

/// Changes the group and waits until that is committed.
fn become_of(world: &mut World, voters: &[u8], learners: &[u8]) {
    let before = world.core(world.leader().unwrap()).status().commit;
    change(world, voters, learners).unwrap();
    let committed = |world: &World| {
        let leader = world.leader();
        leader.is_some_and(|leader| world.core(leader).status().commit > before)
    };
    assert!(world.run_until(Micros::from_ms(1000), committed));
}

fn append(world: &mut World, payload: &[u8]) {
    let leader = world.leader().expect("somebody leads");
    world.propose(leader, payload.to_vec()).unwrap();
    world.run(Micros::from_ms(100));
}

#[test]
fn a_replica_that_is_gone_for_good_is_replaced() {
    for durability in BOTH {
        let mut world = led(setup(4, 3, durability));
        append(&mut world, b"before");
        world.crash(1);
        become_of(&mut world, &[0, 2], &[]);
        become_of(&mut world, &[0, 2], &[3]);
        let caught_up = |world: &World| {
            let last = world.core(0).status().last.index;
            world.core(0).matched(ReplicaId(3)) == Some(last)
        };
        assert!(world.run_until(Micros::from_ms(1000), caught_up));
        become_of(&mut world, &[0, 2, 3], &[]);
        // The newcomer's vote counts, and what it holds does.
        world.crash(0);
        let another = |world: &World| world.leader().is_some_and(|leader| leader != 0);
        assert!(world.run_until(Micros::from_ms(3000), another));
        append(&mut world, b"after");
        assert_eq!(world.checks.payloads(), [&b"before"[..], b"after"]);
        assert_eq!(world.nodes[3].cursor, world.nodes[2].cursor);
    }
}

#[test]
fn a_learner_counts_for_nothing() {
    let mut world = led(setup(4, 3, Durability::Memory));
    become_of(&mut world, &[0, 1, 2], &[3]);
    world.run(Micros::from_ms(100));
    world.crash(1);
    world.crash(2);
    world.propose(0, b"held by two of four".to_vec()).unwrap();
    world.run(Micros::from_ms(50));
    let learner = world.core(3).status();
    assert_eq!(learner.last, world.core(0).status().last, "it holds it");
    world.run(Micros::from_ms(2000));
    assert!(
        world.checks.payloads().is_empty(),
        "a learner's copy counted"
    );
    world.crash(0);
    world.run(Micros::from_ms(3000));
    assert_ne!(world.core(3).status().phase, Phase::Leading);
}

#[test]
fn one_voter_at_a_time_and_one_change_after_the_other() {
    let mut world = led(setup(5, 3, Durability::Memory));
    let refused = |result| match result {
        Err(ProposeError::Members(why)) => why,
        other => panic!("{other:?}"),
    };
    let two = change(&mut world, &[0, 1, 2, 3, 4], &[]);
    assert_eq!(refused(two), MembersError::MoreThanOne);
    let swapped = change(&mut world, &[0, 1, 3], &[]);
    assert_eq!(refused(swapped), MembersError::MoreThanOne);
    let double = change(&mut world, &[0, 1, 2], &[2]);
    assert_eq!(refused(double), MembersError::NoGroup);
    let none = change(&mut world, &[], &[]);
    assert_eq!(refused(none), MembersError::NoGroup);
    change(&mut world, &[0, 1, 2, 3], &[]).unwrap();
    let pending = change(&mut world, &[0, 1, 2, 3, 4], &[]);
    assert_eq!(refused(pending), MembersError::ChangePending);
    world.run(Micros::from_ms(200));
    change(&mut world, &[0, 1, 2, 3, 4], &[]).unwrap();
}

/// The bug of the first published algorithm: a change that an older leader began may win
/// elsewhere, so a new leader must have committed something before it begins another.
#[test]
fn a_leader_changes_nothing_before_its_view_has_committed_something() {
    let mut world = led(setup(4, 3, Durability::Disk));
    world.crash(0);
    assert!(world.run_until(Micros::from_ms(3000), |world| world.leader().is_some()));
    let result = change(&mut world, &[1, 2], &[]);
    let young = ProposeError::Members(MembersError::ViewTooYoung);
    assert_eq!(result, Err(young));
    world.run(Micros::from_ms(200));
    change(&mut world, &[1, 2], &[]).unwrap();
}

#[test]
fn a_leader_that_is_removed_leads_until_that_is_committed_and_never_again() {
    for durability in BOTH {
        let mut world = led(setup(3, 3, durability));
        append(&mut world, b"before");
        change(&mut world, &[1, 2], &[]).unwrap();
        assert_eq!(world.leader(), Some(0), "it still has to commit that");
        let another = |world: &World| world.leader().is_some_and(|leader| leader != 0);
        assert!(world.run_until(Micros::from_ms(3000), another));
        append(&mut world, b"after");
        assert_eq!(world.core(0).status().phase, Phase::Following);
        // Not even when it is all that is left to ask.
        let view = world.core(0).status().view;
        world.run(Micros::from_ms(3000));
        assert_eq!(world.core(0).status().view, view);
        assert_eq!(world.checks.payloads(), [&b"before"[..], b"after"]);
    }
}

/// Replica 1 knows only three voters. It merges a log that names four, of which it has the
/// promises of two.
fn merges_a_log_of_a_larger_group(canary: Canary) -> World {
    let mut world = led(Setup {
        canary,
        ..setup(4, 3, Durability::Disk)
    });
    world.isolate(1);
    become_of(&mut world, &[0, 1, 2, 3], &[]);
    world.run(Micros::from_ms(200));
    assert_eq!(world.core(2).status().members.voters, set(&[0, 1, 2, 3]));
    assert_eq!(world.core(1).status().members.voters, set(&[0, 1, 2]));
    world.crash(0);
    world.heal();
    world.isolate(3);
    world.run(Micros::from_ms(5000));
    world
}

#[test]
fn a_majority_of_the_old_group_elects_nobody_once_a_log_names_the_new_one() {
    let mut world = merges_a_log_of_a_larger_group(Canary::None);
    assert_eq!(world.leader(), None);
    let merged = world.core(1).status().members.voters;
    assert_eq!(merged, set(&[0, 1, 2, 3]), "it did merge that log");
    world.heal();
    let led = |world: &World| world.leader().is_some_and(|it| world.lease_is_valid(it));
    assert!(world.run_until(Micros::from_ms(5000), led));
}

#[test]
fn the_test_before_this_one_can_fail() {
    let world = merges_a_log_of_a_larger_group(Canary::OldMajorityElects);
    assert_eq!(world.leader(), Some(1));
}

#[test]
fn a_group_whose_log_is_on_disk_goes_on_after_all_were_restarted() {
    let mut world = led(setup(3, 3, Durability::Disk));
    world.operator = false;
    append(&mut world, b"kept");
    for node in 0..3 {
        world.crash(node);
    }
    for node in 0..3 {
        world.start(node);
    }
    assert!(world.run_until(Micros::from_ms(3000), |world| world.leader().is_some()));
    append(&mut world, b"and more");
    assert_eq!(world.checks.payloads(), [&b"kept"[..], b"and more"]);
    assert_eq!(world.checks.generations(), 1);
}

#[test]
fn a_group_whose_log_was_memory_waits_for_the_operator() {
    let mut world = led(setup(3, 3, Durability::Memory));
    world.operator = false;
    append(&mut world, b"lost");
    for node in 0..3 {
        world.crash(node);
    }
    for node in 0..3 {
        world.start(node);
    }
    world.run(Micros::from_ms(3000));
    assert_eq!(world.leader(), None);
    assert!(world.nodes[0].empty);
}

/// Damage in the middle of a log takes back what was acknowledged, so its replica may not vote;
/// not even after another crash, when what it has copied so far looks like a whole log.
#[test]
fn a_replica_whose_disk_forgot_does_not_vote_before_it_has_recovered() {
    let mut world = led(setup(3, 3, Durability::Disk));
    append(&mut world, b"acknowledged");
    world.crash(2);
    world.nodes[2].disk.damage();
    world.cut(0, 2);
    world.cut(1, 2);
    world.start(2);
    world.run(Micros::from_ms(500));
    assert_eq!(world.core(2).status().phase, Phase::Recovering);
    world.crash(2);
    world.start(2);
    world.heal();
    world.crash(1);
    world.cut(0, 2);
    world.run(Micros::from_ms(2000));
    assert_eq!(world.core(2).status().phase, Phase::Recovering);
    world.heal();
    assert!(world.run_until(Micros::from_ms(3000), |world| {
        world.core(2).status().phase == Phase::Following
    }));
    append(&mut world, b"with its vote");
    assert_eq!(
        world.checks.payloads(),
        [&b"acknowledged"[..], b"with its vote"]
    );
}

/// It missed its dismissal, asks by the group it remembers, and reaches one that has not heard
/// the leader for a while.
#[test]
fn a_replica_that_has_left_unawares_deposes_nobody() {
    let mut world = led(setup(3, 3, Durability::Memory));
    world.isolate(2);
    become_of(&mut world, &[0, 1], &[]);
    world.run(Micros::from_ms(100));
    let view = world.core(0).status().view;
    world.heal();
    world.cut(0, 1);
    world.cut(0, 2);
    world.run(Micros::from_ms(3000));
    assert_eq!(world.core(2).status().members.voters, set(&[0, 1, 2]));
    assert_eq!(
        world.core(1).status().view,
        view,
        "nobody was promised anything"
    );
    world.heal();
    world.run(Micros::from_ms(1000));
    assert_eq!(world.leader(), Some(0));
    assert_eq!(world.core(0).status().view, view);
}

/// The only one that may stand missed how the group shrank: of those it remembers, a majority is
/// gone for good, and of those that are left, it has one.
#[test]
fn a_candidate_that_missed_a_shrinking_leads_the_group_that_is_left() {
    let mut world = led(Setup {
        any_voter_stands: false,
        ..setup(5, 5, Durability::Disk)
    });
    world.hold_state(1, true);
    world
        .propose_kind(0, EntryKind::InSync(set(&[0, 1])), Vec::new())
        .unwrap();
    world.run(Micros::from_ms(200));
    world.isolate(1);
    become_of(&mut world, &[0, 1, 2, 3], &[]);
    become_of(&mut world, &[0, 1, 2], &[]);
    world.run(Micros::from_ms(100));
    for gone in [0, 3, 4] {
        world.crash(gone);
    }
    world.heal();
    assert_eq!(world.core(1).status().members.voters.len(), 5);
    assert!(world.run_until(Micros::from_ms(5000), |world| world.leader() == Some(1)));
    assert_eq!(world.core(1).status().members.voters, set(&[0, 1, 2]));
}
