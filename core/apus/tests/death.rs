//! A process dies on a living host, which says so. Each test checks one fear.

use crate::group::{Group, HEARTBEAT, LONG, TIMEOUT, config, plain_config};
use apus::{Canary, Config, Durability, Event, Phase};
use plover_types::{Incarnation, Micros, ReplicaId};

/// The wire tag of a `PreVote`, after the version byte.
const PRE_VOTE: u8 = 4;

/// The process that runs, or ran last, as this replica.
fn process(group: &Group, core: usize) -> Incarnation {
    Incarnation {
        replica: ReplicaId(core as u8),
        number: group.configs[core].seed,
    }
}

/// `to` is told that this process has died.
fn report(group: &mut Group, to: usize, dead: Incarnation) {
    group.apply(to, Event::ProcessDied(dead));
    group.settle();
    group.write_all();
    group.settle();
}

#[test]
fn a_dead_leader_is_followed_without_waiting() {
    let mut group = Group::protected(Durability::Memory);
    let dead = process(&group, 0);
    group.crash(0);
    report(&mut group, 2, dead);
    assert_eq!(group.phase(2), Phase::Following, "the witness only votes");
    assert_eq!(group.status(2).leader, None);
    report(&mut group, 1, dead);
    assert_eq!(group.leader(), Some(1), "at the same moment");
}

/// The report reaches the candidate alone. The candidate passes it on with its question.
#[test]
fn one_report_is_enough() {
    let mut group = Group::protected(Durability::Memory);
    let dead = process(&group, 0);
    group.crash(0);
    report(&mut group, 1, dead);
    assert_eq!(group.leader(), Some(1));
}

#[test]
fn without_a_candidate_a_report_changes_nothing() {
    let mut group = Group::protected(Durability::Memory);
    let dead = process(&group, 0);
    group.crash(0);
    group.crash(1);
    report(&mut group, 2, dead);
    group.run(LONG);
    assert_eq!(group.leader(), None);
}

/// A report that comes when the replica leads again, or that comes twice.
fn late_report(canary: Canary) -> Group {
    let configs = (0..3).map(|me| Config {
        canary,
        ..plain_config(me, 3, Durability::Disk)
    });
    let mut group = Group::of(configs.collect());
    group.run(TIMEOUT);
    let dead = process(&group, 0);
    let view = group.status(0).view;
    group.restart(0);
    // The others' questions are lost, so only replica 0 can win.
    group.filter = Some(Box::new(|from, _, bytes| from != 0 && bytes[1] == PRE_VOTE));
    let again = |group: &Group| group.leader() == Some(0) && group.status(0).view > view;
    assert!(group.run_until(Micros(60 * LONG.0), again));
    group.run(TIMEOUT);
    group.filter = None;
    for to in [1, 2, 1, 2] {
        report(&mut group, to, dead);
    }
    group.run(Micros(2 * HEARTBEAT.0));
    group
}

#[test]
fn a_late_report_does_not_harm_the_next_process() {
    let group = late_report(Canary::None);
    assert_eq!(group.leader(), Some(0));
    assert_eq!(group.status(1).leader, Some(ReplicaId(0)));
    assert_eq!(group.status(2).leader, Some(ReplicaId(0)));
}

#[cfg(feature = "canary")]
#[test]
fn a_late_report_that_counts_is_caught() {
    let group = late_report(Canary::MournTheLiving);
    assert_ne!(group.leader(), Some(0), "the bug deposes it");
}

/// Messages that the dead process had written arrive after the report.
#[test]
fn words_of_the_dead_are_no_sign_of_life() {
    let mut group = Group::protected(Durability::Memory);
    let dead = process(&group, 0);
    group.app(10);
    let last_words: Vec<_> = group.wire.drain(..).collect();
    assert!(!last_words.is_empty());
    group.crash(0);
    group.cut(1, 2);
    report(&mut group, 1, dead);
    assert_eq!(group.phase(1), Phase::PreVoting);
    for (from, to, bytes) in last_words {
        group.carry(from, to, &bytes);
    }
    assert_eq!(group.phase(1), Phase::PreVoting);
    assert_eq!(group.status(2).leader, Some(ReplicaId(0)), "not told");
    group.cut.clear();
    group.run(Micros(2 * HEARTBEAT.0));
    assert_eq!(group.leader(), Some(1));
}

/// The leader goes on without a backup that is dead as soon as it is told.
#[test]
fn a_leader_is_told_of_a_dead_backup() {
    let mut group = Group::protected(Durability::Memory);
    let dead = process(&group, 1);
    group.other.clear();
    let older = Incarnation {
        number: dead.number + 1,
        ..dead
    };
    report(&mut group, 0, older);
    assert_eq!(group.liveness(0), [], "another process of it");
    group.crash(1);
    report(&mut group, 0, dead);
    assert_eq!(group.liveness(0), [(1, false)]);
    report(&mut group, 0, dead);
    group.run(Micros(3 * TIMEOUT.0));
    assert_eq!(group.liveness(0), [(1, false)], "told once");
}

/// A backup that takes over from a dead leader of a pair goes on alone; a leader that is told of its
/// dead partner still counts heartbeats, unless nobody takes over from one that lives.
#[test]
fn in_a_pair_without_fencing_only_the_backup_believes_reports() {
    let pair = |fencing| {
        let configs = (0..2).map(|me| Config {
            pair: true,
            fencing,
            ..config(me, 2, Durability::Memory)
        });
        let mut group = Group::of(configs.collect());
        group.cores[1].set_holds_state(true);
        group.in_sync(&[0, 1]);
        group.run(TIMEOUT);
        group.other.clear();
        group
    };
    let mut group = pair(false);
    let dead = process(&group, 0);
    group.crash(0);
    report(&mut group, 1, dead);
    group.run(Micros(2 * HEARTBEAT.0));
    assert_eq!(group.leader(), Some(1));
    let mut group = pair(false);
    let dead = process(&group, 1);
    group.crash(1);
    report(&mut group, 0, dead);
    assert_eq!(group.liveness(0), []);
    group.run(LONG);
    assert_eq!(group.liveness(0), [(1, false)]);
    // With fencing nobody takes over from a leader that lives.
    let mut group = pair(true);
    let dead = process(&group, 1);
    group.crash(1);
    report(&mut group, 0, dead);
    assert_eq!(group.liveness(0), [(1, false)]);
    group.in_sync(&[0]);
}
