//! The ring against a dumb twin: a queue. Bytes arrive in pieces, late, in any order and
//! damaged; what comes out is the queue's front or nothing.

use plover_fabric::ring::{
    BufferPool, Capacity, Damage, Position, RingReader, RingWriter, Salt, record_bytes,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const SALT: Salt = Salt(0x5eed);

#[test]
fn the_form_of_records_is_that_of_their_version() {
    let mut pair = Pair::new(128, 0);
    pair.put(b"a record");
    pair.put(b"and one that ends in padding");
    let bytes = pair.wire.iter().map(|(_, byte)| *byte).collect();
    plover_types::forms::assert_form("ring records", &[bytes]);
}

/// Bytes between the writer and the ring, one by one.
type Wire = VecDeque<(usize, u8)>;

struct Pair {
    capacity: Capacity,
    writer: RingWriter,
    reader: RingReader,
    memory: Vec<u8>,
    wire: Wire,
    arrived: Position,
    twin: VecDeque<Vec<u8>>,
    pool: BufferPool,
}

impl Pair {
    fn new(bytes: usize, stale: u8) -> Self {
        let capacity = Capacity::new(bytes).unwrap();
        Self {
            capacity,
            writer: RingWriter::new(capacity, SALT),
            reader: RingReader::new(capacity, SALT),
            memory: vec![stale; bytes],
            wire: Wire::new(),
            arrived: Position(0),
            twin: VecDeque::new(),
            pool: BufferPool::default(),
        }
    }

    /// Puts one record, if it fits; the twin says whether it has to.
    fn put(&mut self, payload: &[u8]) {
        let fits = record_bytes(payload.len()) <= self.writer.free();
        if payload.len() > self.capacity.record_bytes_max() {
            return;
        }
        let put = self.writer.put(payload, |offset, run| {
            assert!(
                offset + run.len() <= self.capacity.bytes(),
                "a run crosses the end"
            );
            self.wire
                .extend(run.iter().enumerate().map(|(i, byte)| (offset + i, *byte)));
        });
        assert_eq!(put, fits);
        if put {
            self.twin.push_back(payload.to_vec());
        }
    }

    /// The next record, by looking at the memory alone.
    fn look(&mut self) -> Option<Vec<u8>> {
        self.reader.look(&self.memory[..], &mut self.pool)
    }

    /// The next record, by how many bytes have arrived.
    fn take(&mut self) -> Result<Option<Vec<u8>>, Damage> {
        self.reader
            .take(&self.memory[..], self.arrived, &mut self.pool)
    }

    /// Lets the next `count` bytes arrive.
    fn arrive(&mut self, count: usize) {
        for (offset, byte) in self.wire.drain(..count.min(self.wire.len())) {
            self.memory[offset] = byte;
            self.arrived.0 += 1;
        }
    }

    /// Hands a credit over, if one is due.
    fn credit(&mut self) {
        if let Some(head) = self.reader.credit() {
            self.writer.credit(head).unwrap();
        }
    }

    /// Takes all that is there, by `take`; each must be the twin's next.
    fn drain(&mut self) {
        while let Some(payload) = self.take().unwrap() {
            assert_eq!(Some(payload), self.twin.pop_front());
        }
        self.credit();
    }
}

/// Payloads whose content is likely to be mistaken for framing: small numbers, zeros, canaries,
/// whole records with the checksum of `salt`.
fn payload(max: usize, salt: Salt) -> impl Strategy<Value = Vec<u8>> {
    let forged =
        (0u64..40, prop::collection::vec(any::<u8>(), 0..20)).prop_map(move |(lap, body)| {
            let mut other = RingWriter::new(Capacity::new(4096).unwrap(), salt);
            let mut bytes = Vec::new();
            for _ in 0..=lap {
                bytes.clear();
                let _ = other.put(&body, |_, run| bytes.extend_from_slice(run));
            }
            bytes
        });
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..max),
        prop::collection::vec(prop_oneof![Just(0), Just(1), 0x80u8..0x90], 0..max),
        forged,
    ]
}

/// Payloads with the bytes that arrive after each.
fn steps(salt: Salt) -> impl Strategy<Value = Vec<(Vec<u8>, usize)>> {
    prop::collection::vec((payload(140, salt), 0usize..120), 1..120)
}

