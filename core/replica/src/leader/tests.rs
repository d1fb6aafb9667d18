//! A leader on synthetic events. Its policy takes checkpoints, so that its syncs need no place in the log.

use super::COPIED_FOR;
use super::join::LeadJoin;
use crate::api::{Action, ConsoleHold, Event, Note};
use crate::jobs::JobId;
use crate::replica::Replica;
use crate::testing::{LEADER as SECONDARY, apply, leader, taken};
use plover_policy::{Policy, Preset, SyncReason};
use plover_syncvm::SyncMessage;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{
    Frame, HashKey, Lane, Micros, PageNo, PageSet, ReplicaId, SyncNo, Unconsumed, wire,
};

const INTERVAL: Micros = Micros::from_ms(30);

fn remus() -> Policy {
    Preset::find("remus-25").unwrap().policy
}

pub(crate) fn from_secondary(body: Body, replica: &Replica) -> Event {
    let view = replica.cx.group.view;
    Event::Received {
        from: SECONDARY,
        lane: Lane::Bulk,
        bytes: wire::encode(&SyncMessage { view, body }),
    }
}

fn bodies(actions: &[Action]) -> Vec<Body> {
    let sent = actions.iter().filter_map(|action| match action {
        Action::Write {
            to: SECONDARY,
            lane: Lane::Bulk,
            bytes,
            ..
        } => Some(wire::decode::<SyncMessage>(bytes).unwrap().body),
        _ => None,
    });
    sent.collect()
}

fn job_of(actions: &[Action]) -> JobId {
    let job = actions.iter().find_map(|action| match action {
        Action::Scan(job) | Action::ReadPages { job, .. } | Action::CopyPages { job, .. } => {
            Some(*job)
        }
        _ => None,
    });
    job.expect("work was asked for")
}

/// A protected leader whose guest has sent a frame and stands at the cut of its first checkpoint, one page
/// dirty.
pub(crate) fn at_the_cut() -> Replica {
    let mut replica = leader(remus(), true);
    apply(
        &mut replica,
        Micros(2),
        Event::Outputs(vec![Frame(vec![7])]),
    );
    let out = apply(&mut replica, INTERVAL, Event::Tick);
    assert!(out.iter().any(|a| matches!(a, Action::Pause)), "{out:?}");
    let paused = Event::GuestPaused {
        outputs: Vec::new(),
        unconsumed: Unconsumed::default(),
    };
    let out = apply(&mut replica, INTERVAL, paused);
    let scan = job_of(&out);
    replica.cx.memory.ledger.settle();
    let mut dirty = PageSet::new(16);
    dirty.insert(PageNo(3));
    let out = apply(&mut replica, INTERVAL, Event::Scanned(scan, dirty));
    let read = job_of(&out);
    replica.cx.out.push(Action::Scan(read));
    replica
}

/// The job of the read that [`at_the_cut`] left open.
fn open_read(replica: &mut Replica) -> JobId {
    job_of(&taken(replica))
}

/// The same leader when it has sent all of that checkpoint, and waits for the acknowledgement.
fn sent() -> Replica {
    let mut replica = at_the_cut();
    let read = open_read(&mut replica);
    apply(&mut replica, INTERVAL, Event::StateSaved(vec![1]));
    apply(&mut replica, INTERVAL, Event::PagesRead(read, vec![0; 8]));
    replica
}

#[test]
fn outputs_of_a_slot_wait_for_its_acknowledgement() {
    let mut replica = at_the_cut();
    let read = open_read(&mut replica);
    apply(&mut replica, INTERVAL, Event::StateSaved(vec![1]));
    let out = apply(&mut replica, INTERVAL, Event::PagesRead(read, vec![0; 8]));
    let resumed = out.iter().position(|a| matches!(a, Action::Resume));
    assert!(
        resumed.is_some(),
        "the guest goes on before what it wrote is sent"
    );
    let sent = bodies(&out);
    assert!(matches!(sent.last(), Some(Body::End { .. })), "{sent:?}");
    assert!(replica.cx.outputs.cleared.is_empty(), "nothing is safe yet");
    let ack = from_secondary(Body::Ack { sync: SyncNo(1) }, &replica);
    let out = apply(&mut replica, INTERVAL, ack);
    assert_eq!(replica.cx.outputs.cleared.len(), 1);
    assert_eq!(holds(&out), [ConsoleHold::Show(SyncNo(1))]);
    assert!(replica.cx.memory.ledger.owed().is_empty());
}

