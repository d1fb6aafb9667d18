//! The consuming end of a ring.

use super::{BufferPool, Capacity, HEADER_BYTES, Position, Salt, canary, checksum, record_bytes};

/// Memory that holds a ring. Memory that a peer writes meanwhile (shared memory, a registered
/// region) implements this with raw copies.
pub trait RingMemory {
    /// Fills `into` with the bytes from `offset`. Never asked to cross the end of the ring.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

impl RingMemory for [u8] {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[offset..offset + into.len()]);
    }
}

/// Bytes that arrived in order and are no record: the peer is broken, or bytes changed on the way.
/// End the session, since the next record cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The length is beyond the largest record.
    #[error("record {sequence} at {at} has the impossible length {length}")]
    Length {
        /// Expected sequence number.
        sequence: u64,
        /// Where.
        at: Position,
        /// The length found there.
        length: u32,
    },
    /// Another record than the next one stands here.
    #[error("record {sequence} at {at} carries the number {found}")]
    Sequence {
        /// Expected sequence number.
        sequence: u64,
        /// Where.
        at: Position,
        /// The number found there.
        found: u64,
    },
    /// The checksum does not match.
    #[error("record {sequence} at {at} does not match its checksum")]
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
    pub fn look<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        pool: &mut BufferPool,
    ) -> Option<Vec<u8>> {
        let header = self.header(memory);
        let length = self.plausible(&header).ok()?;
        // The canary saves the copy and the checksum of a record that is still arriving.
        let mut last = [0];
        self.copy(memory, HEADER_BYTES + length, &mut last);
        if last != [canary(self.sequence)] {
            return None;
        }
        self.checked(memory, &header, length, pool).ok()
    }

    /// The next record, given that bytes arrive in order and did so up to `arrived`.
    pub fn take<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        arrived: Position,
        pool: &mut BufferPool,
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
        self.checked(memory, &header, length, pool).map(Some)
    }

    /// The head to report to the writer, if a report is due; the caller must then send it.
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
            sequence: u64::from(word(8)) | (u64::from(word(12)) << 32),
        }
    }

    /// The payload's length, if the header can be that of the next record.
    fn plausible(&self, header: &Header) -> Result<usize, Damage> {
        let (at, sequence) = (self.head, self.sequence);
        if header.sequence != sequence {
            let found = header.sequence;
            return Err(Damage::Sequence {
                sequence,
                at,
                found,
            });
        }
        let length = header.length as usize;
        if length > self.capacity.record_bytes_max() {
            let length = header.length;
            return Err(Damage::Length {
                sequence,
                at,
                length,
            });
        }
        Ok(length)
    }

    /// Copies the payload out, compares the checksum, and moves on.
    fn checked<M: RingMemory + ?Sized>(
        &mut self,
        memory: &M,
        header: &Header,
        length: usize,
        pool: &mut BufferPool,
    ) -> Result<Vec<u8>, Damage> {
        let mut payload = pool.take(length);
        self.copy(memory, HEADER_BYTES, &mut payload);
        if checksum(self.salt, header.length, header.sequence, &payload) != header.crc {
            pool.give(payload);
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
