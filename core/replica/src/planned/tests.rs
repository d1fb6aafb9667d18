//! Planned work on synthetic events.

use super::*;
use crate::api::{Event, Role};
use crate::guest::bytes_of;
use crate::jobs::Job;
use crate::testing::{LEADER as SECONDARY, apply, leader, secondary, sent_to_leader};
use plover_policy::{Policy, Preset};
use plover_syncvm::SyncMessage;
use plover_types::{Index, Lane, PageNo, PageSet, ReplicaSet, View, wire};

const NOW: Micros = Micros(2);

fn policy(name: &str) -> Policy {
    Preset::find(name).unwrap().policy
}

/// A protected leader whose secondary has acknowledged a sync.
fn calm() -> Replica {
    let mut replica = leader(policy("vsmr"), true);
    replica.cx.memory.ledger.settle();
    replica.leading().unwrap().0.is_proven = true;
    replica
}

fn hands_over(actions: &[Action]) -> bool {
    let handed = |action: &Action| matches!(action, Action::Note(Note::HandedOver { .. }));
    actions.iter().any(handed)
}

fn gives_up(actions: &[Action]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        Action::Note(Note::SwitchoverFailed { why }) => Some(why.clone()),
        _ => None,
    })
}

fn switch(to: Option<ReplicaId>) -> Event {
    Event::SwitchOver { to }
}

fn from(peer: ReplicaId, body: Body, replica: &Replica) -> Event {
    let view = replica.cx.group.view;
    Event::Received {
        from: peer,
        lane: Lane::Bulk,
        bytes: wire::encode(&SyncMessage { view, body }),
    }
}

#[test]
fn a_calm_leader_hands_over_at_once() {
    for to in [None, Some(SECONDARY)] {
        let mut replica = calm();
        assert_eq!(replica.why_not_switch_over(to), None);
        assert!(hands_over(&apply(&mut replica, NOW, switch(to))));
    }
}

/// QEMU says of a running guest a little later what it has written, and says it once.
#[test]
fn pages_of_a_scan_that_ends_after_the_handover_are_owed() {
    for job in [Job::JoinRound(7), Job::LeadSync(SyncNo(7))] {
        let mut replica = calm();
        let job = replica.cx.jobs.begin(job);
        assert!(hands_over(&apply(&mut replica, NOW, switch(None))));
        replica.on_follow(View(32), Some(SECONDARY));
        assert_ne!(replica.role(), Role::Leader);
        let mut written = PageSet::new(replica.cx.config.layout.pages());
        written.insert(PageNo(3));
        apply(&mut replica, NOW, Event::Scanned(job, written));
        assert!(replica.cx.memory.ledger.owed().contains(PageNo(3)));
    }
}

#[test]
fn every_refusal_says_why() {
    let witness = ReplicaId(2);
    let why = |replica: &Replica, to| replica.why_not_switch_over(to).unwrap();
    let replica = calm();
    let me = replica.cx.config.me;
    assert_eq!(why(&replica, Some(me)), SwitchoverRefused::Leads(me));
    assert!(matches!(
        why(&replica, Some(ReplicaId(7))),
        SwitchoverRefused::Unknown(..)
    ));
    let not_in_sync = SwitchoverRefused::NotInSync {
        to: witness,
        secondary: SECONDARY,
    };
    assert_eq!(why(&replica, Some(witness)), not_in_sync);
    let said = not_in_sync.to_string();
    assert!(
        said.contains("replica 2") && said.contains("plover drain"),
        "{said}"
    );

    let solo = leader(policy("vsmr"), false);
    assert_eq!(why(&solo, None), SwitchoverRefused::NotProtected);
    let follower = secondary(policy("vsmr"));
    assert!(matches!(
        why(&follower, None),
        SwitchoverRefused::NotLeading(_)
    ));

    let with = |change: fn(&mut crate::peers::Peer)| {
        let mut replica = calm();
        change(replica.cx.peers.get_mut(SECONDARY).unwrap());
        why(&replica, None)
    };
    let (silent, cut_off) = (SwitchoverRefused::Silent, SwitchoverRefused::CutOff);
    assert_eq!(with(|peer| peer.is_alive = false), silent(SECONDARY));
    assert_eq!(
        with(|peer| peer.reaches_clients = false),
        cut_off(SECONDARY)
    );
    let drained = SwitchoverRefused::Drained(SECONDARY);
    assert_eq!(with(|peer| peer.is_drained = true), drained);

    let mut pair = calm();
    pair.cx.config.pair = true;
    assert_eq!(why(&pair, None), SwitchoverRefused::Pair);
}