fn holds(actions: &[Action]) -> Vec<ConsoleHold> {
    let holds = actions.iter().filter_map(|action| match action {
        Action::Console(hold) => Some(*hold),
        _ => None,
    });
    holds.collect()
}

/// The fear: the joiner has it, and the secondary that it is to replace leads once more, without it.
#[test]
fn what_a_replacing_joiner_has_acknowledged_is_neither_sent_nor_shown() {
    let mut replica = sent();
    let (leader, _) = replica.leading().unwrap();
    // This leader has no log in which another secondary could be proposed, so the joiner is another peer.
    leader.join = Some(LeadJoin::replacing(ReplicaId(2)));
    leader.sync.as_mut().unwrap().run.reason = SyncReason::Join;
    let ack = from_secondary(Body::Ack { sync: SyncNo(1) }, &replica);
    let out = apply(&mut replica, INTERVAL, ack);
    assert!(replica.cx.outputs.cleared.is_empty());
    assert_eq!(holds(&out), [ConsoleHold::Reopen]);
}

/// The fear: dirty bits are cleared, the sync fails, and nobody remembers the pages.
#[test]
fn a_failed_sync_owes_its_pages_and_holds_its_outputs() {
    let mut replica = at_the_cut();
    taken(&mut replica);
    let down = Event::Link {
        peer: SECONDARY,
        up: false,
    };
    let out = apply(&mut replica, INTERVAL, down);
    let failed = |a: &Action| matches!(a, Action::Note(Note::SyncFailed { .. }));
    assert!(out.iter().any(failed), "{out:?}");
    assert!(out.iter().any(|a| matches!(a, Action::Resume)));
    assert!(replica.cx.memory.ledger.owed().contains(PageNo(3)));
    assert_eq!(replica.cx.outputs.guard.len(), 1);
    assert!(replica.cx.outputs.cleared.is_empty());
}

/// The pages of a guest that writes fast take longer than a copy's patience.
#[test]
fn a_join_goes_on_as_long_as_its_final_sync_does() {
    let mut replica = at_the_cut();
    let (leader, cx) = replica.leading().unwrap();
    cx.open_copy(SECONDARY, CopyPurpose::Join);
    leader.join = Some(LeadJoin::replacing(SECONDARY));
    cx.now = INTERVAL + Micros::from_ms(20_000);
    leader.sync.as_mut().unwrap().run.last_progress = cx.now;
    leader.tick_join(cx);
    assert!(leader.join.is_some());
    assert!(leader.join_deadline(cx) > cx.now);
    cx.now = cx.now + Micros::from_ms(20_000);
    leader.tick_join(cx);
    assert!(leader.join.is_none(), "it stands still");
}

/// The fear: each sync begins as the last one ends, and the round waits for ever.
#[test]
fn a_round_of_a_copy_ends_between_two_syncs() {
    let mut replica = sent();
    apply(&mut replica, INTERVAL, Event::GuestResumed);
    let (leader, cx) = replica.leading().unwrap();
    let attempt = cx.open_copy(ReplicaId(2), CopyPurpose::Join);
    leader.join = Some(LeadJoin::copying(ReplicaId(2)));
    let copy = cx.peers.copy_mut().unwrap();
    copy.reopen(attempt, HashKey::Universal([0; 32]), INTERVAL);
    copy.opened(None, 0);
    copy.acked(0);
    let late = INTERVAL + INTERVAL;
    let ack = from_secondary(Body::Ack { sync: SyncNo(1) }, &replica);
    let out = apply(&mut replica, late, ack);
    assert!(out.iter().any(|a| matches!(a, Action::Pause)), "{out:?}");
    assert!(out.iter().any(|a| matches!(a, Action::Scan(_))), "{out:?}");
}

#[test]
fn a_word_of_a_whole_copy_that_is_not_repeated_lapses() {
    let mut replica = leader(remus(), true);
    let new = ReplicaId(2);
    let told = from_secondary(Body::Copied { peer: new }, &replica);
    apply(&mut replica, INTERVAL, told);
    let (leader, cx) = replica.leading().unwrap();
    assert!(leader.is_copied(cx, SECONDARY, new));
    assert!(!leader.is_copied(cx, new, SECONDARY), "of another host");
    cx.now = INTERVAL + COPIED_FOR + Micros(1);
    assert!(!leader.is_copied(cx, SECONDARY, new));
}

