//! Forgetting and recovering: one test a fear.

mod network;

use apus::{BootstrapError, Configuration, Durability, EntryKind, Members, Phase};
use network::disk::Disk;
use network::{Setup, World};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View};

fn protected(durability: Durability) -> World {
    let mut setup = Setup::new(11, 3, durability);
    setup.manage_in_sync = false;
    let mut world = World::new(setup);
    world.run(Micros::from_ms(500));
    world.hold_state(1, true);
    let both = ReplicaSet::of([ReplicaId(0), ReplicaId(1)]);
    world
        .propose_kind(0, EntryKind::InSync(both), Vec::new())
        .unwrap();
    world.run(Micros::from_ms(100));
    world
}

fn recovering(world: &World, node: usize) -> bool {
    world.core(node).status().phase == Phase::Recovering
}

#[test]
fn a_group_that_never_ran_needs_no_word_of_the_operator() {
    for (replicas, durability) in [
        (1, Durability::Memory),
        (3, Durability::Memory),
        (3, Durability::Disk),
        (5, Durability::Disk),
    ] {
        let mut world = World::new(Setup::new(3, replicas, durability));
        world.operator = false;
        world.run(Micros::from_ms(1000));
        assert_eq!(world.leader(), Some(0));
        for node in world.up() {
            assert_eq!(world.core(node).status().leader, Some(ReplicaId(0)));
        }
    }
}

/// As when all storage was moved away: nobody knows of a log, and the first leader's guest may be old.
#[test]
fn a_group_whose_promises_are_lost_is_not_begun_without_the_operator() {
    for (durability, told) in [
        (Durability::Memory, View::new(9, ReplicaId(1))),
        (Durability::Disk, View::new(9, ReplicaId(1))),
        (Durability::Memory, View::NONE),
    ] {
        let mut world = protected(durability);
        for node in 0..3 {
            world.crash(node);
            world.nodes[node].disk.lose(told);
        }
        world.operator = false;
        for node in 0..3 {
            world.start(node);
        }
        world.run(Micros::from_ms(3000));
        assert_eq!(world.leader(), None);
        assert!(world.nodes[0].empty, "the operator is told");
        if told == View::NONE {
            // Views would be led a second time, which the checks take for two leaders.
            continue;
        }
        // It starts anew, and is told again.
        world.operator = true;
        world.restart(0);
        assert!(world.run_until(Micros::from_ms(3000), |world| world.leader() == Some(0)));
        let view = world.core(0).status().view;
        assert!(
            view > told,
            "{view}: the new generation is newer than what was told"
        );
    }
}

/// The fear: it has its vote again and its promise is nowhere, so that at its next start it waits for a
/// replica that is gone.
#[test]
fn a_promise_that_was_lost_is_given_again() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(durability);
        let view = world.core(0).status().view;
        world.crash(2);
        world.nodes[2].disk.lose(view);
        world.start(2);
        world.run(Micros::from_ms(500));
        assert!(!recovering(&world, 2), "the others know");
        assert_eq!(world.core(0).status().view, view);
        world.cut(0, 1);
        world.cut(1, 2);
        world.restart(2);
        let back = |world: &World| !recovering(world, 2);
        assert!(world.run_until(Micros::from_ms(1000), back));
    }
}

#[test]
fn a_first_start_waits_for_everyone() {
    let setup = Setup::new(3, 3, Durability::Memory);
    let mut world = World::new(setup);
    world.crash(2);
    world.run(Micros::from_ms(3000));
    assert_eq!(world.leader(), None, "the missing one might hold a guest");
    world.start(2);
    world.run(Micros::from_ms(1000));
    assert_eq!(world.leader(), Some(0));
}

