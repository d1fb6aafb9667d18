//! A peer that names rounds which no group has counted.

use super::lies::{asks_for_votes, refused};
use super::replica::*;
use crate::group::TIMEOUT;
use apus::{Contradiction, Durability, Members};
use plover_types::{Micros, ReplicaSet, View, Viewstamp, wire};

/// The highest round that fits a message.
const LAST: u64 = 1 << 56;
/// Eight years of an election a second.
const AT_ONCE: u64 = 1 << 28;

fn replica() -> Replica {
    let mut replica = Replica::restarted(Durability::Disk, view(3, 0), Vec::new());
    replica.now = START + TIMEOUT;
    replica
}

fn prepare(view: View) -> Vec<u8> {
    wire::encode(&(PREPARE, view))
}

/// `peer` has asked, as after a start, and has promised `promised`.
fn asks(promised: View) -> Vec<u8> {
    let none = Viewstamp::default();
    wire::encode(&(ASK, 7u64, 1u32, promised, none, none, false))
}

fn ahead(told: u64, known: u64) -> Contradiction {
    Contradiction::Ahead { told, known }
}

/// The view in which the replica stands for election next.
fn stands_in(replica: &mut Replica) -> View {
    let nonce = asks_for_votes(replica);
    let (old, members) = (view(1, 0), Members::of(ReplicaSet(0b111)));
    let grant = (
        GRANT,
        nonce,
        old,
        vs(old, 0),
        members,
        old,
        None::<Viewstamp>,
    );
    replica.hears(1, &wire::encode(&grant));
    replica.core.status().view
}

/// Each message by which a peer can name a round.
#[test]
fn the_last_round_is_refused_however_it_is_named() {
    let (last, old) = (view(LAST, 1), view(1, 0));
    let (none, members) = (Viewstamp::default(), Members::of(ReplicaSet(0b111)));
    let grant = |promised: View, generation: View| {
        wire::encode(&(
            GRANT,
            1u64,
            promised,
            none,
            members,
            generation,
            None::<Viewstamp>,
        ))
    };
    let refuse = |view: View, promised: View| wire::encode(&(REFUSE, view, promised));
    let messages = [
        append(last, vs(old, 0), &[], 0),
        prepare(last),
        asks(last),
        grant(last, old),
        grant(old, last),
        refuse(old, last),
        refuse(last, old),
    ];
    for (n, message) in messages.iter().enumerate() {
        let mut replica = replica();
        let out = replica.hears(1, message);
        assert_eq!(refused(&out), [(1, ahead(LAST, 3))], "message {n}");
        assert_eq!(out.len(), 1, "message {n} has no other effect: {out:?}");
        assert_eq!(replica.core.status().view, view(3, 0), "message {n}");
    }
}

/// Without the bound this group has no view after the next one, which no message can name.
#[test]
fn a_group_goes_on_counting_after_a_lie() {
    let log = vec![noop(view(1, 0), 1), noop(view(1, 0), 2)];
    let old = view(1, 0);
    let mut replica = Replica::found(Durability::Disk, (old, old), vs(old, 0), log);
    replica.now = START + TIMEOUT;
    replica.hears(0, &asks(view(LAST, 0)));
    assert_eq!(stands_in(&mut replica), view(2, ME.0));
}

#[test]
fn a_replica_that_was_away_for_years_is_told_at_once() {
    let mut replica = replica();
    let long = view(3 + AT_ONCE, 1);
    replica.read(1, &prepare(long));
    assert_eq!(replica.core.status().view, long);
}

#[test]
fn a_distance_that_is_refused_is_believed_after_a_while() {
    let mut replica = replica();
    let far = AT_ONCE << 2;
    let claim = prepare(view(far, 1));
    assert_eq!(refused(&replica.hears(1, &claim)), [(1, ahead(far, 3))]);
    replica.now = START + Micros(far);
    assert_eq!(refused(&replica.hears(1, &claim)), []);
    assert_eq!(replica.core.status().view, view(far, 1));
}

#[test]
fn claims_of_one_peer_count_together_and_those_of_others_apart() {
    let mut replica = replica();
    let half = AT_ONCE / 2;
    replica.now = START;
    for n in 1..=2 {
        assert_eq!(refused(&replica.hears(1, &asks(view(3 + n * half, 1)))), []);
    }
    let more = 3 + 2 * half + 1;
    let why = ahead(more, more - 1);
    assert_eq!(refused(&replica.hears(1, &asks(view(more, 1)))), [(1, why)]);
    assert_eq!(refused(&replica.hears(0, &asks(view(more, 1)))), []);
    // Once another one has told of it, it is no lie.
    assert_eq!(refused(&replica.hears(1, &asks(view(more, 1)))), []);
    replica.now = START + Micros(10);
    assert_eq!(refused(&replica.hears(1, &asks(view(more + 10, 1)))), []);
    assert_eq!(
        refused(&replica.hears(1, &asks(view(more + 11, 1)))).len(),
        1
    );
}