/// The joiner has acknowledged the first of its two syncs, and is gone. All that the guest sends would be kept.
#[test]
fn a_leader_without_a_secondary_compares_nothing() {
    let hybrid = Preset::find("hybrid").unwrap().policy;
    let mut replica = leader(hybrid, false);
    let (leader, cx) = replica.leading().unwrap();
    leader
        .matching
        .cut(SyncNo(1), false, &mut cx.rules.matching);
    leader.matching.acknowledged(SyncNo(1));
    leader.join = Some(LeadJoin::ending(ReplicaId(2)));
    leader.fail_join(cx, "why");
    assert!(!leader.matching.compares());
}

#[test]
fn an_acknowledgement_of_another_sync_or_another_peer_releases_nothing() {
    let mut replica = sent();
    let late = from_secondary(Body::Ack { sync: SyncNo(9) }, &replica);
    apply(&mut replica, INTERVAL, late);
    let Event::Received { lane, bytes, .. } =
        from_secondary(Body::Ack { sync: SyncNo(1) }, &replica)
    else {
        panic!("a message");
    };
    let from = ReplicaId(2);
    apply(
        &mut replica,
        INTERVAL,
        Event::Received { from, lane, bytes },
    );
    assert!(replica.cx.outputs.cleared.is_empty());
}

/// A secondary that says so keeps its place, and the next sync comes at once.
#[test]
fn a_sync_that_the_secondary_gives_up_is_done_again() {
    let mut replica = sent();
    apply(&mut replica, INTERVAL, Event::GuestResumed);
    let gave_up = |sync| Body::GaveUp {
        sync: SyncNo(sync),
        why: "why".into(),
    };
    let other = from_secondary(gave_up(9), &replica);
    apply(&mut replica, INTERVAL, other);
    assert!(
        replica.leading().unwrap().0.sync.is_some(),
        "another sync's"
    );
    let event = from_secondary(gave_up(1), &replica);
    apply(&mut replica, INTERVAL, event);
    assert_eq!(replica.cx.outputs.guard.len(), 1, "its outputs are held");
    assert!(replica.cx.memory.ledger.owed().contains(PageNo(3)));
    let (leader, cx) = replica.leading().unwrap();
    assert!(leader.sync.is_none() && leader.slot.is_retry);
    assert_eq!(leader.secondary(cx), Some(SECONDARY));
    // So that one that answers each sync, and completes none, loses its place in the end.
    assert_eq!(leader.given_up, 1);
}

/// A secondary that never answers costs its place, not the guest.
#[test]
fn a_sync_without_progress_is_given_up() {
    let mut replica = sent();
    apply(&mut replica, INTERVAL, Event::GuestResumed);
    let (leader, cx) = replica.leading().unwrap();
    let deadline = leader.deadline(cx);
    assert_eq!(deadline, INTERVAL + Micros(10 * cx.config.timeout.0 + 1));
    leader.abort_sync(cx, "the secondary made no progress");
    assert!(leader.sync.is_none());
    assert!(leader.slot.is_retry);
}

/// The fear: the leader's own hypervisor hangs, and it drops the healthy secondary for it.
#[test]
fn a_leader_at_fault_keeps_its_secondary() {
    let mut replica = at_the_cut();
    let late = INTERVAL + Micros(20 * replica.cx.config.timeout.0);
    let (leader, cx) = replica.leading().unwrap();
    cx.now = late;
    leader.tick_slot(cx);
    assert!(
        leader.sync.is_some(),
        "the next step is not the secondary's"
    );
    assert_eq!(leader.secondary(cx), Some(SECONDARY));
    replica.watch_hypervisor();
    let out = taken(&mut replica);
    let said = |a: &Action| matches!(a, Action::Note(Note::HypervisorLate { .. }));
    assert!(out.iter().any(said), "{out:?}");
    let kept = !out.iter().any(|a| matches!(a, Action::KillGuest));
    assert!(kept, "others must agree to go on without it: {out:?}");
}

