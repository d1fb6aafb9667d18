//! Two replicas without a third. Each test checks one fear.

use crate::group::{Group, HEARTBEAT, TIMEOUT, config, set};
use apus::{Command, Config, Durability, EntryKind, Event, Phase};
use plover_types::{Index, Micros, ReplicaId};

/// Replica 0 leads, and both are in sync.
fn pair_of(durability: Durability, fencing: bool) -> Group {
    let config = |me| Config {
        pair: true,
        fencing,
        ..config(me, 2, durability)
    };
    let mut group = Group::of(vec![config(0), config(1)]);
    group.cores[1].set_holds_state(true);
    group
        .propose(EntryKind::InSync(set(&[0, 1])), 0)
        .expect("the leader proposes");
    run(&mut group, BRIEF, &[0, 1]);
    assert_eq!(group.status(1).in_sync, set(&[0, 1]));
    group
}

fn pair_with(durability: Durability) -> Group {
    pair_of(durability, false)
}

fn pair() -> Group {
    pair_with(Durability::Memory)
}

/// Time in which `awake` replicas run; messages pass between them if both do, and wait for those
/// that do not.
fn run(group: &mut Group, span: Micros, awake: &[usize]) {
    group.stopped = (0..2).filter(|core| !awake.contains(core)).collect();
    group.run(span);
    group.stopped.clear();
}

/// The same while all messages are lost.
fn run_cut(group: &mut Group, span: Micros, awake: &[usize]) {
    group.wire.clear();
    group.cut(0, 1);
    run(group, span, awake);
    group.cut.clear();
}

/// Long enough for a replica to notice a silence and act on it.
const LONG: Micros = Micros(TIMEOUT.0 * 4);
/// Long enough for some messages.
const BRIEF: Micros = Micros(HEARTBEAT.0 * 2);

fn leads(group: &Group, core: usize) -> bool {
    group.cores[core].status().phase == Phase::Leading
}

/// The leader, told that the other one is silent, goes on without it as the brain would.
fn drop_partner(group: &mut Group) -> Index {
    let silent = |(core, command): &(usize, Command)| {
        *core == 0 && matches!(command, Command::PeerAlive { alive: false, .. })
    };
    assert!(group.other.iter().any(silent), "nobody noticed");
    let alone = EntryKind::InSync(set(&[0]));
    group.propose(alone, 0).expect("it leads").index
}

#[test]
fn the_secondary_of_a_dead_leader_leads_alone() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut group = pair_with(durability);
        let known = group.app(100);
        run(&mut group, BRIEF, &[0, 1]);
        run_cut(&mut group, LONG, &[1]);
        assert!(leads(&group, 1));
        assert_eq!(group.cores[1].generation(), group.status(1).view);
        group
            .propose_on(1, EntryKind::InSync(set(&[1])), 0)
            .unwrap();
        run_cut(&mut group, HEARTBEAT, &[1]);
        assert_eq!(group.commit(1), group.status(1).last.index);
        assert!(group.delivered_at(1).contains(&known.0), "nothing is lost");
        assert_eq!(group.cores[1].lease_until(), Micros::NEVER);
    }
}

#[test]
fn a_leader_commits_alone_only_without_a_partner_in_sync() {
    let mut group = pair();
    let first = group.app(10);
    run_cut(&mut group, LONG, &[0]);
    assert!(group.commit(0) < first, "its partner may lead without it");
    assert!(group.cores[0].lease_until() < group.now);
    let alone = drop_partner(&mut group);
    assert_eq!(group.commit(0), alone);
    assert_eq!(group.cores[0].lease_until(), Micros::NEVER);
    let later = group.app(10);
    assert_eq!(group.commit(0), later);
}

#[test]
fn a_replica_outside_the_in_sync_set_does_not_lead() {
    let mut group = pair();
    group
        .propose(EntryKind::InSync(set(&[0])), 0)
        .expect("it leads");
    run(&mut group, BRIEF, &[0, 1]);
    run_cut(&mut group, LONG, &[1]);
    assert!(!leads(&group, 1));
}

