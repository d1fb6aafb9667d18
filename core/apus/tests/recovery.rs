//! Forgetting and recovering. Each test checks one fear.

use crate::group::{Disk, Group, LONG, TIMEOUT, config, plain_config, set};
use apus::{BootstrapError, Durability, Phase};
use plover_types::{Index, Micros, ReplicaId, View};

const BOTH: [Durability; 2] = [Durability::Memory, Durability::Disk];

fn restart_all(group: &mut Group) {
    (0..3).for_each(|core| group.crash(core));
    (0..3).for_each(|core| group.start(core));
    group.other.clear();
    group.run(Micros(3 * LONG.0));
}

/// All storage was moved away: no replica knows of a log, and the first leader's guest may be old.
#[test]
fn a_group_whose_promises_are_lost_is_not_begun_without_the_operator() {
    for durability in BOTH {
        let told = View::new(9, ReplicaId(1));
        let mut group = Group::protected(durability);
        for disk in &mut group.disks {
            *disk = Disk::lost(told);
        }
        restart_all(&mut group);
        assert_eq!(group.leader(), None);
        assert_eq!(group.found_empty(0), Some(false), "the operator is told");
        group.bootstrap(0);
        assert!(group.leads_soon(0));
        assert!(group.status(0).view > told, "newer than what was told");
    }
}

/// A recovered replica has to store its promise again. Otherwise it would, at its next start, wait
/// for a replica that is gone.
#[test]
fn a_promise_that_was_lost_is_given_again() {
    for durability in BOTH {
        let mut group = Group::protected(durability);
        let view = group.status(0).view;
        group.crash(2);
        group.disks[2] = Disk::lost(view);
        group.start(2);
        group.run(Micros(5 * TIMEOUT.0));
        assert_eq!(group.phase(2), Phase::Following, "the others know");
        assert_eq!(group.status(0).view, view);
        group.isolate(1);
        group.restart(2);
        assert!(group.run_until(LONG, |group| group.phase(2) == Phase::Following));
    }
}

#[test]
fn a_first_start_waits_for_everyone() {
    let mut group = Group::unled((0..3).map(|me| config(me, 3, Durability::Memory)).collect());
    group.crash(2);
    group.run(LONG);
    assert_eq!(
        group.found_empty(0),
        None,
        "the missing one might hold a guest"
    );
    group.start(2);
    group.run(LONG);
    assert_eq!(group.found_empty(0), Some(true), "which needs no operator");
}

#[test]
fn a_leader_and_replicas_without_memory_go_on() {
    // Without the third, and when all backups have forgotten.
    for (dead, restarted) in [(Some(1), vec![2]), (None, vec![1, 2])] {
        let mut group = Group::protected(Durability::Memory);
        group.app(10);
        group.run(TIMEOUT);
        if let Some(core) = dead {
            group.crash(core);
            group.in_sync(&[0]);
        }
        for core in &restarted {
            group.restart(*core);
            assert_eq!(group.phase(*core), Phase::Recovering);
        }
        group.run(Micros(5 * TIMEOUT.0));
        let index = group.app(10);
        group.run(TIMEOUT);
        for core in restarted {
            assert_eq!(group.phase(core), Phase::Following);
            assert_eq!(group.delivered_to(core), index);
        }
    }
}

#[test]
fn a_restart_shorter_than_the_timeout_is_told_to_the_leaders_replica() {
    for durability in BOTH {
        let mut group = Group::protected(durability);
        group.other.clear();
        group.restart(1);
        group.run(Micros(4 * TIMEOUT.0));
        assert_eq!(group.liveness(0), [(1, false), (1, true)]);
    }
}

#[test]
fn a_silent_peer_is_told_dead_once_and_alive_once() {
    let mut group = Group::protected(Durability::Memory);
    group.other.clear();
    group.isolate(2);
    group.run(LONG);
    group.cut.clear();
    group.run(LONG);
    assert_eq!(group.liveness(0), [(2, false), (2, true)]);
}

