//! Both ends of a connection are asked, and get the reset that they believe.

use super::*;
use crate::api::{Action, Event};
use crate::replica::Replica;
use crate::testing::{apply, leader};
use etherparse::PacketBuilder;
use plover_packets::MACS_BYTES;
use plover_policy::Preset;

const MACS: [u8; MACS_BYTES] = [4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2];
const GUEST: ([u8; 4], u16) = ([10, 0, 0, 2], 80);
const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 9], 4000);

/// The connection: the client has acknowledged up to 1000, the guest up to 70.
fn early() -> KnownStream {
    let end = |(address, port): ([u8; 4], u16)| (address.into(), port);
    let route = Route {
        protocol: 6,
        source: end(GUEST),
        destination: end(CLIENT),
    };
    KnownStream {
        route,
        macs: MACS,
        first: 900,
        acked: 1000,
        heard: 70,
        early: true,
    }
}

/// A segment between two ends, with these flags.
fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16), seq: u32, flags: &str, data: &[u8]) -> Frame {
    let builder = PacketBuilder::ethernet2([4; 6], [2; 6])
        .ipv4(from.0, to.0, 64)
        .tcp(from.1, to.1, seq, 1000);
    let builder = match flags.strip_prefix("ack ") {
        Some(ack) => builder.ack(ack.parse().unwrap()),
        None if flags == "syn" => builder.syn(),
        None => builder.rst(),
    };
    let mut bytes = Vec::new();
    builder.write(&mut bytes, data).unwrap();
    Frame(bytes)
}

fn of_client(seq: u32, flags: &str) -> Frame {
    segment(CLIENT, GUEST, seq, flags, b"get a")
}

fn of_guest(seq: u32, flags: &str) -> Frame {
    segment(GUEST, CLIENT, seq, flags, b"")
}

fn number(frame: &Frame) -> (u32, Option<u32>, bool) {
    match Packet::of(frame) {
        Packet::Segment(_, segment) => (segment.seq, segment.ack, segment.rst),
        packet @ Packet::Datagram(..) => panic!("{packet:?}"),
    }
}

/// The segments to the guest, and this leader's own to clients, which wait for the lease.
fn made(replica: &mut Replica, out: &[Action]) -> [Vec<(u32, Option<u32>, bool)>; 2] {
    let fed = out.iter().filter_map(|action| match action {
        Action::Feed(frames) => Some(frames.iter().map(number)),
        _ => None,
    });
    let fed = fed.flatten().collect();
    let told = replica.leading().unwrap().0.resets.take_to_clients();
    [fed, told.iter().map(number).collect()]
}

fn happens(replica: &mut Replica, ms: u64, event: Event) -> [Vec<(u32, Option<u32>, bool)>; 2] {
    let out = apply(replica, Micros::from_ms(ms), event);
    made(replica, &out)
}

/// A leader that has taken over, alone. Inputs are fed as they come.
fn taken_over() -> Replica {
    let mut replica = leader(Preset::find("remus-25").unwrap().policy, false);
    replica.leading().unwrap().0.resets.begin(vec![early()]);
    replica
}

#[test]
fn both_ends_are_asked_for_their_numbers_and_reset_by_them() {
    let mut replica = taken_over();
    let asked = happens(&mut replica, 1, Event::Tick);
    assert_eq!(asked[0], [(68, Some(1000), false)]);
    assert_eq!(asked[1], [(998, Some(70), false)]);

    let [fed, told] = happens(
        &mut replica,
        2,
        Event::Frames(vec![of_client(70, "ack 1234")]),
    );
    assert_eq!((fed, told), (vec![], vec![(1234, None, true)]));
    let [fed, told] = happens(
        &mut replica,
        3,
        Event::Outputs(vec![of_guest(900, "ack 75")]),
    );
    assert_eq!((fed, told), (vec![(75, None, true)], vec![]));
    assert_eq!(replica.cx.outputs.guard.len(), 0, "its bytes stay here");

    // Closed ends answer with resets of their own, and then the connection is forgotten.
    let asked = happens(&mut replica, 300, Event::Tick);
    assert_eq!((asked[0].len(), asked[1].len()), (1, 1));
    let outputs = Event::Outputs(vec![of_guest(1000, "rst")]);
    assert_eq!(happens(&mut replica, 301, outputs), [vec![], vec![]]);
    let forged = Event::Frames(vec![of_client(71, "rst")]);
    assert_eq!(happens(&mut replica, 302, forged), [vec![], vec![]]);
    assert_eq!(replica.leading().unwrap().0.resets.list().len(), 1);
    let frames = Event::Frames(vec![of_client(70, "rst")]);
    assert_eq!(happens(&mut replica, 303, frames), [vec![], vec![]]);
    assert_eq!(replica.leading().unwrap().0.resets.list().len(), 0);
}

#[test]
fn a_connection_that_begins_anew_is_another() {
    let mut replica = taken_over();
    happens(&mut replica, 1, Event::Tick);
    let [fed, _] = happens(&mut replica, 2, Event::Frames(vec![of_client(5, "syn")]));
    assert_eq!(fed, [(5, None, false)]);
    happens(&mut replica, 3, Event::Outputs(vec![of_guest(7, "syn")]));
    assert_eq!(replica.leading().unwrap().0.resets.list().len(), 0);
    assert_eq!(replica.cx.outputs.guard.len(), 1);
}

/// The client is away: it is asked for minutes, and its connection is kept until the guest's end has closed.
#[test]
fn a_client_that_does_not_answer_is_asked_more_and_more_rarely() {
    let mut replica = taken_over();
    let mut asked = Vec::new();
    for second in 0..400 {
        let [_, told] = happens(&mut replica, second * 1000, Event::Tick);
        asked.extend(told.iter().map(|_| second));
    }
    assert!(
        asked.len() > QUESTIONS as usize && asked.len() < 25,
        "{asked:?}"
    );
    assert_eq!(replica.leading().unwrap().0.resets.list().len(), 1);
    let outputs = Event::Outputs(vec![of_guest(1000, "rst")]);
    happens(&mut replica, 400_001, outputs);
    happens(&mut replica, 500_000, Event::Tick);
    assert_eq!(replica.leading().unwrap().0.resets.list().len(), 0);
}

/// Its guest has sent them as a secondary's, or before this replica lost the lead for a moment.
#[test]
fn what_the_guest_sent_before_stays_here() {
    let mut replica = taken_over();
    let resets = &mut replica.leading().unwrap().0.resets;
    let other = segment(GUEST, ([10, 0, 0, 8], 4000), 1, "ack 1", b"other");
    let frames = vec![of_guest(900, "ack 75"), other.clone()];
    assert_eq!(resets.without_doomed(frames), [other]);
}

/// The next leader would take them for the client's.
#[test]
fn a_leader_that_is_about_to_hand_over_keeps_no_segments_of_its_own() {
    let mut replica = taken_over();
    replica.leading().unwrap().0.kept_frames = Some(Vec::new());
    happens(&mut replica, 1, Event::Tick);
    let kept = replica.leading().unwrap().0.kept_frames.clone();
    assert_eq!(kept, Some(Vec::new()));
}
