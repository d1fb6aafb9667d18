//! A leader that resigns says so, and another one leads at once. Each test checks one fear.

use crate::group::{Group, HEARTBEAT, LONG, TIMEOUT};
use apus::{Durability, EntryKind, Phase};
use plover_types::{Micros, ReplicaId};

/// The wire tag of a `Resigned`, after the version byte.
const RESIGNED: u8 = 12;

fn resign(group: &mut Group, stays: bool) {
    group.turn(0, |core, now, out| match stays {
        true => core.switch_over(now, out),
        false => core.hand_over(now, out),
    });
    group.settle();
    group.write_all();
    group.settle();
    group.write_all();
    group.settle();
}

#[test]
fn the_secondary_leads_at_once() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut group = Group::protected(durability);
        resign(&mut group, true);
        assert_eq!(group.leader(), Some(1), "at the same moment");
        assert_eq!(
            group.cores[1].predecessor_in_step(),
            Some(ReplicaId(0)),
            "it is told whose guest stays in step"
        );
        group.run(TIMEOUT);
        assert_eq!(group.leader(), Some(1));
        assert_eq!(group.status(0).leader, Some(ReplicaId(1)));
    }
}

#[test]
fn a_leader_at_fault_does_not_stay_in_step() {
    let mut group = Group::protected(Durability::Memory);
    resign(&mut group, false);
    assert_eq!(group.leader(), Some(1));
    assert_eq!(group.cores[1].predecessor_in_step(), None);
}

/// The witness is told nothing, and refuses. The old leader's vote is enough.
#[test]
fn one_message_is_enough() {
    let mut group = Group::protected(Durability::Memory);
    group.filter = Some(Box::new(|_, to, bytes| to == 2 && bytes[1] == RESIGNED));
    resign(&mut group, true);
    assert_eq!(group.leader(), Some(1));
}

/// All of them are lost: the group waits for a timeout, and somebody leads.
#[test]
fn a_lost_message_costs_a_timeout() {
    let mut group = Group::protected(Durability::Memory);
    group.filter = Some(Box::new(|_, _, bytes| bytes[1] == RESIGNED));
    resign(&mut group, true);
    assert_eq!(group.leader(), None);
    assert!(group.run_until(LONG, |group| group.leader().is_some()));
}

/// The candidate is gone: the leader that has resigned leads again.
#[test]
fn without_a_successor_the_old_leader_comes_back() {
    let mut group = Group::protected(Durability::Memory);
    group.crash(1);
    resign(&mut group, true);
    assert_eq!(group.leader(), None);
    assert!(group.run_until(LONG, |group| group.leader() == Some(0)));
}

/// The message comes late, and twice: the next leader is not hit.
#[test]
fn a_late_message_harms_nobody() {
    let mut group = Group::protected(Durability::Memory);
    group.turn(0, |core, now, out| core.switch_over(now, out));
    let late: Vec<_> = (group.wire.iter())
        .filter(|(_, _, bytes)| bytes[1] == RESIGNED)
        .cloned()
        .collect();
    assert_eq!(late.len(), 2);
    resign(&mut group, true);
    assert_eq!(group.leader(), Some(1));
    let view = group.status(1).view;
    for _ in 0..2 {
        for (from, to, bytes) in &late {
            group.carry(*from, *to, bytes);
        }
        group.run(Micros(2 * HEARTBEAT.0));
    }
    assert_eq!((group.leader(), group.status(1).view), (Some(1), view));
    assert_eq!(group.status(2).leader, Some(ReplicaId(1)));
}

/// Earlier messages of the old leader arrive after its resignation.
#[test]
fn words_from_before_are_no_sign_of_life() {
    let mut group = Group::protected(Durability::Memory);
    group.app(10);
    let words: Vec<_> = group.wire.drain(..).collect();
    assert!(!words.is_empty());
    group.cut(1, 2);
    group.filter = Some(Box::new(|from, to, _| (from, to) == (0, 1)));
    group.turn(0, |core, now, out| core.switch_over(now, out));
    group.settle();
    assert_eq!(group.status(2).leader, None);
    for (from, to, bytes) in words {
        if to == 2 {
            group.carry(from, to, &bytes);
        }
    }
    assert_eq!(group.status(2).leader, None);
}

/// Nothing that was committed before is lost, and what was proposed is in the next leader's log.
#[test]
fn proposals_go_before_the_message() {
    let mut group = Group::protected(Durability::Memory);
    let now = group.now;
    group.cores[0]
        .propose(now, EntryKind::App, vec![7])
        .expect("it leads");
    let last = group.status(0).last.index;
    resign(&mut group, true);
    assert_eq!(group.leader(), Some(1));
    assert!(group.status(1).commit >= last);
    let entry = group.cores[1].entry(last).expect("it is in the log");
    assert_eq!(entry.payload, [7]);
    assert_ne!(group.phase(0), Phase::Leading);
}