#[test]
fn when_all_forget_none_leads_without_the_operator() {
    for durability in BOTH {
        let mut group = Group::protected(durability);
        let last = group.app(10);
        group.run(TIMEOUT);
        group.cores[0].trim(last);
        group.run(TIMEOUT);
        let generation = group.cores[0].generation();
        restart_all(&mut group);
        assert_eq!(group.leader(), None);
        assert_eq!(group.found_empty(0), Some(false), "the operator is told");
        let elsewhere = BootstrapError::NotFirstLeader(ReplicaId(0));
        assert_eq!(group.cores[1].check_bootstrap(), Err(elsewhere));
        assert_eq!(group.cores[0].check_bootstrap(), Ok(()));
        group.bootstrap(0);
        assert!(group.leads_soon(0));
        assert!(group.cores[0].generation() > generation);
        assert_eq!(group.app(10), Index(2), "a no-op and a value");
        group.run(TIMEOUT);
        assert!((0..3).all(|core| group.delivered_to(core) == Index(2)));
    }
}

#[test]
fn a_secondary_that_survives_alone_goes_on_when_the_others_come_back() {
    let mut group = Group::protected(Durability::Memory);
    let last = group.app(10);
    group.run(TIMEOUT);
    group.restart(0);
    group.restart(2);
    assert!(group.leads_soon(1));
    assert!(group.commit(1) >= last);
    assert!(group.run_until(LONG, |group| group.phase(0) == Phase::Following));
}

/// The leader dropped it, which it does not know, and those who do have forgotten.
#[test]
fn a_secondary_that_survives_alone_does_not_serve_from_a_state_that_may_be_old() {
    let mut group = Group::protected(Durability::Memory);
    group.isolate(1);
    group.in_sync(&[0]);
    group.app(10);
    group.restart(0);
    group.restart(2);
    group.cut.clear();
    group.other.clear();
    group.run(Micros(5 * LONG.0));
    assert_eq!(group.leader(), None);
    assert_eq!(group.found_empty(0), None, "somebody still holds the guest");
    let refused = group.cores[0].check_bootstrap();
    assert_eq!(refused, Err(BootstrapError::NotEmpty));
}

/// Without the others' milestones its own log says nothing, however often they forget.
#[test]
fn a_replica_that_forgets_again_still_knows_its_milestone() {
    let mut group = Group::protected(Durability::Memory);
    group.isolate(1);
    group.in_sync(&[0]);
    for _ in 0..3 {
        group.restart(2);
        group.run(Micros(2 * TIMEOUT.0));
    }
    group.restart(0);
    group.cut.clear();
    group.run(Micros(5 * LONG.0));
    assert_eq!(group.leader(), None);
}

#[test]
fn a_replica_that_missed_reclaimed_entries_installs_a_snapshot() {
    for durability in BOTH {
        let mut group = Group::protected(durability);
        group.isolate(2);
        let mut last = Index(0);
        for _ in 0..50 {
            last = group.app(50);
        }
        group.run(TIMEOUT);
        group.cores[0].trim(last);
        // A newer set after the base is not taken for the one at the base.
        group.in_sync(&[0]);
        group.cut.clear();
        group.other.clear();
        group.run(Micros(5 * TIMEOUT.0));
        let installed = group
            .other
            .iter()
            .find_map(|(core, command)| match command {
                apus::Command::InstallSnapshot { configuration, .. } if *core == 2 => {
                    Some(configuration.in_sync)
                }
                _ => None,
            });
        assert_eq!(installed, Some(set(&[0, 1])));
        let (leader, backup) = (group.status(0), group.status(2));
        assert_eq!(leader.base, last);
        assert_eq!((backup.base, backup.commit), (leader.base, leader.commit));
        assert_eq!(backup.in_sync, leader.in_sync);
        // And from its disk it comes back to the same place.
        group.restart(2);
        group.run(Micros(5 * TIMEOUT.0));
        assert_eq!(group.commit(2), leader.commit);
    }
}

