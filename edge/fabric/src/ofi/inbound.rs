//! One ring that the peer writes here.
//!
//! Nothing orders the bytes inside a write, nor one write after another (EFA), so a record is
//! there when its checksum agrees, and not before. A doorbell says that looking is worth while.
//! It also says how far the peer has written, which tells a record that is still arriving from
//! one that never will be whole: if what was announced is not readable for [`STUCK_AFTER`], the
//! peer is broken and the link is given up.

use super::doorbell::{Doorbell, Mark};
use super::outbound::WINDOW;
use crate::mapping::Mapping;
use crate::ring::{BufferPool, Capacity, Position, RingReader, Salt};
use std::time::{Duration, Instant};

/// Announced bytes that do not become records for so long are damage. Fabrics deliver what they
/// announce within microseconds; this leaves room for a host that is short of everything.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// A credit goes out at the latest after so many doorbells, so that the peer's window opens
/// again long before it is full.
const DOORBELLS_PER_CREDIT: usize = WINDOW / 4;

/// The reading end of one ring.
#[derive(Debug)]
pub struct Inbound {
    capacity: Capacity,
    reader: RingReader,
    /// Up to where the peer says it has written.
    announced: Position,
    /// Doorbells since the last credit.
    doorbells: usize,
    /// A credit to be written, until it is.
    credit: Option<Position>,
    /// Since when something announced is not readable.
    behind_since: Option<Instant>,
    /// Whether any doorbell came: the peer's way to us works.
    heard: bool,
}

impl Inbound {
    pub fn new(capacity: Capacity, salt: Salt) -> Self {
        Self {
            capacity,
            reader: RingReader::new(capacity, salt),
            announced: Position(0),
            doorbells: 0,
            credit: None,
            behind_since: None,
            heard: false,
        }
    }

    /// Takes in a doorbell. A late one, or one that no correct peer rings, announces nothing.
    pub fn ring(&mut self, mark: Mark) {
        self.heard = true;
        self.doorbells += 1;
        let head = self.reader.head();
        let full = Position(head.0 + self.capacity.bytes() as u64);
        if let Some(tail) = mark.between(head.max(self.announced), full) {
            self.announced = tail;
        }
    }

    /// Where the next record stands.
    pub fn head(&self) -> Position {
        self.reader.head()
    }

    pub fn is_heard(&self) -> bool {
        self.heard
    }

    /// The next record, if it is wholly there.
    pub fn look(&mut self, memory: &Mapping, pool: &mut BufferPool) -> Option<Vec<u8>> {
        let record = self.reader.look(memory, pool)?;
        self.behind_since = None;
        Some(record)
    }

    /// Notes that a look found nothing more; `true` if what was announced has been missing for
    /// too long.
    pub fn is_stuck(&mut self, now: Instant) -> bool {
        if self.reader.head() >= self.announced {
            self.behind_since = None;
            return false;
        }
        let since = *self.behind_since.get_or_insert(now);
        now.saturating_duration_since(since) >= STUCK_AFTER
    }

    /// Whether something announced was not readable at the last look.
    pub fn is_behind(&self) -> bool {
        self.behind_since.is_some()
    }

    /// The credit to write now, if one is due; the same until [`credited`](Self::credited).
    pub fn credit(&mut self) -> Option<u32> {
        let head = self.reader.head();
        if self.reader.credit().is_some() || self.doorbells >= DOORBELLS_PER_CREDIT {
            self.doorbells = 0;
            self.credit = Some(head);
        }
        self.credit.map(|_| {
            // Never less than is known by now.
            self.credit = Some(head);
            Doorbell::read(head)
        })
    }

    /// The credit was written.
    pub fn credited(&mut self) {
        self.credit = None;
    }

    /// Whether a credit waits to be written.
    pub fn owes_credit(&self) -> bool {
        self.credit.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingWriter;

    fn ring(inbound: &mut Inbound, to: Position) {
        let Doorbell::Written(mark) = Doorbell::decode(Doorbell::written(to)) else {
            panic!("another kind");
        };
        inbound.ring(mark);
    }

    struct Ends {
        memory: Mapping,
        writer: RingWriter,
        inbound: Inbound,
        pool: BufferPool,
    }

    fn ends() -> Ends {
        let capacity = Capacity::new(4096).unwrap();
        Ends {
            memory: Mapping::anonymous(4096).unwrap(),
            writer: RingWriter::new(capacity, Salt(5)),
            inbound: Inbound::new(capacity, Salt(5)),
            pool: BufferPool::default(),
        }
    }

    #[test]
    fn bytes_in_any_order_make_a_record_only_when_all_are_there() {
        let mut ends = ends();
        let mut pieces = Vec::new();
        let piece = |at: usize, bytes: &[u8]| {
            let bytes = bytes.iter().enumerate();
            pieces.extend(bytes.map(|(i, &byte)| (at + i, byte)));
        };
        assert!(ends.writer.put(&[9; 100], piece));
        ring(&mut ends.inbound, ends.writer.tail());
        // Last byte first.
        for (at, byte) in pieces.into_iter().rev() {
            assert_eq!(ends.inbound.look(&ends.memory, &mut ends.pool), None);
            ends.memory.copy_in(at, &[byte]);
        }
        assert_eq!(
            ends.inbound.look(&ends.memory, &mut ends.pool),
            Some(vec![9; 100])
        );
    }

    #[test]
    fn announced_bytes_that_never_come_are_noticed() {
        let mut ends = ends();
        let start = Instant::now();
        assert!(!ends.inbound.is_stuck(start), "nothing announced");
        ring(&mut ends.inbound, Position(64));
        assert!(!ends.inbound.is_stuck(start));
        assert!(ends.inbound.is_behind());
        assert!(!ends.inbound.is_stuck(start + STUCK_AFTER / 2));
        assert!(ends.inbound.is_stuck(start + STUCK_AFTER));
    }

    #[test]
    fn credits_come_by_bytes_and_by_doorbells() {
        let mut ends = ends();
        let mut credits = 0;
        for n in 0..200 {
            let (memory, writer) = (&ends.memory, &mut ends.writer);
            assert!(writer.put(b"x", |at, bytes| memory.copy_in(at, bytes)));
            let tail = writer.tail();
            ring(&mut ends.inbound, tail);
            assert!(ends.inbound.look(&ends.memory, &mut ends.pool).is_some());
            if let Some(credit) = ends.inbound.credit() {
                assert_eq!(credit, Doorbell::read(tail), "after {n}");
                ends.inbound.credited();
                ends.writer.credit(tail).unwrap();
                credits += 1;
            }
        }
        // 24 bytes each: a quarter of the ring is 43 records, sooner than 64 doorbells.
        assert_eq!(credits, 200 / 43);
        for _ in 0..DOORBELLS_PER_CREDIT {
            ring(&mut ends.inbound, Position(0));
        }
        assert!(ends.inbound.credit().is_some(), "doorbells alone");
    }
}