/// After a cut both lead. When they meet, the leader of the lower view drops its log and guest, and
/// follows.
#[test]
fn after_a_cut_the_lower_view_yields() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut group = pair_with(durability);
        run_cut(&mut group, LONG, &[0, 1]);
        assert!(leads(&group, 0) && leads(&group, 1), "both lead");
        drop_partner(&mut group);
        for _ in 0..3 {
            group.app(50);
        }
        run_cut(&mut group, HEARTBEAT, &[0, 1]);
        group.wire.clear();
        group.other.clear();
        run(&mut group, LONG, &[0, 1]);
        assert!(!leads(&group, 0) && leads(&group, 1));
        let new_generation = |(core, command): &(usize, Command)| {
            let base = match command {
                Command::InstallSnapshot { base, .. } => base.index,
                _ => return false,
            };
            *core == 0 && base == Index(0)
        };
        assert!(
            group.other.iter().any(new_generation),
            "its guest is dropped"
        );
        assert_eq!(group.cores[0].generation(), group.cores[1].generation());
        assert_eq!(group.status(0).last, group.status(1).last, "one log");
    }
}

/// A replica that learns of the other's newer generation does not lead with its own.
#[test]
fn a_candidate_of_an_older_generation_yields() {
    let mut group = pair();
    run_cut(&mut group, LONG, &[0, 1]);
    drop_partner(&mut group);
    group.turn(1, |core, now, out| core.resign(now, out));
    group.wire.clear();
    run(&mut group, Micros(LONG.0 * 2), &[0, 1]);
    assert!(!leads(&group, 0) && !leads(&group, 1));
    assert_eq!(group.cores[0].generation(), group.cores[1].generation());
}

/// A leader that was stopped hears of its successor before it has counted the other one dead.
#[test]
fn a_stopped_leader_does_not_go_on_alone() {
    let mut group = pair();
    run(&mut group, LONG, &[1]);
    assert!(leads(&group, 1), "it took over");
    group.other.clear();
    group.now = group.now + Micros(1);
    group.apply(0, Event::Tick);
    assert_eq!(group.liveness(0), [], "it counts heartbeats, not time");
    run(&mut group, BRIEF, &[0, 1]);
    assert!(!leads(&group, 0));
}

/// A leader was stopped, its secondary took over and died: the leader's state is old.
#[test]
fn a_leader_that_was_stopped_doubts_its_state() {
    let mut group = pair();
    run(&mut group, LONG, &[1]);
    assert!(leads(&group, 1), "it took over");
    run_cut(&mut group, Micros(LONG.0 * 2), &[0]);
    let status = group.status(0);
    assert!(status.doubts);
    assert!(group.commit(0) < status.last.index || status.in_sync == set(&[0, 1]));
    assert!(group.cores[0].lease_until() < group.now);
}

/// A leader was stopped, and its secondary did not take over: the leader leads as before.
#[test]
fn a_stopped_leader_that_is_answered_leads_on() {
    let mut group = pair();
    group.now = group.now + TIMEOUT;
    group.apply(0, Event::Tick);
    assert!(group.status(0).doubts);
    run(&mut group, BRIEF, &[0, 1]);
    assert!(leads(&group, 0) && !group.status(0).doubts);
}

/// The secondary was stopped, the leader went on alone and died: the secondary's state is old.
#[test]
fn a_secondary_that_was_stopped_doubts_its_state() {
    let mut group = pair();
    run_cut(&mut group, LONG, &[0]);
    drop_partner(&mut group);
    group.app(10);
    run_cut(&mut group, LONG, &[1]);
    assert!(!leads(&group, 1) && group.status(1).doubts);
}

/// The doubt ends with an answer of the leader that says where its log ends, and not with a message
/// sent before.
#[test]
fn a_stopped_secondary_counts_again_when_it_has_all() {
    let mut group = pair();
    let old: Vec<_> = {
        group.now = group.now + HEARTBEAT;
        group.apply(0, Event::Tick);
        group.wire.drain(..).collect()
    };
    group.now = group.now + TIMEOUT;
    for (from, to, bytes) in &old {
        group.carry(*from, *to, bytes);
    }
    assert!(group.status(1).doubts);
    run(&mut group, BRIEF, &[0, 1]);
    assert!(!group.status(1).doubts);
    run_cut(&mut group, LONG, &[1]);
    assert!(leads(&group, 1));
}