#[test]
fn inputs_that_find_no_room_are_dropped_and_counted() {
    let mut replica = leader(remus(), true);
    let max = replica.cx.config.input_bytes_max;
    // The bytes of the frames alone would fit.
    let many = vec![Frame(vec![1; 64]); max / 100];
    let count = many.len();
    let out = apply(&mut replica, Micros(2), Event::Frames(many));
    let dropped =
        |a: &Action| matches!(a, Action::Note(Note::InputDropped { frames }) if *frames == count);
    assert!(out.iter().any(dropped), "{out:?}");
    let out = apply(&mut replica, Micros(2), Event::Frames(vec![Frame(vec![1])]));
    assert!(out.iter().any(|a| matches!(a, Action::Feed(_))), "{out:?}");
}

/// A sync cannot begin without a link, so its leader is not woken for one at once, again and again.
#[test]
fn a_slot_without_a_link_to_the_secondary_has_no_end() {
    let mut replica = leader(Preset::find("hybrid").unwrap().policy, true);
    let outputs = Event::Outputs(vec![Frame(vec![7])]);
    apply(&mut replica, Micros(2), outputs);
    let mut due = |is_linked| {
        replica.cx.peers.get_mut(SECONDARY).unwrap().is_linked = is_linked;
        let (leader, cx) = replica.leading().unwrap();
        leader.slot_deadline(cx)
    };
    assert_ne!(due(true), Micros::NEVER);
    assert_eq!(due(false), Micros::NEVER);
}

#[test]
fn a_leader_that_does_not_serve_takes_no_frames() {
    let mut replica = leader(remus(), true);
    replica.leading().unwrap().0.serving = false;
    let frames = Event::Frames(vec![Frame(vec![1])]);
    assert_eq!(apply(&mut replica, Micros(2), frames).len(), 0);
}

/// A secondary's report counts only once both guests go on from one state.
#[test]
fn reports_count_after_the_acknowledgement() {
    let hybrid = Preset::find("hybrid").unwrap().policy;
    let mut replica = leader(hybrid, true);
    let (leader, cx) = replica.leading().unwrap();
    leader
        .matching
        .cut(SyncNo(1), false, &mut cx.rules.matching);
    let frames = [Frame(vec![1])];
    leader.on_reported(cx, SECONDARY, SyncNo(1), 0, &frames);
    assert_eq!(leader.matching.heard(), None);
    leader.matching.acknowledged(SyncNo(1));
    leader.on_reported(cx, SECONDARY, SyncNo(1), 0, &frames);
    assert_eq!(leader.matching.heard(), Some((SyncNo(1), 1)));
    leader.on_reported(cx, ReplicaId(2), SyncNo(1), 1, &frames);
    assert_eq!(
        leader.matching.heard(),
        Some((SyncNo(1), 1)),
        "no secondary"
    );
}

#[test]
fn a_solo_leader_offers_a_copy_and_backs_off_when_it_fails() {
    let mut replica = leader(remus(), false);
    let out = apply(&mut replica, Micros(2), Event::Tick);
    let begun = out.iter().find_map(|a| match a {
        Action::Note(Note::JoinBegun { peer }) => Some(*peer),
        _ => None,
    });
    let peer = begun.expect("an attempt begins");
    let down = Event::Link { peer, up: false };
    let out = apply(&mut replica, Micros(3), down);
    let failed = |a: &Action| matches!(a, Action::Note(Note::JoinFailed { .. }));
    assert!(out.iter().any(failed), "{out:?}");
    let out = apply(&mut replica, Micros(4), Event::Tick);
    let again = |a: &Action| matches!(a, Action::Note(Note::JoinBegun { .. }));
    assert!(!out.iter().any(again), "it waits before the next attempt");
}

/// It would draw the clients away from the one that leads now.
#[test]
fn a_leader_without_a_lease_announces_nothing() {
    let mut replica = leader(remus(), true);
    let (leader, cx) = replica.leading().unwrap();
    leader.announce(cx);
    let mut out = Vec::new();
    for ms in 1..3000 {
        out.extend(apply(&mut replica, Micros::from_ms(ms), Event::Tick));
    }
    assert!(!out.iter().any(|action| matches!(action, Action::Announce)));
    let (leader, _) = replica.leading().unwrap();
    assert_eq!(leader.announcements_deadline(), Micros::NEVER);
}