/// The fear: pages that this side owes are forgotten with its lead.
#[test]
fn it_waits_for_a_moment_without_debt() {
    let mut replica = calm();
    replica.cx.memory.ledger.owe_page(plover_types::PageNo(3));
    assert!(!hands_over(&apply(&mut replica, NOW, switch(None))));
    replica.cx.memory.ledger.settle();
    assert!(hands_over(&apply(
        &mut replica,
        NOW + Micros(9),
        Event::Tick
    )));
}

#[test]
fn a_secondary_that_has_acknowledged_nothing_is_not_trusted() {
    let mut replica = calm();
    replica.leading().unwrap().0.is_proven = false;
    assert!(!hands_over(&apply(&mut replica, NOW, switch(None))));
}

/// No sync ever ends: the leader leads on, and says so.
#[test]
fn one_that_finds_no_moment_is_given_up() {
    let mut replica = calm();
    replica.cx.memory.ledger.owe_page(plover_types::PageNo(3));
    let mut out = apply(&mut replica, NOW, switch(None));
    replica
        .leading()
        .unwrap()
        .0
        .switchover
        .as_mut()
        .unwrap()
        .until = NOW + Micros(7);
    assert_eq!(gives_up(&out), None);
    out = apply(&mut replica, NOW + Micros(7), Event::Tick);
    assert!(gives_up(&out).unwrap().contains("within 5 s"), "{out:?}");
    assert!(replica.leading().unwrap().0.switchover.is_none());
}

/// The secondary is lost while the switchover waits, and the leader keeps its lead.
#[test]
fn one_whose_secondary_is_lost_is_given_up() {
    let mut replica = calm();
    replica.cx.memory.ledger.owe_page(plover_types::PageNo(3));
    apply(&mut replica, NOW, switch(None));
    replica.cx.peers.get_mut(SECONDARY).unwrap().is_alive = false;
    let out = apply(&mut replica, NOW, Event::Tick);
    assert!(gives_up(&out).is_some(), "{out:?}");
    assert_eq!(replica.role(), Role::Leader);
}

/// Frames that clients send while the log catches up are neither lost nor fed: the next leader gets them.
#[test]
fn frames_of_the_last_moment_are_sent_on() {
    let mut replica = calm();
    replica.leading().unwrap().0.kept_frames = Some(Vec::new());
    let frame = Frame(vec![2, 3]);
    let out = apply(&mut replica, NOW, Event::Frames(vec![frame.clone()]));
    assert!(out.is_empty(), "{out:?}");
    let out = apply(&mut replica, NOW, switch(None));
    let sent = |action: &Action| matches!(action, Action::SendOn(kept) if *kept == [frame.clone()]);
    assert!(out.iter().any(sent), "{out:?}");
}

/// They are as many as clients send until a slow disk has the log.
#[test]
fn frames_of_the_last_moment_are_bounded_and_come_back_as_they_were() {
    let mut replica = calm();
    let frames = vec![Frame(vec![2, 3])];
    replica.cx.config.input_bytes_max = 2 * bytes_of(&frames);
    replica.leading().unwrap().0.kept_frames = Some(Vec::new());
    let mut dropped = 0;
    for _ in 0..3 {
        let out = apply(&mut replica, NOW, Event::Frames(frames.clone()));
        let drop = |action: &&Action| matches!(action, Action::Note(Note::InputDropped { .. }));
        dropped += out.iter().filter(drop).count();
    }
    assert_eq!(dropped, 1);
    let kept = replica.leading().unwrap().0.kept_frames.clone();
    assert_eq!(kept, Some(vec![frames; 2]));
}

/// The moment for it comes when nobody wants it any more.
#[test]
fn an_undrained_leader_keeps_its_lead() {
    let mut replica = calm();
    replica.cx.memory.ledger.owe_page(plover_types::PageNo(3));
    let out = apply(&mut replica, NOW, Event::Drain(true));
    assert!(!hands_over(&out));
    let out = apply(&mut replica, NOW, Event::Drain(false));
    assert!(gives_up(&out).is_some(), "{out:?}");
    replica.cx.memory.ledger.settle();
    assert!(!hands_over(&apply(&mut replica, NOW, Event::Tick)));
}

#[test]
fn a_drained_leader_hands_over_by_itself() {
    let mut replica = calm();
    let out = apply(&mut replica, NOW, Event::Drain(true));
    assert!(hands_over(&out), "{out:?}");
    // If nobody else leads, it does not try again at once.
    let mut replica = calm();
    replica.cx.drained = true;
    replica.cx.switch_not_before = NOW + AGAIN_AFTER;
    assert!(!hands_over(&apply(&mut replica, NOW, Event::Tick)));
    assert!(hands_over(&apply(
        &mut replica,
        NOW + AGAIN_AFTER,
        Event::Tick
    )));
}

