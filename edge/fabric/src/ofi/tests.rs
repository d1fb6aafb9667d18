//! Sealed records on a link that is up, and somebody who writes into the ring without the key.
//!
//! The forger here is the strongest there can be on the network: it writes where the peer would, in the ring's framing, with
//! checksums and doorbells that are right.

use super::*;
use crate::keys::PrivateKey;
use crate::ring::RingMemory;
use crate::tests::{Pair, R0, R1};
use crate::{Fabric, FabricEvent};
use plover_types::ReplicaId;
use std::net::SocketAddr;

const RING_BYTES: [usize; 2] = [64 << 10, 64 << 10];
/// No provider injects so much.
const LARGE: &[u8] = &[7; 12 << 10];
const RECORD: &[u8] = b"sixteen bytes of a guest's memory";

fn open(me: u8, peer: (ReplicaId, SocketAddr), keys: Option<Keys>) -> OfiFabric {
    let any = "127.0.0.1:0".parse().expect("an address");
    let mut config = OfiConfig::new("test", ReplicaId(me), any, vec![peer], "tcp");
    config.ring_bytes = RING_BYTES;
    config.keys = keys.map(Arc::new);
    OfiFabric::new(config).expect("a software provider works everywhere")
}

fn pair(with_keys: bool) -> Pair<Ofi> {
    let own = [0, 1].map(|_| PrivateKey::generate().expect("random bytes"));
    let trusted = vec![(R0, own[0].public()), (R1, own[1].public())];
    let [lower, higher] = own.map(|own| with_keys.then(|| Keys::new(own, trusted.clone())));
    let any = "127.0.0.1:0".parse().expect("an address");
    let higher = open(1, (R0, any), higher);
    let there = higher.listener().address().expect("bound");
    Pair::linked(open(0, (R1, there), lower), higher)
}

fn count_records(pair: &Pair<Ofi>) -> usize {
    let events = pair.at_higher.iter();
    events
        .filter(|it| matches!(it, FabricEvent::Record { .. }))
        .count()
}

/// Writes one record and waits for it.
fn exchange(pair: &mut Pair<Ofi>) {
    let before = count_records(pair);
    pair.lower.write(R1, Lane::Log, RECORD).expect("up");
    pair.until(|it| count_records(it) > before);
}

/// Whether the memory into which replica 0 writes shows the record.
fn shows(pair: &Pair<Ofi>) -> bool {
    let mut ring = vec![0; RING_BYTES[0]];
    let end = &pair.higher.link().ends[Lane::Log.index()];
    end.inbound_memory().copy_out(0, &mut ring);
    ring.windows(RECORD.len()).any(|it| it == RECORD)
}

/// Checks that the last record of replica 0's end is refused: the link is lost and made anew, and goes on with other keys.
fn is_refused(mut pair: Pair<Ofi>) {
    let records = count_records(&pair);
    pair.until(|it| it.at_higher.contains(&FabricEvent::Down(R0)));
    assert_eq!(count_records(&pair), records, "a forged record is none");
    assert_eq!(pair.higher.stats().damaged, 1);
    pair.until(|it| it.at_lower.contains(&FabricEvent::Up(R1)) && Pair::is_up(it));
    exchange(&mut pair);
}

#[test]
fn the_ring_shows_no_record() {
    let mut sealed = pair(true);
    exchange(&mut sealed);
    assert!(!shows(&sealed));
    let mut plain = pair(false);
    exchange(&mut plain);
    assert!(shows(&plain), "without keys it does");
}

/// A sender that has a few records under way at most never fills the ring, however large it is: what the peer has read is free.
#[test]
fn what_the_peer_has_read_leaves_its_room() {
    for with_keys in [true, false] {
        let mut pair = pair(with_keys);
        for sent in 1..=3 * RING_BYTES[1] / LARGE.len() {
            let taken = pair.lower.write(R1, Lane::Bulk, LARGE);
            assert!(taken.is_ok(), "record {sent}: {taken:?}");
            pair.until(|it| count_records(it) == sent);
        }
    }
}

#[test]
fn a_record_without_a_seal_costs_the_link() {
    let mut pair = pair(true);
    exchange(&mut pair);
    pair.lower.link_mut().ends[0].seal = None;
    pair.lower.write(R1, Lane::Log, RECORD).expect("up");
    is_refused(pair);
}

#[test]
fn a_record_of_the_other_lane_costs_the_link() {
    let mut pair = pair(true);
    exchange(&mut pair);
    let [log, bulk] = &mut pair.lower.link_mut().ends;
    std::mem::swap(&mut log.seal, &mut bulk.seal);
    pair.lower.write(R1, Lane::Log, RECORD).expect("up");
    is_refused(pair);
}

#[test]
fn a_record_that_was_changed_costs_the_link() {
    let mut pair = pair(true);
    exchange(&mut pair);
    let end = &mut pair.lower.link_mut().ends[0];
    let (sealer, _) = end.seal.as_mut().expect("sealed");
    let mut sealed = sealer.seal(RECORD, end.outbound.writer.tail()).to_vec();
    sealed[3] ^= 1;
    end.seal = None;
    pair.lower.write(R1, Lane::Log, &sealed).expect("up");
    is_refused(pair);
}

#[test]
fn a_record_that_is_repeated_costs_the_link() {
    let mut pair = pair(true);
    let end = &mut pair.lower.link_mut().ends[0];
    let (sealer, _) = end.seal.as_mut().expect("sealed");
    let sealed = sealer.seal(RECORD, end.outbound.writer.tail()).to_vec();
    end.seal = None;
    pair.lower.write(R1, Lane::Log, &sealed).expect("up");
    pair.until(|it| count_records(it) == 1);
    pair.lower.write(R1, Lane::Log, &sealed).expect("up");
    is_refused(pair);
}