/// The first leader's log is on disk, and no other replica has any of it. The others may have been
/// wiped, for all they know, so they do not vote. Nothing was acknowledged, so the operator can empty
/// the first leader's directory and bootstrap the group.
#[test]
fn a_first_leader_that_no_replica_has_heard_waits_for_the_operator() {
    let configs = (0..3).map(|me| plain_config(me, 3, Durability::Disk));
    let mut group = Group::unled(configs.collect());
    group.filter = Some(Box::new(|from, _, bytes| from == 0 && bytes[1] == 0));
    group.run(TIMEOUT);
    assert_eq!(group.found_empty(0), Some(true));
    group.bootstrap(0);
    group.run(Micros(TIMEOUT.0 / 2));
    assert_eq!(group.leader(), Some(0));
    group.crash(0);
    group.filter = None;
    group.start(0);
    group.other.clear();
    group.run(Micros(5 * LONG.0));
    assert_eq!((group.leader(), group.found_empty(0)), (None, None));
    group.crash(0);
    group.disks[0] = Disk::default();
    group.start(0);
    group.run(LONG);
    group.bootstrap(0);
    assert!(group.leads_soon(0));
    let index = group.app(10);
    assert!(group.run_until(LONG, |group| group.commit(2) >= index));
}

#[test]
fn a_log_on_disk_is_all_that_a_group_without_a_guest_needs() {
    for (durability, leads) in [(Durability::Disk, true), (Durability::Memory, false)] {
        let configs = (0..3).map(|me| plain_config(me, 3, durability));
        let mut group = Group::of(configs.collect());
        let index = group.app(10);
        group.run(TIMEOUT);
        restart_all(&mut group);
        assert_eq!(group.leader().is_some(), leads);
        assert_eq!(group.found_empty(0), (!leads).then_some(false));
        assert_eq!(group.commit(0) >= index, leads);
    }
}

// ---- the configured members: a replica without a log needs their answers. If it waits for a
// replica that is gone, the operator corrects its configuration, and it goes on.

/// A group whose log is all there is, in memory.
fn plain() -> Group {
    let configs = (0..3).map(|me| apus::Config {
        quorum_selection: true,
        ..plain_config(me, 3, Durability::Memory)
    });
    Group::of(configs.collect())
}

#[test]
fn a_group_that_lost_its_log_waits_for_every_configured_member() {
    // Replica 1 is gone for good, and the others have forgotten the log, too.
    for (told, is_reported) in [(set(&[0, 1, 2]), false), (set(&[0, 2]), true)] {
        let mut group = plain();
        group.crash(1);
        group.other.clear();
        for core in [0, 2] {
            group.configs[core].members = told;
            group.restart(core);
        }
        group.run(Micros(2 * LONG.0));
        assert_eq!(group.found_empty(0), is_reported.then_some(false));
        // A bootstrap has an effect only if the group was reported empty.
        group.bootstrap(0);
        group.run(Micros(5 * TIMEOUT.0));
        assert_eq!(group.phase(0) == Phase::Leading, is_reported);
        if is_reported {
            let status = group.status(0);
            assert_eq!(status.commit, status.last.index, "both hold it");
            assert_eq!(group.phase(2), Phase::Following);
        }
    }
}

/// Otherwise two majorities of different groups could commit different entries in one generation.
#[test]
fn the_group_of_a_generation_is_the_one_that_its_first_leader_was_told_of() {
    let mut group = plain();
    (0..3).for_each(|core| group.crash(core));
    group.configs[0].members = set(&[0, 2]);
    group.start(0);
    group.start(2);
    group.run(Micros(2 * LONG.0));
    group.bootstrap(0);
    group.run(Micros(5 * TIMEOUT.0));
    for core in [0, 2] {
        let status = group.status(core);
        assert_eq!(status.members.voters, set(&[0, 2]), "replica {core}");
        assert_eq!(status.commit, status.last.index, "replica {core}");
    }
}

#[test]
fn a_wiped_replica_waits_for_the_members_that_others_name() {
    let there = [
        (set(&[2, 3, 4]), Phase::Recovering),
        (set(&[0, 1, 2]), Phase::Following),
    ];
    for (told, phase) in there {
        let mut group = plain();
        group.crash(2);
        group.disks[2] = Disk::default();
        group.configs[2].members = told;
        group.configs[2].first_leader = ReplicaId(2);
        group.start(2);
        group.run(Micros(2 * LONG.0));
        assert_eq!(group.phase(2), phase, "told {told}");
        assert_eq!(group.phase(0), Phase::Leading, "which it does not disturb");
    }
}
