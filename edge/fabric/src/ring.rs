//! The framing of records in a byte ring, shared by every fabric. Pure: no I/O, no `unsafe`.
//!
//! A ring is memory at the *consumer* that one *writer* fills by one-sided writes. The writer
//! never reads it. Both sides count bytes since the session began ([`Position`]); the place of
//! a position in memory is its remainder by the ring's size.
//!
//! ```text
//!            head (consumer)                tail (writer)
//!              │                              │
//!   ┌──────────▼──────────────────────────────▼──────────────────┐
//!   │ stale   │ record │ record │ torn record │ stale: last lap  │
//!   └────────────────────────────────────────────────────────────┘
//!
//!   record, every one at a multiple of 8, running over the ring's end to its start:
//!   ┌────────────┬──────────────┬─────────────┬───────────┬────────┬─────────┐
//!   │ length u32 │ CRC32C   u32 │ sequence u64│ payload   │ canary │ padding │
//!   └────────────┴──────────────┴─────────────┴───────────┴────────┴─────────┘
//! ```
//!
//! **When is a record there?** APUS §4.2 looks at a canary in the last byte, trusting that the
//! network writes ascending addresses. Fabrics differ in what they order inside one write, and
//! in a ring that is used lap after lap the canary's place may hold that very byte from before.
//! So here the canary is only the *hint to look*; the **checksum decides**. It covers length,
//! sequence number, payload and the session's salt:
//!
//! * bytes of an earlier lap carry an earlier sequence number;
//! * bytes of an earlier session carry another salt;
//! * a guest that sends packets which look like records does not know the salt;
//! * a torn record fails the checksum and is simply *not yet*.
//!
//! The payload is copied out of the ring **before** it is checked, so that a writer still at
//! work cannot change it between the check and the use.
//!
//! **"Not yet" or damaged?** A reader that only looks at memory ([`RingReader::look`]: shared
//! memory, RDMA) cannot tell and waits. A fabric whose writes arrive in order knows up to where
//! bytes have arrived; [`RingReader::take`] uses that: what should be a whole record below that
//! mark and is none is [`Damage`].
//!
//! **Space** comes back by *credits*: the consumer writes its head into a cell of the writer's
//! memory whenever it has consumed a quarter of the ring since the last time. A record takes at
//! most half of the ring, so a drained ring always shows the writer enough room: half is less
//! than the three quarters that it is sure to see.

use std::fmt;

/// Bytes before the payload.
const HEADER_BYTES: usize = 16;
/// Records start at multiples of this, so that a header's words are whole in any order of
/// arrival that keeps aligned words whole.
const ALIGN: usize = 8;

/// Bytes since the session began: of the writer's tail, of the consumer's head, of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Position {
    /// Bytes from `earlier` to here. `earlier` must not lie ahead.
    pub fn since(self, earlier: Self) -> u64 {
        assert!(
            earlier <= self,
            "position {earlier:?} lies ahead of {self:?}"
        );
        self.0 - earlier.0
    }

    fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What goes into every checksum of a session and is known to its two ends only. A fabric draws
/// it anew for each session, so that no byte of an earlier one can pass for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt(pub u64);

/// The size of a ring: a multiple of 8, from 64 bytes to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity(usize);

/// A ring of this size cannot be: the configuration has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring of {0} bytes: the size must be a multiple of 8 between 64 and 1073741824")]
pub struct BadCapacity(pub usize);

impl Capacity {
    /// Smallest ring, bytes.
    pub const MIN: usize = 64;
    /// Largest ring, bytes.
    pub const MAX: usize = 1 << 30;

    /// A ring of `bytes`.
    pub fn new(bytes: usize) -> Result<Self, BadCapacity> {
        let fits = (Self::MIN..=Self::MAX).contains(&bytes) && bytes % ALIGN == 0;
        if fits {
            Ok(Self(bytes))
        } else {
            Err(BadCapacity(bytes))
        }
    }

    /// Its size.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Largest payload: its record takes at most half of the ring (see the module's words on
    /// space).
    pub fn record_bytes_max(self) -> usize {
        self.0 / 2 / ALIGN * ALIGN - HEADER_BYTES - 1
    }

    /// Where `position` lies in memory.
    pub fn offset(self, position: Position) -> usize {
        (position.0 % self.0 as u64) as usize
    }
}

/// Bytes that a payload of `payload_bytes` takes in the ring.
pub fn record_bytes(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes + 1).next_multiple_of(ALIGN)
}