#[test]
fn a_drained_follower_says_so_and_again_to_the_next_leader() {
    let mut replica = secondary(policy("vsmr"));
    replica.cx.peers.get_mut(SECONDARY).unwrap().is_linked = true;
    let told = |replica: &mut Replica, out: Vec<Action>| {
        replica.cx.out = out;
        let said = sent_to_leader(replica);
        replica.cx.out.clear();
        said.into_iter()
            .filter(|body| matches!(body, Body::Drained { drained: true }))
            .count()
    };
    let out = apply(&mut replica, NOW, Event::Drain(true));
    assert_eq!(told(&mut replica, out), 1);
    let out = apply(&mut replica, NOW, Event::Drain(true));
    assert_eq!(told(&mut replica, out), 0, "it is said once");
    replica.correct_leader();
    let out = std::mem::take(&mut replica.cx.out);
    assert_eq!(told(&mut replica, out), 1);
}

/// The fear: until the word is repeated, the leader hands over to the drained host, or to one that reaches no clients.
#[test]
fn a_link_that_comes_up_anew_makes_no_leader_forget() {
    let mut replica = calm();
    for body in [Body::Drained { drained: true }, Body::Uplink { up: false }] {
        let said = from(SECONDARY, body, &replica);
        apply(&mut replica, NOW, said);
    }
    for up in [false, true] {
        let peer = SECONDARY;
        apply(&mut replica, NOW, Event::Link { peer, up });
    }
    assert!(replica.cx.peers.is_drained(SECONDARY));
    assert!(!replica.cx.peers.reaches_clients(SECONDARY));
}

/// The leader seems dead, comes back in its view over the same link, and still has the word from before.
#[test]
fn a_leader_that_comes_back_hears_what_has_changed_meanwhile() {
    let mut replica = secondary(policy("vsmr"));
    replica.cx.peers.get_mut(SECONDARY).unwrap().is_linked = true;
    let view = replica.cx.group.view;
    apply(&mut replica, NOW, Event::Drain(true));
    apply(&mut replica, NOW, Event::Uplink { up: false });
    replica.on_follow(view, None);
    apply(&mut replica, NOW, Event::Drain(false));
    apply(&mut replica, NOW, Event::Uplink { up: true });
    replica.cx.out.clear();
    replica.on_follow(view, Some(SECONDARY));
    let said = sent_to_leader(&replica);
    assert!(said.contains(&Body::Drained { drained: false }));
    assert!(said.contains(&Body::Uplink { up: true }));
}

/// The secondary is drained, and the third replica is ready: it is to take its place.
#[test]
fn a_drained_secondary_is_replaced_while_it_stays_in_sync() {
    let mut replica = calm();
    let drained = from(SECONDARY, Body::Drained { drained: true }, &replica);
    let out = apply(&mut replica, NOW, drained);
    let begun = |action: &Action| matches!(action, Action::Note(Note::JoinBegun { peer }) if *peer == ReplicaId(2));
    assert!(out.iter().any(begun), "{out:?}");
    let (leader, cx) = replica.leading().unwrap();
    assert!(leader.is_protected(cx));
    // All are drained: the roles stay where they are.
    let mut replica = calm();
    replica.cx.peers.get_mut(ReplicaId(2)).unwrap().is_drained = true;
    let drained = from(SECONDARY, Body::Drained { drained: true }, &replica);
    assert!(!apply(&mut replica, NOW, drained).iter().any(begun));
}

/// A deposed leader that the next one names in sync is its secondary; one that an older entry names is not.
#[test]
fn only_the_present_leader_keeps_its_predecessor_in_step() {
    let named = |entry: View| {
        let mut replica = calm();
        let me = replica.cx.config.me;
        replica.phase = Phase::Deposed;
        replica.cx.group.view = View::new(2, SECONDARY);
        replica.cx.group.leader = Some(SECONDARY);
        replica.cx.group.in_sync = ReplicaSet::of([me, SECONDARY]);
        replica.stay_in_step(Viewstamp {
            view: entry,
            index: Index(9),
        });
        (replica.role(), replica.cx.guest.taken)
    };
    assert_eq!(named(View::new(2, SECONDARY)), (Role::Secondary, Index(9)));
    assert_eq!(named(View::new(1, ReplicaId(1))).0, Role::Deposed);
}
