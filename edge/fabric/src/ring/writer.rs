//! The writing end of a ring.

use super::{ALIGN, Capacity, HEADER_BYTES, Position, Salt, canary, checksum, record_bytes};

/// A credit that no correct consumer sends: before the last one, or beyond what was written. End the
/// session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a credit up to {credit}, but the ring holds {head} to {tail}")]
pub struct BadCredit {
    /// The head that the consumer claims.
    pub credit: Position,
    /// The head that it claimed before.
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
    /// Bytes that the largest record takes that was refused since there last was room.
    refused: Option<usize>,
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
            refused: None,
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

    /// Up to where the consumer has read, as last told.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Whether there is room for a payload of so many bytes.
    #[must_use]
    pub fn fits(&self, payload_bytes: usize) -> bool {
        record_bytes(payload_bytes) <= self.free()
    }

    /// [`RingWriter::fits`]; if not, the record counts as refused.
    #[must_use]
    pub fn takes(&mut self, payload_bytes: usize) -> bool {
        let fits = self.fits(payload_bytes);
        if !fits {
            self.refused = self.refused.max(Some(record_bytes(payload_bytes)));
        }
        fits
    }

    /// Puts one record at the tail: calls `write(offset, bytes)` for each run of bytes, in
    /// rising order of position; no run crosses the ring's end. `false` if there is no room until
    /// the consumer's head moves; nothing is written then.
    ///
    /// # Panics
    /// If the payload exceeds [`Capacity::record_bytes_max`].
    #[must_use]
    pub fn put(&mut self, payload: &[u8], mut write: impl FnMut(usize, &[u8])) -> bool {
        let max = self.capacity.record_bytes_max();
        assert!(payload.len() <= max, "{} of {max} bytes", payload.len());
        if !self.takes(payload.len()) {
            return false;
        }
        let total = record_bytes(payload.len());
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
        true
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

    /// Whether a record was refused and there was no room for it since.
    pub fn is_refusing(&self) -> bool {
        self.refused.is_some()
    }

    /// Whether there is room again for the largest record that was refused. Said once.
    pub fn has_room_again(&mut self) -> bool {
        let free = self.free();
        self.refused.take_if(|bytes| *bytes <= free).is_some()
    }
}