/// The byte after the payload of record `sequence`. It differs from one record to the next and
/// is never zero, the content of fresh memory.
fn canary(sequence: u64) -> u8 {
    sequence as u8 | 0x80
}

fn checksum(salt: Salt, length: u32, sequence: u64, payload: &[u8]) -> u32 {
    let mut prefix = [0; 20];
    prefix[..8].copy_from_slice(&salt.0.to_le_bytes());
    prefix[8..12].copy_from_slice(&length.to_le_bytes());
    prefix[12..].copy_from_slice(&sequence.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&prefix), payload)
}

/// Why [`RingWriter::put`] refused a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No room until the consumer's head moves; wait for a credit.
    #[error("the ring is full")]
    Full,
    /// Never fits: split it.
    #[error("larger than half of the ring")]
    TooLarge,
}

/// A credit that no correct consumer writes: before the last one, or beyond what was written.
/// The session is beyond repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("credit up to {credit}, but the ring holds {head} to {tail}")]
pub struct BadCredit {
    /// What the consumer claims to have read up to.
    pub credit: Position,
    /// What it claimed before.
    pub head: Position,
    /// Up to where we wrote.
    pub tail: Position,
}

/// The writing end: where the next record goes, and whether it fits.
#[derive(Debug)]
pub struct RingWriter {
    capacity: Capacity,
    salt: Salt,
    tail: Position,
    /// The consumer's head as last told; the true one may be further.
    head: Position,
    sequence: u64,
}

impl RingWriter {
    /// The writer of an empty ring.
    pub fn new(capacity: Capacity, salt: Salt) -> Self {
        let start = Position(0);
        Self {
            capacity,
            salt,
            tail: start,
            head: start,
            sequence: 1,
        }
    }

    /// Bytes known to be free.
    pub fn free(&self) -> usize {
        self.capacity.0 - self.tail.since(self.head) as usize
    }

    /// Up to where records were put.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// Puts one record at the tail: calls `write(offset, bytes)` for each run of bytes, in
    /// rising order of position; no run crosses the ring's end. On an error nothing is written.
    pub fn put(
        &mut self,
        payload: &[u8],
        mut write: impl FnMut(usize, &[u8]),
    ) -> Result<(), PutError> {
        if payload.len() > self.capacity.record_bytes_max() {
            return Err(PutError::TooLarge);
        }
        let total = record_bytes(payload.len());
        if total > self.free() {
            return Err(PutError::Full);
        }
        let length = payload.len() as u32;
        let crc = checksum(self.salt, length, self.sequence, payload);
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&length.to_le_bytes());
        header[4..8].copy_from_slice(&crc.to_le_bytes());
        header[8..].copy_from_slice(&self.sequence.to_le_bytes());
        let mut trailer = [0; ALIGN];
        trailer[0] = canary(self.sequence);
        let trailer = &trailer[..total - HEADER_BYTES - payload.len()];

        let mut at = self.tail;
        for part in [&header[..], payload, trailer] {
            let to_end = self.capacity.0 - self.capacity.offset(at);
            let (first, second) = part.split_at(part.len().min(to_end));
            for run in [first, second] {
                if !run.is_empty() {
                    write(self.capacity.offset(at), run);
                    at = at.plus(run.len());
                }
            }
        }
        self.tail = self.tail.plus(total);
        self.sequence += 1;
        assert_eq!(at, self.tail, "the runs are the record");
        Ok(())
    }

    /// Takes in the consumer's head as it was reported.
    pub fn credit(&mut self, head: Position) -> Result<(), BadCredit> {
        if head < self.head || head > self.tail {
            return Err(BadCredit {
                credit: head,
                head: self.head,
                tail: self.tail,
            });
        }
        self.head = head;
        Ok(())
    }
}

/// Memory that a ring lies in. A slice is; memory that someone else writes meanwhile (shared
/// memory, a registered region) implements it with raw copies.
pub trait RingMemory {
    /// Fills `into` with the bytes from `offset`. Never asked to cross the end of the ring.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

impl RingMemory for [u8] {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[offset..offset + into.len()]);
    }
}

