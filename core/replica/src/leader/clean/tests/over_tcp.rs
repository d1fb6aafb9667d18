//! The same over TCP.

use super::*;
use plover_types::Lane;
use plover_types::wire::{self, Versions};

const MS: fn(u64) -> Micros = Micros::from_ms;

/// A segment from the guest: `flags` is "syn", "fin" or "ack".
fn segment(seq: u32, flags: &str, payload: &[u8]) -> Frame {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 2], [10, 0, 0, 9], 64)
        .tcp(80, 4000, seq, 1000)
        .ack(70);
    let builder = match flags {
        "syn" => builder.syn(),
        "fin" => builder.fin(),
        _ => builder,
    };
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    Frame(bytes)
}

fn word(at: u64, bytes: u32, cut: u64) -> Reply {
    Reply {
        clean_as_of: Some(SyncNo(cut)),
        guest: (Some([10, 0, 0, 2].into()), 80),
        client: ([10, 0, 0, 9].into(), 4000),
        protocol: 6,
        bytes,
        about: About::Stream { at },
    }
}

/// The guest says this and sends that. Returns how many frames leave early.
fn sends(replica: &mut Replica, words: Vec<Reply>, frames: Vec<Frame>) -> usize {
    let now = replica.cx.now;
    let before = replica.cx.outputs.cleared.len();
    let replies = words;
    let lost = false;
    apply(replica, now, Event::Replies { replies, lost });
    apply(replica, now, Event::Outputs(frames));
    replica.cx.outputs.cleared.len() - before
}

/// Takes a checkpoint. Returns the connections that the secondary is told of.
fn checkpoint(replica: &mut Replica, ms: u64) -> Vec<KnownStream> {
    checkpoint_with(replica, ms, vec![])
}

/// Takes a checkpoint, and the guest sends these between the cut and the end mark.
fn checkpoint_with(replica: &mut Replica, ms: u64, later: Vec<Frame>) -> Vec<KnownStream> {
    let number = replica.cx.group.sync_no.next();
    apply(replica, MS(ms), Event::Outputs(vec![datagram(b"held")]));
    apply(replica, MS(ms), Event::SyncDue);
    let paused = Event::GuestPaused {
        outputs: Vec::new(),
        unconsumed: Unconsumed::default(),
    };
    let out = apply(replica, MS(ms), paused);
    replica.cx.memory.ledger.settle();
    let scan = out.iter().find_map(|action| match action {
        Action::Scan(job) => Some(*job),
        _ => None,
    });
    let scanned = Event::Scanned(scan.expect("it is scanned"), PageSet::new(16));
    let mut out = apply(replica, MS(ms), scanned);
    apply(replica, MS(ms), Event::Outputs(later));
    out.extend(apply(replica, MS(ms), Event::StateSaved(vec![1])));
    let told = out.iter().filter_map(|action| match action {
        Action::Write {
            lane: Lane::Bulk,
            bytes,
            ..
        } => {
            let message = wire::decode::<plover_syncvm::SyncMessage>(bytes);
            match message.unwrap().body {
                Body::Streams { streams, .. } => Some(streams),
                _ => None,
            }
        }
        _ => None,
    });
    let told = told.flatten().collect();
    let ack = from_secondary(Body::Ack { sync: number }, replica);
    apply(replica, MS(ms), ack);
    apply(replica, MS(ms), Event::GuestResumed);
    told
}

/// A protected leader whose peers all know the connections' message.
fn of_this_release() -> Replica {
    let mut replica = protected();
    let versions = Versions {
        group: STREAMS_VERSION,
        ..Versions::OURS
    };
    let peer = SECONDARY;
    apply(&mut replica, NOW, Event::Speaks { peer, versions });
    replica
}

/// The guest has opened a connection from byte 1000 on, and a program has spoken of it.
fn opened() -> Replica {
    let mut replica = of_this_release();
    sends(&mut replica, vec![], vec![segment(999, "syn", b"")]);
    let early = sends(&mut replica, vec![word(0, 4, 0)], vec![]);
    assert_eq!(early, 0);
    replica
}

