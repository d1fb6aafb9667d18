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

mod pool;
mod reader;
mod writer;

pub use pool::BufferPool;
pub use reader::{Damage, RingMemory, RingReader};
pub use writer::{BadCredit, RingWriter};

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

/// A number that goes into every checksum of a session and is known to its two ends only. A fabric
/// draws it anew for each session, so that no byte of an earlier one can pass for a record.
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