#[test]
fn a_replica_without_memory_does_not_vote_away_what_it_acknowledged() {
    let mut world = protected(Durability::Memory);
    // Committed by the leader and the witness alone.
    world.cut(0, 1);
    world.propose(0, b"acknowledged".to_vec()).unwrap();
    world.run(Micros::from_ms(60));
    assert_eq!(world.checks.payloads(), [b"acknowledged"]);
    // The witness forgets it, and only the secondary, which lacks it, is there.
    world.cut(0, 2);
    world.restart(2);
    world.run(Micros::from_ms(3000));
    assert!(recovering(&world, 2));
    assert_eq!(world.checks.elections, 1);
    world.heal();
    world.run(Micros::from_ms(500));
    assert_eq!(world.leader(), Some(0));
    for node in 0..3 {
        assert!(!recovering(&world, node));
        assert_eq!(
            world.nodes[node].cursor,
            Some(world.core(0).status().commit)
        );
    }
}

#[test]
fn a_leader_and_a_replica_without_memory_go_on_without_the_third() {
    let mut world = protected(Durability::Memory);
    world.crash(1);
    world.restart(2);
    world.run(Micros::from_ms(500));
    assert_eq!(world.core(2).status().phase, Phase::Following);
    world.propose(0, b"two are enough".to_vec()).unwrap();
    world.run(Micros::from_ms(100));
    assert_eq!(world.checks.payloads(), [b"two are enough"]);
}

#[test]
fn a_leader_whose_backups_all_forgot_teaches_them() {
    let mut world = protected(Durability::Memory);
    world.propose(0, b"taught".to_vec()).unwrap();
    world.run(Micros::from_ms(50));
    world.restart(1);
    world.restart(2);
    world.run(Micros::from_ms(500));
    assert_eq!(world.leader(), Some(0));
    for node in 0..3 {
        assert!(!recovering(&world, node));
        assert_eq!(
            world.nodes[node].cursor,
            Some(world.core(0).status().commit)
        );
    }
}

#[test]
fn a_restart_shorter_than_the_timeout_is_told_to_the_leaders_replica() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(durability);
        world.peer_log.clear();
        world.restart(1);
        world.run(Micros::from_ms(400));
        assert_eq!(world.peer_log, [(0, 1, false), (0, 1, true)]);
    }
}

#[test]
fn a_silent_peer_is_told_dead_once_and_alive_once() {
    let mut world = protected(Durability::Memory);
    world.peer_log.clear();
    world.isolate(2);
    world.run(Micros::from_ms(1000));
    world.heal();
    world.run(Micros::from_ms(500));
    assert_eq!(world.peer_log, [(0, 2, false), (0, 2, true)]);
}

#[test]
fn when_all_forget_nobody_leads_without_the_operator() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(durability);
        world.operator = false;
        for value in 0..5 {
            world.propose(0, vec![value]).unwrap();
        }
        world.run(Micros::from_ms(100));
        world.trim(0);
        world.run(Micros::from_ms(100));
        for node in 0..3 {
            world.crash(node);
        }
        for node in 0..3 {
            world.start(node);
        }
        world.run(Micros::from_ms(3000));
        assert_eq!(world.leader(), None);
        assert!(world.nodes[0].empty, "the operator is told");
        let elsewhere = BootstrapError::NotFirstLeader(ReplicaId(0));
        assert_eq!(world.core(1).check_bootstrap(), Err(elsewhere));
        assert_eq!(world.core(0).check_bootstrap(), Ok(()));
        world.operator = true;
        world.restart(0);
        world.run(Micros::from_ms(1000));
        assert_eq!(world.leader(), Some(0));
        assert_eq!(world.checks.generations(), 2);
        world.propose(0, b"second generation".to_vec()).unwrap();
        world.run(Micros::from_ms(100));
        assert_eq!(world.checks.payloads(), [b"second generation"]);
        for node in 0..3 {
            assert_eq!(
                world.nodes[node].cursor,
                Some(Index(2)),
                "a no-op and a value"
            );
        }
    }
}