#[test]
fn bytes_leave_early_once_the_secondary_knows_the_connection() {
    let mut replica = opened();
    let one = |replica: &mut Replica, at: u32, cut| {
        let words = vec![word(u64::from(at), 4, cut)];
        sends(replica, words, vec![segment(1000 + at, "ack", b"data")])
    };
    assert_eq!(one(&mut replica, 0, 1), 0, "no sync has listed it");
    let told = checkpoint(&mut replica, 30);
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].first, told[0].acked, told[0].heard),
        (1000, 1000, 70)
    );
    assert!(told[0].early);
    assert_eq!(one(&mut replica, 4, 1), 1);
    assert_eq!(one(&mut replica, 8, 2), 0, "that cut is not acknowledged");
    assert_eq!(
        sends(&mut replica, vec![], vec![segment(1012, "ack", b"data")]),
        0,
        "unsaid"
    );
}

/// Segments are cut anywhere. All their bytes must be clean.
#[test]
fn a_segment_is_clean_if_all_its_bytes_are() {
    let mut replica = opened();
    checkpoint(&mut replica, 30);
    let words = || vec![word(0, 3, 1), word(3, 7, 1), word(20, 5, 1)];
    assert_eq!(
        sends(&mut replica, words(), vec![segment(1001, "ack", &[0; 9])]),
        1
    );
    assert_eq!(
        sends(&mut replica, vec![], vec![segment(1009, "ack", &[0; 2])]),
        0
    );
    assert_eq!(
        sends(&mut replica, vec![], vec![segment(1019, "ack", &[0; 2])]),
        0
    );
    assert_eq!(
        sends(&mut replica, vec![], vec![segment(1020, "ack", &[0; 5])]),
        1
    );
}

/// A later connection with the same addresses and ports counts its bytes anew, and the secondary does not know it.
#[test]
fn a_connection_that_begins_anew_is_another() {
    let mut replica = opened();
    checkpoint(&mut replica, 30);
    sends(&mut replica, vec![], vec![segment(4999, "syn", b"")]);
    let one = vec![segment(5000, "ack", b"data")];
    assert_eq!(sends(&mut replica, vec![word(0, 4, 1)], one), 0);
    assert_eq!(checkpoint(&mut replica, 60).len(), 1);
}

/// The state of the cut has it, and clients may have got bytes over it since.
#[test]
fn a_connection_that_closes_after_the_cut_is_listed() {
    let mut replica = opened();
    checkpoint(&mut replica, 30);
    let closes = vec![segment(1000, "fin", b"")];
    assert_eq!(checkpoint_with(&mut replica, 60, closes).len(), 1);
    assert_eq!(checkpoint(&mut replica, 90), []);
}

/// The bytes that were called clean first were not sent in the end.
#[test]
fn a_later_word_about_the_same_bytes_counts() {
    let mut replica = opened();
    checkpoint(&mut replica, 30);
    let words = vec![word(0, 8, 1), word(4, 8, 2)];
    assert_eq!(
        sends(&mut replica, words, vec![segment(1000, "ack", b"data")]),
        0
    );
}

/// The next leader goes on with it, and resets nothing.
#[test]
fn a_connection_that_is_not_early_goes_on_under_the_next_leader() {
    let mut replica = of_this_release();
    let mut known = checkpoint(&mut opened(), 30);
    known[0].early = false;
    replica.leading().unwrap().0.adopt_streams(known);
    assert_eq!(replica.leading().unwrap().0.resets.list().len(), 0);
    assert_eq!(checkpoint(&mut replica, 30).len(), 1);
    let one = vec![segment(1004, "ack", b"data")];
    assert_eq!(sends(&mut replica, vec![word(4, 4, 1)], one), 1);
}

/// The secondary would have to reset connections at a planned takeover otherwise.
#[test]
fn a_leader_that_is_about_to_hand_over_lists_none() {
    let mut replica = opened();
    assert_eq!(checkpoint(&mut replica, 30).len(), 1);
    assert!(replica.leading().unwrap().0.has_early_streams());
    replica.leading().unwrap().0.clean.cut(SyncNo(2), 0);
    let listed: Vec<_> = replica.leading().unwrap().0.clean.streams.list().collect();
    assert!(!listed[0].early, "but the next leader knows it");
    let one = vec![segment(1000, "ack", b"data")];
    assert_eq!(sends(&mut replica, vec![word(0, 4, 1)], one), 0);
}
