//! Which frames count as clean, and when they leave.

use super::*;
use crate::api::{Action, Event};
use crate::leader::tests::from_secondary;
use crate::replica::Replica;
use crate::testing::{LEADER as SECONDARY, apply, leader};
use etherparse::PacketBuilder;
use plover_policy::Preset;
use plover_syncvm::message::Body;
use plover_types::{Micros, PageSet, Unconsumed};

mod over_tcp;

const NOW: Micros = Micros(10);

fn datagram(payload: &[u8]) -> Frame {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 2], [10, 0, 0, 9], 64)
        .udp(53, 4000)
        .write(&mut bytes, payload)
        .unwrap();
    Frame(bytes)
}

fn word(payload: &[u8], clean_as_of: Option<u64>) -> Reply {
    Reply {
        clean_as_of: clean_as_of.map(SyncNo),
        guest: (None, 53),
        client: ([10, 0, 0, 9].into(), 4000),
        protocol: 17,
        bytes: payload.len() as u32,
        about: About::Datagram {
            hash: fnv1a(payload),
        },
    }
}

/// The cuts that the frames with these payloads count as clean as of.
fn found(clean: &mut CleanReplies, payloads: &[&[u8]]) -> Vec<Option<SyncNo>> {
    let cut_of = |(no, payload): (u64, &&[u8])| {
        clean.waiting.clear();
        clean.sent(OutputNo(no), &datagram(payload));
        clean.waiting.first().map(|(_, cut)| *cut)
    };
    (0..).zip(payloads).map(cut_of).collect()
}

#[test]
fn a_word_counts_for_its_own_frame_only() {
    let mut clean = CleanReplies::new();
    clean.said(
        vec![
            word(b"one", Some(3)),
            word(b"two", None),
            word(b"six", Some(4)),
        ],
        false,
    );
    let cuts = found(&mut clean, &[b"none", b"six", b"two", b"one", b"one"]);
    let as_of = |cut| Some(SyncNo(cut));
    assert_eq!(cuts, [None, as_of(4), None, as_of(3), None]);
    for other in [
        Reply {
            guest: (None, 54),
            ..word(b"one", Some(3))
        },
        Reply {
            guest: (Some([10, 0, 0, 3].into()), 53),
            ..word(b"one", Some(3))
        },
        Reply {
            client: ([10, 0, 0, 9].into(), 4001),
            ..word(b"one", Some(3))
        },
        Reply {
            protocol: 6,
            ..word(b"one", Some(3))
        },
    ] {
        let mut clean = CleanReplies::new();
        clean.said(vec![other], false);
        assert_eq!(found(&mut clean, &[b"one"]), [None]);
    }
}

/// The fear: a datagram was lost in the guest, and its word is taken for a later one that looks the same.
#[test]
fn of_two_that_look_alike_the_one_that_is_not_clean_counts_first() {
    let mut clean = CleanReplies::new();
    clean.said(vec![word(b"one", Some(3)), word(b"one", None)], false);
    assert_eq!(found(&mut clean, &[b"one"]), [None]);
}

#[test]
fn after_lost_words_nothing_counts_until_the_next_cut() {
    let mut clean = CleanReplies::new();
    clean.said(vec![word(b"one", Some(3))], false);
    clean.said(Vec::new(), true);
    clean.said(vec![word(b"two", Some(3))], false);
    assert_eq!(found(&mut clean, &[b"one", b"two"]), [None, None]);
    clean.cut(SyncNo(4), 0);
    clean.said(vec![word(b"two", Some(4))], false);
    assert_eq!(found(&mut clean, &[b"two"]), [Some(SyncNo(4))]);
    clean.said(vec![word(b"one", Some(4)); WORDS_MAX + 1], false);
    assert_eq!(found(&mut clean, &[b"one"]), [None], "too many to keep");
}

/// Its frame has left without it, since it came late. A later frame that looks the same may be of a state that no client must
/// see any more.
#[test]
fn a_word_that_is_left_over_counts_in_its_slot_only() {
    let mut clean = CleanReplies::new();
    clean.said(vec![word(b"one", Some(3))], false);
    clean.cut(SyncNo(4), 0);
    assert_eq!(found(&mut clean, &[b"one"]), [None]);
}

/// The guest sends a datagram that is clean as of this cut. Returns whether the leader takes it for safe.
fn is_cleared(replica: &mut Replica, payload: &[u8], cut: u64) -> bool {
    let before = replica.cx.outputs.cleared.len();
    let said = Event::Replies {
        replies: vec![word(payload, Some(cut))],
        lost: false,
    };
    apply(replica, NOW, said);
    apply(replica, NOW, Event::Outputs(vec![datagram(payload)]));
    replica.cx.outputs.cleared.len() > before
}

fn protected() -> Replica {
    let mut replica = leader(Preset::find("remus-25").unwrap().policy, true);
    replica.cx.config.policy.clean_replies = true;
    replica
}

#[test]
fn a_clean_reply_leaves_once_its_cut_is_acknowledged() {
    let mut replica = protected();
    assert!(
        !is_cleared(&mut replica, b"early", 1),
        "nothing is acknowledged"
    );
    replica.leading().unwrap().0.clean.acknowledged = Some((SECONDARY, SyncNo(1)));
    assert!(is_cleared(&mut replica, b"now", 1));
    assert!(!is_cleared(&mut replica, b"later", 2));
    replica.leading().unwrap().0.clean.acknowledged = Some((SECONDARY, SyncNo(2)));
    apply(&mut replica, NOW, Event::Tick);
    let held = replica.cx.outputs.guard.len();
    assert_eq!(held, 0, "cut 2 explains all three");
}

/// Another secondary may not hold the cut that the last one has acknowledged.
#[test]
fn an_acknowledgement_counts_for_its_secondary_only() {
    let mut replica = protected();
    replica.leading().unwrap().0.clean.acknowledged = Some((ReplicaId(2), SyncNo(1)));
    assert!(!is_cleared(&mut replica, b"one", 1));
}

/// The guest is told of the cut before its memory is scanned, and the acknowledgement of that cut counts.
#[test]
fn the_guest_is_told_of_each_cut() {
    let mut replica = protected();
    apply(&mut replica, NOW, Event::Outputs(vec![datagram(b"held")]));
    let later = Micros::from_ms(30);
    apply(&mut replica, later, Event::Tick);
    let paused = Event::GuestPaused {
        outputs: Vec::new(),
        unconsumed: Unconsumed::default(),
    };
    let out = apply(&mut replica, later, paused);
    let place = |wanted: &dyn Fn(&Action) -> bool| out.iter().position(wanted).unwrap();
    let told = place(&|action| matches!(action, Action::TellCut(SyncNo(1))));
    let scan = place(&|action| matches!(action, Action::Scan(_)));
    assert!(told < scan);
    replica.cx.memory.ledger.settle();
    let Action::Scan(job) = out[scan] else {
        unreachable!("it was found above")
    };
    apply(&mut replica, later, Event::Scanned(job, PageSet::new(16)));
    apply(&mut replica, later, Event::StateSaved(vec![1]));
    let ack = from_secondary(Body::Ack { sync: SyncNo(1) }, &replica);
    apply(&mut replica, later, ack);
    let acknowledged = replica.leading().unwrap().0.clean.acknowledged;
    assert_eq!(acknowledged, Some((SECONDARY, SyncNo(1))));
}