#[test]
fn a_dead_guest_of_one_does_not_leave_its_witnesses_waiting_for_ever() {
    // Only the leader ever held the guest; the others have logs but nothing to run them on.
    let mut world = World::new(Setup {
        manage_in_sync: false,
        ..Setup::new(5, 3, Durability::Memory)
    });
    world.run(Micros::from_ms(500));
    world.propose(0, b"first generation".to_vec()).unwrap();
    world.run(Micros::from_ms(100));
    world.restart(0);
    world.run(Micros::from_ms(1000));
    assert_eq!((world.leader(), world.checks.generations()), (Some(0), 2));
    for node in 0..3 {
        assert_eq!(world.core(node).status().leader, Some(ReplicaId(0)));
    }
}

#[test]
fn a_secondary_that_survives_alone_does_not_serve_from_what_may_be_old() {
    let mut world = protected(Durability::Memory);
    world.crash(0);
    world.crash(2);
    world.start(0);
    world.start(2);
    world.run(Micros::from_ms(5000));
    assert_eq!(world.leader(), None);
    assert!(!world.nodes[0].empty, "somebody still holds the guest");
    let refused = world.core(0).check_bootstrap();
    assert_eq!(refused, Err(BootstrapError::NotEmpty));
}

#[test]
fn with_logs_on_disk_the_surviving_secondary_leads() {
    let mut world = protected(Durability::Disk);
    world.propose(0, b"on disk".to_vec()).unwrap();
    world.run(Micros::from_ms(100));
    world.restart(0);
    world.restart(2);
    assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(1)));
    world.run(Micros::from_ms(300));
    assert_eq!(world.checks.payloads(), [b"on disk"]);
    assert_eq!(world.nodes[0].cursor, world.nodes[1].cursor);
}

#[test]
fn a_replica_that_missed_what_was_reclaimed_jumps() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(durability);
        world.isolate(2);
        for value in 0..50 {
            world.propose(0, vec![value; 50]).unwrap();
        }
        world.run(Micros::from_ms(200));
        world.trim(0);
        // A newer set after the base must not be taken for the one at the base.
        let all = ReplicaSet(0b111);
        world
            .propose_kind(0, EntryKind::InSync(all), Vec::new())
            .unwrap();
        world.heal();
        world.run(Micros::from_ms(500));
        assert_eq!(world.nodes[2].jumped_to, Some(ReplicaSet(0b011)));
        let (leader, jumper) = (world.core(0).status(), world.core(2).status());
        assert!(leader.base > Index(40));
        assert_eq!((jumper.base, jumper.commit), (leader.base, leader.commit));
        assert_eq!(
            jumper.in_sync, leader.in_sync,
            "the set at the base came along"
        );
        // And from its disk it comes back to the same place.
        world.restart(2);
        world.run(Micros::from_ms(500));
        assert_eq!(world.core(2).status().commit, leader.commit);
    }
}

/// Its log is on disk, and no other replica has any of it. For all the others know they were wiped, so
/// they vote for nobody. Nothing can have been acknowledged: with an empty directory of its own, the
/// operator's word helps.
#[test]
fn a_first_leader_that_nobody_has_heard_waits_for_a_person() {
    let mut world = World::new(Setup {
        any_voter_stands: true,
        manage_in_sync: false,
        ..Setup::new(17, 3, Durability::Disk)
    });
    world.operator = false;
    let is_append = |bytes: &[u8]| bytes[1] == 0;
    world.filter = Some(Box::new(move |from, _, bytes| {
        from == 0 && is_append(bytes)
    }));
    assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(0)));
    world.run(Micros::from_ms(100));
    world.crash(0);
    world.filter = None;
    world.start(0);
    world.run(Micros::from_ms(5000));
    assert_eq!((world.leader(), world.nodes[0].empty), (None, false));
    world.crash(0);
    let first = Configuration {
        in_sync: ReplicaSet(0b001),
        members: Members::of(ReplicaSet(0b111)),
    };
    world.nodes[0].disk = Disk::new(first);
    world.operator = true;
    world.start(0);
    assert!(world.run_until(Micros::from_ms(3000), |world| world.leader() == Some(0)));
    world.propose(0, b"begun".to_vec()).unwrap();
    world.run(Micros::from_ms(100));
    assert_eq!(world.checks.payloads(), [b"begun"]);
}