proptest! {
    /// In order, in pieces of any size: exactly the twin, lap after lap.
    #[test]
    fn in_order_arrival_is_a_queue(bytes in 8usize..64, stale: u8, steps in steps(SALT)) {
        let mut pair = Pair::new(bytes * 8, stale);
        for (payload, chunk) in steps {
            pair.put(&payload);
            pair.arrive(chunk);
            pair.drain();
        }
        pair.arrive(usize::MAX);
        pair.drain();
        prop_assert!(pair.twin.is_empty(), "all that was put has come out");
    }

    /// Only looking at the memory, with bytes of a record arriving in any order: the twin's
    /// next or nothing; once all has arrived, everything.
    #[test]
    fn any_order_of_arrival_is_a_queue(
        bytes in 8usize..64,
        stale: u8,
        steps in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..140), any::<u64>()), 1..80),
    ) {
        let mut pair = Pair::new(bytes * 8, stale);
        for (payload, order) in steps {
            pair.put(&payload);
            let mut late: Vec<_> = pair.wire.drain(..).collect();
            let mut random = plover_types::SplitMix64::new(order);
            while !late.is_empty() {
                let next = random.range(0, late.len() as u64 - 1) as usize;
                let (offset, byte) = late.swap_remove(next);
                // Looking is costly; look at some of the states, and at the last but one.
                if late.is_empty() || random.range(0, 9) == 0 {
                    let early = pair.look();
                    // Padding, and bytes that were right already, may come last.
                    prop_assert!(early.is_none() || early == pair.twin.pop_front());
                }
                pair.memory[offset] = byte;
            }
            while let Some(payload) = pair.look() {
                prop_assert_eq!(Some(payload), pair.twin.pop_front());
            }
            prop_assert!(pair.twin.is_empty());
            pair.credit();
        }
    }

    /// Damage on the way never brings a wrong record out. The forged records have another salt:
    /// with the session's own, a look at the memory alone would take one for the next record.
    #[test]
    fn damage_is_never_a_record(
        bytes in 16usize..64,
        steps in steps(Salt(!SALT.0)),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6),
    ) {
        let mut pair = Pair::new(bytes * 8, 0);
        for (payload, chunk) in steps {
            pair.put(&payload);
            for (at, mask) in &flips {
                if !pair.wire.is_empty() {
                    let at = at.index(pair.wire.len());
                    pair.wire[at].1 ^= mask;
                }
            }
            pair.arrive(chunk);
            let looked = pair.look();
            if looked.is_some() {
                prop_assert_eq!(looked, pair.twin.pop_front());
            }
            match pair.take() {
                Ok(None) => {}
                Ok(payload) => prop_assert_eq!(payload, pair.twin.pop_front()),
                // The session ends here.
                Err(_) => return Ok(()),
            }
            pair.credit();
        }
    }

    /// Memory full of noise is no record, and looking at it never panics.
    #[test]
    fn noise_is_no_record(memory in prop::collection::vec(any::<u8>(), 256), small: bool) {
        let mut memory = memory;
        if small {
            // A header that gets past the first looks.
            memory[1..4].fill(0);
            memory[8..16].copy_from_slice(&1u64.to_le_bytes());
        }
        let mut reader = RingReader::new(Capacity::new(256).unwrap(), SALT);
        let mut pool = BufferPool::default();
        prop_assert_eq!(reader.look(&memory[..], &mut pool), None);
        let taken = reader.take(&memory[..], Position(256), &mut pool);
        prop_assert!(matches!(taken, Err(_) | Ok(None)));
    }
}

#[test]
fn the_checksum_decides_and_the_canary_only_hints() {
    let mut pair = Pair::new(256, 0);
    pair.put(b"payload");
    pair.arrive(usize::MAX);
    let good = pair.memory.clone();
    let canary_at = 16 + b"payload".len();

    pair.memory[canary_at] ^= 1;
    assert_eq!(pair.look(), None, "no hint, no look");

    pair.memory = good.clone();
    pair.memory[17] ^= 1;
    assert_eq!(pair.look(), None, "a hint, but another checksum");
    let taken = pair.take();
    assert_eq!(
        taken,
        Err(Damage::Checksum {
            sequence: 1,
            at: Position(0)
        })
    );

    pair.memory = good;
    pair.memory[canary_at] ^= 1;
    let taken = pair.take();
    assert_eq!(
        taken,
        Ok(Some(b"payload".to_vec())),
        "arrived, checked: no hint needed"
    );
}

#[test]
fn a_record_of_another_session_is_none() {
    let mut pair = Pair::new(256, 0);
    pair.put(b"of the last session");
    pair.arrive(usize::MAX);
    let mut next = RingReader::new(pair.capacity, Salt(SALT.0 + 1));
    assert_eq!(next.look(&pair.memory[..], &mut pair.pool), None);
    assert_eq!(pair.look(), pair.twin.pop_front());
}

#[test]
fn sizes_have_bounds() {
    for bad in [0, 8, 63, 65, 100, (1 << 30) + 8, usize::MAX] {
        assert!(Capacity::new(bad).is_err(), "{bad}");
    }
    for bytes in [64, 72, 4096, 1 << 30] {
        let capacity = Capacity::new(bytes).unwrap();
        let max = capacity.record_bytes_max();
        assert!(record_bytes(max) <= bytes / 2, "{bytes}");
        assert!(
            record_bytes(max + 1) > bytes / 2,
            "{bytes}: the bound is tight"
        );
    }
}

/// However the ring has been used, a drained one takes the largest record.
#[test]
fn a_drained_ring_has_room_for_the_largest() {
    for bytes in (64..600).step_by(8) {
        for small in 0..40 {
            let mut pair = Pair::new(bytes, 0);
            let max = pair.capacity.record_bytes_max();
            for _ in 0..50 {
                pair.put(&vec![7; small.min(max)]);
                pair.arrive(usize::MAX);
                pair.drain();
            }
            pair.put(&vec![8; max]);
            assert_eq!(
                pair.twin.len(),
                1,
                "ring of {bytes}, records of {small} before"
            );
        }
    }
}

#[test]
fn impossible_credits_are_refused() {
    let mut pair = Pair::new(256, 0);
    pair.put(&[1; 50]);
    let tail = pair.writer.tail();
    assert!(
        pair.writer.credit(Position(tail.0 + 1)).is_err(),
        "beyond the tail"
    );
    pair.writer.credit(tail).unwrap();
    assert!(pair.writer.credit(Position(0)).is_err(), "backwards");
    pair.writer.credit(tail).expect("the same again");
    assert_eq!(pair.writer.free(), 256);
}