/// Bytes that arrived in order and are no record: a broken peer or damage on the way. The
/// session is beyond repair, since the next record cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The length is beyond the largest record.
    #[error("record {sequence} at {at}: impossible length {length}")]
    Length {
        /// Expected sequence number.
        sequence: u64,
        /// Where.
        at: Position,
        /// What stands there.
        length: u32,
    },
    /// Another record than the next one stands here.
    #[error("record {sequence} at {at}: carries number {found}")]
    Sequence {
        /// Expected sequence number.
        sequence: u64,
        /// Where.
        at: Position,
        /// What stands there.
        found: u64,
    },
    /// The checksum does not match.
    #[error("record {sequence} at {at}: checksum mismatch")]
    Checksum {
        /// Expected sequence number.
        sequence: u64,
        /// Where.
        at: Position,
    },
}

/// The consuming end.
#[derive(Debug)]
pub struct RingReader {
    capacity: Capacity,
    salt: Salt,
    head: Position,
    /// The head that the writer was last told.
    reported: Position,
    sequence: u64,
}

impl RingReader {
    /// The reader of an empty ring.
    pub fn new(capacity: Capacity, salt: Salt) -> Self {
        let start = Position(0);
        Self {
            capacity,
            salt,
            head: start,
            reported: start,
            sequence: 1,
        }
    }

    /// Up to where records were consumed.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The next record, if it is wholly in `memory`, by looking at the memory alone. `None`
    /// means not yet, whatever stands there.
    pub fn look<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Option<Vec<u8>> {
        let header = self.header(memory);
        let length = self.plausible(&header).ok()?;
        // The hint: it saves the copy and the checksum of a record that is still arriving.
        let mut last = [0];
        self.copy(memory, HEADER_BYTES + length, &mut last);
        if last != [canary(self.sequence)] {
            return None;
        }
        self.checked(memory, &header, length).ok()
    }

    /// The next record, given that bytes arrive in order and did so up to `arrived`.
    pub fn take<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        arrived: Position,
    ) -> Result<Option<Vec<u8>>, Damage> {
        // A reader that also looks may have taken a record whose padding is still under way.
        let there = arrived.0.saturating_sub(self.head.0);
        if there < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let header = self.header(memory);
        let length = self.plausible(&header)?;
        if there < record_bytes(length) as u64 {
            return Ok(None);
        }
        self.checked(memory, &header, length).map(Some)
    }

    /// The head to report to the writer, if it is time to; the caller then does report it.
    pub fn credit(&mut self) -> Option<Position> {
        // A quarter: rare enough to cost nothing, often enough that a writer with records of up
        // to half a ring never waits for a reader that has read everything.
        let due = self.head.since(self.reported) >= self.capacity.0 as u64 / 4;
        due.then(|| {
            self.reported = self.head;
            self.head
        })
    }

    fn header<M: RingMemory + ?Sized>(&self, memory: &M) -> Header {
        let mut bytes = [0; HEADER_BYTES];
        self.copy(memory, 0, &mut bytes);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        Header {
            length: word(0),
            crc: word(4),
            sequence: u64::from(word(8)) | u64::from(word(12)) << 32,
        }
    }

    /// The payload's length, if the header can be that of the next record.
    fn plausible(&self, header: &Header) -> Result<usize, Damage> {
        let (at, sequence) = (self.head, self.sequence);
        if header.sequence != sequence {
            return Err(Damage::Sequence {
                sequence,
                at,
                found: header.sequence,
            });
        }
        let length = header.length as usize;
        if length > self.capacity.record_bytes_max() {
            return Err(Damage::Length {
                sequence,
                at,
                length: header.length,
            });
        }
        Ok(length)
    }

    /// Copies the payload out, believes the checksum alone, and moves on.
    fn checked<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        header: &Header,
        length: usize,
    ) -> Result<Vec<u8>, Damage> {
        let mut payload = vec![0; length];
        self.copy(memory, HEADER_BYTES, &mut payload);
        if checksum(self.salt, header.length, header.sequence, &payload) != header.crc {
            return Err(Damage::Checksum {
                sequence: self.sequence,
                at: self.head,
            });
        }
        self.head = self.head.plus(record_bytes(length));
        self.sequence += 1;
        Ok(payload)
    }

    /// Fills `into` with the bytes that start `skip` bytes after the head.
    fn copy<M: RingMemory + ?Sized>(&self, memory: &M, skip: usize, into: &mut [u8]) {
        let offset = self.capacity.offset(self.head.plus(skip));
        let first = into.len().min(self.capacity.0 - offset);
        let (before_end, from_start) = into.split_at_mut(first);
        memory.copy_out(offset, before_end);
        if !from_start.is_empty() {
            memory.copy_out(0, from_start);
        }
    }
}

struct Header {
    length: u32,
    crc: u32,
    sequence: u64,
}
