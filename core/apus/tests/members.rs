//! Changes of a running group's members (Ongaro's thesis, §4). Each test checks one fear.

use crate::group::{Group, LONG, TIMEOUT, plain_config, set};
use apus::{Durability, MembersError, Phase, ProposeError};
use plover_types::{Micros, ReplicaId};

/// `replicas`, of which the first `voters` are a group led by replica 0. Its log is all there is.
fn group(replicas: u8, voters: u8, durability: Durability) -> Group {
    let configs = (0..replicas).map(|me| plain_config(me, voters, durability));
    Group::of(configs.collect())
}

/// Changes the members and waits until that is committed.
fn become_of(group: &mut Group, voters: &[u8], learners: &[u8]) {
    let index = group.members(voters, learners).unwrap().index;
    let leader = group.leader().unwrap();
    assert!(group.run_until(LONG, |group| group.commit(leader) >= index));
}

#[test]
fn a_learner_counts_for_nothing() {
    let mut group = group(4, 3, Durability::Memory);
    become_of(&mut group, &[0, 1, 2], &[3]);
    group.run(TIMEOUT);
    group.crash(1);
    group.crash(2);
    let index = group.app(10);
    group.run(LONG);
    assert_eq!(group.status(3).last, group.status(0).last, "it holds it");
    assert_eq!(group.cores[0].matched(ReplicaId(3)), Some(index));
    assert!(group.commit(0) < index, "a learner's copy counted");
    group.crash(0);
    group.run(Micros(3 * LONG.0));
    assert_eq!(group.leader(), None);
}

#[test]
fn one_voter_at_a_time_and_one_change_after_the_other() {
    let mut group = group(5, 3, Durability::Memory);
    let refused = |result| match result {
        Err(ProposeError::Members(why)) => why,
        other => panic!("{other:?}"),
    };
    let two = group.members(&[0, 1, 2, 3, 4], &[]);
    assert_eq!(refused(two), MembersError::MoreThanOne);
    let swapped = group.members(&[0, 1, 3], &[]);
    assert_eq!(refused(swapped), MembersError::MoreThanOne);
    let double = group.members(&[0, 1, 2], &[2]);
    assert_eq!(refused(double), MembersError::NoGroup);
    let none = group.members(&[], &[]);
    assert_eq!(refused(none), MembersError::NoGroup);
    group.members(&[0, 1, 2, 3], &[]).unwrap();
    let pending = group.members(&[0, 1, 2, 3, 4], &[]);
    assert_eq!(refused(pending), MembersError::ChangePending);
    group.run(TIMEOUT);
    group.members(&[0, 1, 2, 3, 4], &[]).unwrap();
}

/// The bug of the first published algorithm: a change that an older leader began may win
/// elsewhere, so a new leader must have committed something before it begins another.
#[test]
fn a_leader_changes_nothing_before_its_view_has_committed_something() {
    let mut group = group(4, 3, Durability::Disk);
    group.crash(0);
    // Its entries do not arrive, so it commits nothing.
    group.filter = Some(Box::new(|_, _, bytes| bytes[1] == 0));
    assert!(group.run_until(LONG, |group| group.leader().is_some()));
    let young = ProposeError::Members(MembersError::ViewTooYoung);
    assert_eq!(group.members(&[1, 2], &[]), Err(young));
    group.filter = None;
    group.run(TIMEOUT);
    group.members(&[1, 2], &[]).unwrap();
}

#[test]
fn a_leader_that_is_removed_leads_until_that_is_committed_and_never_again() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut group = group(3, 3, durability);
        let index = group.members(&[1, 2], &[]).unwrap().index;
        assert_eq!(group.leader(), Some(0), "it still has to commit that");
        let another = |group: &Group| group.leader().is_some_and(|leader| leader != 0);
        assert!(group.run_until(LONG, another));
        assert!(group.commit(0) >= index);
        let view = group.status(0).view;
        group.run(Micros(3 * LONG.0));
        assert_eq!(group.phase(0), Phase::Following);
        assert_eq!(group.status(0).view, view);
    }
}

/// A removed replica missed its dismissal. It asks the members that its log names for pre-votes, and
/// reaches one that has not heard the leader for a while.
#[test]
fn a_removed_replica_that_does_not_know_it_deposes_no_leader() {
    let mut group = group(3, 3, Durability::Memory);
    group.isolate(2);
    become_of(&mut group, &[0, 1], &[]);
    group.run(TIMEOUT);
    let view = group.status(0).view;
    group.cut.clear();
    group.isolate(0);
    group.run(Micros(3 * LONG.0));
    assert_eq!(group.status(2).members.voters, set(&[0, 1, 2]));
    assert_eq!(group.status(1).view, view, "nobody was promised anything");
    group.cut.clear();
    group.run(LONG);
    assert_eq!((group.leader(), group.status(0).view), (Some(0), view));
}

/// The only replica that may stand missed how the group shrank. A majority of the members that its
/// log names is gone for good, but it reaches a majority of the present ones.
#[test]
fn a_candidate_that_missed_a_shrinking_leads_the_group_that_is_left() {
    let mut group = Group::new(5, Durability::Disk);
    group.cores[1].set_holds_state(true);
    group.in_sync(&[0, 1]);
    group.run(TIMEOUT);
    group.isolate(1);
    become_of(&mut group, &[0, 1, 2, 3], &[]);
    become_of(&mut group, &[0, 1, 2], &[]);
    group.run(TIMEOUT);
    for gone in [0, 3, 4] {
        group.crash(gone);
    }
    group.cut.clear();
    assert_eq!(group.status(1).members.voters.len(), 5);
    assert!(group.run_until(Micros(5 * LONG.0), |group| group.leader() == Some(1)));
    assert_eq!(group.status(1).members.voters, set(&[0, 1, 2]));
}

/// A majority of the old members is not enough once the merged log names the new ones: the candidate
/// has the promises of two of four.
#[test]
fn a_majority_of_the_old_members_does_not_elect() {
    let mut group = group(4, 3, Durability::Disk);
    group.isolate(1);
    become_of(&mut group, &[0, 1, 2, 3], &[]);
    group.run(TIMEOUT);
    group.crash(0);
    group.cut.clear();
    group.isolate(3);
    group.run(Micros(5 * LONG.0));
    assert_eq!(group.leader(), None);
    let merged = group.status(1).members.voters;
    assert_eq!(merged, set(&[0, 1, 2, 3]), "it did merge that log");
    group.cut.clear();
    assert!(group.run_until(Micros(5 * LONG.0), |group| group.leader().is_some()));
}