/// A stall in the middle of a silence does not keep the guest from going on: the leader was dead
/// before it.
#[test]
fn a_stall_after_the_leader_fell_silent_is_no_doubt() {
    let mut group = pair();
    run_cut(&mut group, Micros(HEARTBEAT.0 * 3), &[1]);
    group.now = group.now + TIMEOUT;
    run_cut(&mut group, LONG, &[1]);
    assert!(leads(&group, 1));
}

/// Neither goes on before the other one is known to be off.
fn fenced() -> Group {
    pair_of(Durability::Memory, true)
}

/// `to` is told that the other one is off, as was seen at `seen_at`.
fn said_off(group: &mut Group, to: usize, seen_at: Micros) {
    let peer = ReplicaId(1 - to as u8);
    group.apply(to, Event::PeerOff { peer, seen_at });
}

#[test]
fn with_fencing_a_cut_makes_no_two_leaders() {
    let mut group = fenced();
    run_cut(&mut group, LONG, &[0, 1]);
    assert!(leads(&group, 0) && !leads(&group, 1));
    drop_partner(&mut group);
    let later = group.app(10);
    run_cut(&mut group, LONG, &[0, 1]);
    assert!(group.commit(0) < later, "its partner may take over");
    assert!(group.cores[0].lease_until() < group.now);
    assert_eq!(group.status(0).awaits_off, Some(ReplicaId(1)));
    assert_eq!(group.status(1).awaits_off, Some(ReplicaId(0)));
    group.wire.clear();
    run(&mut group, LONG, &[0, 1]);
    assert!(group.commit(0) >= later, "the cut has ended");
    assert_eq!(group.status(0).awaits_off, None);
}

#[test]
fn with_fencing_the_one_goes_on_when_the_other_is_off() {
    let mut group = fenced();
    let known = group.app(100);
    run(&mut group, BRIEF, &[0, 1]);
    run_cut(&mut group, LONG, &[1]);
    assert!(!leads(&group, 1));
    let now = group.now;
    said_off(&mut group, 1, now);
    run_cut(&mut group, LONG, &[1]);
    assert!(leads(&group, 1) && group.delivered_at(1).contains(&known.0));

    // Not while it is hardly silent.
    let mut group = fenced();
    run_cut(&mut group, HEARTBEAT, &[0]);
    let now = group.now;
    said_off(&mut group, 0, now);
    assert!(group.cores[0].lease_until() < Micros::NEVER);
    assert!(!group.liveness(0).contains(&(1, false)));
    run_cut(&mut group, LONG, &[0]);
    drop_partner(&mut group);
    let later = group.app(10);
    let now = group.now;
    said_off(&mut group, 0, now);
    assert_eq!(group.commit(0), later);
    assert_eq!(group.cores[0].lease_until(), Micros::NEVER);
}

/// A report that is older than the other one's last message is of an older process.
#[test]
fn with_fencing_old_news_counts_for_nothing() {
    let mut group = fenced();
    let seen_at = group.now;
    run(&mut group, LONG, &[0, 1]);
    run_cut(&mut group, LONG, &[1]);
    said_off(&mut group, 1, seen_at);
    run_cut(&mut group, LONG, &[1]);
    assert!(!leads(&group, 1));
}

/// A leader that has started again is another process, which holds nothing.
#[test]
fn with_fencing_a_leader_that_has_started_again_is_succeeded() {
    let mut group = fenced();
    group.restart(0);
    run(&mut group, LONG, &[0, 1]);
    assert!(leads(&group, 1));
}

/// One that was stopped has not been succeeded: it leads on without a doubt.
#[test]
fn with_fencing_nobody_doubts() {
    let mut group = fenced();
    run(&mut group, Micros(LONG.0 * 4), &[1]);
    assert!(!leads(&group, 1));
    group.now = group.now + TIMEOUT;
    group.apply(0, Event::Tick);
    assert!(!group.status(0).doubts);
    run(&mut group, BRIEF, &[0, 1]);
    assert!(leads(&group, 0));
    let later = group.app(10);
    run(&mut group, BRIEF, &[0, 1]);
    assert_eq!(group.commit(0), later);
}
