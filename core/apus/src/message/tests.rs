use super::decode::ROUND_MAX;
use super::*;
use crate::EntryKind;
use crate::log::entry;
use plover_types::wire::Versions;
use plover_types::{ReplicaId, ReplicaSet};
use proptest::prelude::*;

const LEADER: ReplicaId = ReplicaId(1);

fn decode(bytes: &[u8], from: ReplicaId) -> Option<(Message, Batch<'_>)> {
    super::decode(bytes, from, Versions::OURS)
}

fn append(view: View, prev: Viewstamp, entries: Vec<Entry>) -> Vec<u8> {
    let message = Message::Append(Append {
        view,
        generation: View::NONE,
        prev,
        commit: Index(0),
        trim: Index(0),
        stamp: Micros(5),
        span: Micros(7),
        incarnation: 6,
        number: 0,
        snapshot: None,
        count: entries.len() as u64,
    });
    message.encode(entries.iter(), Vec::new())
}

#[test]
fn a_message_that_no_correct_replica_sends_is_refused() {
    let view = View::new(2, LEADER);
    let start = Viewstamp::default();
    let noop = |index| entry(view.0, index, EntryKind::Noop);
    let before = |index| Viewstamp {
        view,
        index: Index(index),
    };
    let good = append(view, start, vec![noop(1), noop(2)]);
    let (_, entries) = decode(&good, LEADER).expect("a good message");
    assert_eq!(entries.iter().count(), 2);
    assert!(decode(&good, ReplicaId(2)).is_none(), "another's view");
    let more = [good.as_slice(), &[0]].concat();
    assert!(decode(&more, LEADER).is_none(), "bytes after the end");
    assert!(decode(&good[..good.len() - 1], LEADER).is_none());
    let bad = [
        append(view, start, vec![noop(2)]),
        append(view, start, vec![noop(1), noop(3)]),
        append(View::new(1, LEADER), start, vec![noop(1)]),
        append(View::new(ROUND_MAX + 1, LEADER), start, vec![]),
        append(view, before(u64::MAX), vec![]),
        append(
            view,
            start,
            vec![entry(view.0, 1, EntryKind::InSync(ReplicaSet(0)))],
        ),
        append(
            view,
            start,
            vec![entry(
                view.0,
                1,
                EntryKind::Members(Members {
                    voters: ReplicaSet(0b11),
                    learners: ReplicaSet(0b110),
                }),
            )],
        ),
        append(view, before(u64::MAX), vec![noop(1)]),
        append(view, before(u64::MAX - 1), vec![noop(u64::MAX), noop(0)]),
        append(view, start, vec![entry(view.0, 1, EntryKind::Version(0))]),
        append(
            view,
            start,
            vec![entry(view.0, 1, EntryKind::Version(u8::MAX))],
        ),
    ];
    for (i, bytes) in bad.iter().enumerate() {
        assert!(decode(bytes, LEADER).is_none(), "case {i}");
    }
}

#[test]
fn no_message_is_larger_than_its_bound() {
    let big = Viewstamp {
        view: View(u64::MAX),
        index: Index(u64::MAX),
    };
    let members = Members {
        voters: ReplicaSet(u16::MAX),
        learners: ReplicaSet(u16::MAX),
    };
    let configuration = Configuration {
        in_sync: ReplicaSet(u16::MAX),
        members,
        version: u8::MAX,
    };
    let message = |entries: &[Entry]| {
        let message = Message::Append(Append {
            view: big.view,
            generation: big.view,
            prev: big,
            commit: big.index,
            trim: big.index,
            stamp: Micros::NEVER,
            span: Micros::NEVER,
            incarnation: u64::MAX,
            number: u64::MAX,
            snapshot: Some(configuration),
            count: u64::MAX,
        });
        message.encode(entries.iter(), Vec::new()).len()
    };
    let empty = message(&[]);
    assert!(empty <= HEADER_BYTES_MAX, "{empty}");
    let kinds = [
        EntryKind::App,
        EntryKind::InSync(ReplicaSet(u16::MAX)),
        EntryKind::Members(members),
        EntryKind::Version(u8::MAX),
    ];
    for kind in kinds {
        let one = Entry {
            viewstamp: big,
            kind,
            payload: vec![0; 1 << 20],
        };
        let full = message(&[one]);
        assert!(
            full <= HEADER_BYTES_MAX + ENTRY_BYTES_MAX + (1 << 20),
            "{full}"
        );
    }
}

proptest! {
    #[test]
    fn decoding_noise_never_panics(mut bytes: Vec<u8>, tag in 0u8..14) {
        let _ = decode(&bytes, LEADER);
        // With the right version and a tag, noise gets past the first check.
        bytes.insert(0, tag);
        bytes.insert(0, wire::WIRE_VERSION);
        let _ = decode(&bytes, LEADER);
    }
}
