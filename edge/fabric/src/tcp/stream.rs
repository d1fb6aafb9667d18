//! The frames on a lane's connection after the handshake: one-sided writes and credits.
//!
//! ```text
//!   ┌─────────┬────────────┬───────────┬──────────────────────┬──────────────────┐
//!   │ kind u8 │ 3 zeros    │ length u32│ value u64            │ `length` bytes   │
//!   └─────────┴────────────┴───────────┴──────────────────────┴──────────────────┘
//!     1 write                ≥ 1         offset in the ring     go to that offset
//!     2 credit               0           consumer's head        none
//! ```
//!
//! The writer's runs are contiguous but for the ring's end, so neighbouring ones that are still
//! unsent grow into one frame: a turn's worth of records is one frame and one system call.
//!
//! The receiver copies bytes straight to their place in the ring as they come, also those of a
//! frame that is not whole yet: the ring's own framing decides what is a record. Because TCP is
//! in order it also knows where each write *must* go, and checks it: an offset that is not the
//! next one, or bytes over what was not consumed yet, are not what a correct peer writes.

use crate::context::Loss;
use crate::ring::{Capacity, Position};

/// Bytes of a frame's header.
const HEADER_BYTES: usize = 16;
const KIND_WRITE: u8 = 1;
const KIND_CREDIT: u8 = 2;

/// When this much was sent off the front of a buffer that still holds more, the rest moves to
/// the front. Large enough that each byte moves at most about once.
const COMPACT_BYTES: usize = 256 * 1024;
/// An empty buffer keeps no more than this. A turn on the log lane fits many times over.
const KEEP_BYTES: usize = 1024 * 1024;

fn header(kind: u8, length: u32, value: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[0] = kind;
    out[4..8].copy_from_slice(&length.to_le_bytes());
    out[8..].copy_from_slice(&value.to_le_bytes());
    out
}

/// Frames on their way out. Its size is bounded by the peer's ring: only bytes that the ring
/// has room for are ever put here.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// How many of them are sent.
    sent: usize,
    growing: Option<Growing>,
}

/// The last frame, as long as nothing of it is sent.
#[derive(Debug)]
struct Growing {
    header_at: usize,
    length: u32,
    /// The ring offset that continues it.
    next_offset: usize,
}

impl Outbox {
    /// Queues a write of `run` at `offset` of the peer's ring.
    pub fn write(&mut self, offset: usize, run: &[u8]) {
        match &mut self.growing {
            Some(frame) if frame.next_offset == offset => {
                frame.length += run.len() as u32;
                frame.next_offset += run.len();
                let length_at = frame.header_at + 4;
                self.bytes[length_at..length_at + 4].copy_from_slice(&frame.length.to_le_bytes());
            }
            _ => {
                self.growing = Some(Growing {
                    header_at: self.bytes.len(),
                    length: run.len() as u32,
                    next_offset: offset + run.len(),
                });
                self.bytes
                    .extend(header(KIND_WRITE, run.len() as u32, offset as u64));
            }
        }
        self.bytes.extend_from_slice(run);
    }

    /// Queues a write of our head into the peer's cell.
    pub fn credit(&mut self, head: Position) {
        self.growing = None;
        self.bytes.extend(header(KIND_CREDIT, 0, head.0));
    }

    /// Bytes that are still to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Notes that `count` bytes were sent.
    pub fn advance(&mut self, count: usize) {
        self.sent += count;
        assert!(self.sent <= self.bytes.len(), "more sent than there was");
        if self
            .growing
            .as_ref()
            .is_some_and(|frame| self.sent > frame.header_at)
        {
            self.growing = None;
        }
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
            self.sent = 0;
        } else if self.sent >= COMPACT_BYTES && self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            if let Some(frame) = &mut self.growing {
                frame.header_at -= self.sent;
            }
            self.sent = 0;
        }
    }
}

/// Applies arriving frames: bytes to the ring, credits to a cell.
#[derive(Debug)]
pub struct Inbox {
    capacity: Capacity,
    header: [u8; HEADER_BYTES],
    header_have: usize,
    /// Bytes of the current write that are still to come.
    rest: usize,
    arrived: Position,
    /// The peer's head as it last wrote it, until taken.
    credit: Option<Position>,
}

impl Inbox {
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            header: [0; HEADER_BYTES],
            header_have: 0,
            rest: 0,
            arrived: Position(0),
            credit: None,
        }
    }

    /// Up to where bytes have arrived in the ring.
    pub fn arrived(&self) -> Position {
        self.arrived
    }

    /// The latest credit, once.
    pub fn take_credit(&mut self) -> Option<Position> {
        self.credit.take()
    }

    /// Where the next bytes of the stream go, if they go to the ring: reading them right there
    /// saves a copy.
    pub fn window<'r>(&self, ring: &'r mut [u8]) -> &'r mut [u8] {
        let offset = self.capacity.offset(self.arrived);
        &mut ring[offset..offset + self.rest]
    }

    /// Notes that `count` bytes were put into the window.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.rest, "more put into the window than it holds");
        self.rest -= count;
        self.arrived.0 += count as u64;
    }

    /// Takes in the next bytes of the stream. `head` is up to where our reader has consumed.
    pub fn feed(&mut self, mut bytes: &[u8], ring: &mut [u8], head: Position) -> Result<(), Loss> {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let count = self.rest.min(bytes.len());
                self.window(ring)[..count].copy_from_slice(&bytes[..count]);
                self.filled(count);
                bytes = &bytes[count..];
                continue;
            }
            let count = (HEADER_BYTES - self.header_have).min(bytes.len());
            self.header[self.header_have..self.header_have + count]
                .copy_from_slice(&bytes[..count]);
            self.header_have += count;
            bytes = &bytes[count..];
            if self.header_have == HEADER_BYTES {
                self.header_have = 0;
                self.begin(head)?;
            }
        }
        Ok(())
    }

    /// Acts on a whole header. One that no correct peer sends is damage.
    fn begin(&mut self, head: Position) -> Result<(), Loss> {
        let h = &self.header;
        let length = u32::from_le_bytes(std::array::from_fn(|i| h[4 + i])) as usize;
        let value = u64::from_le_bytes(std::array::from_fn(|i| h[8 + i]));
        let unknown = || Loss::Damage(format!("unknown frame {h:02x?}"));
        match (h[0], length) {
            _ if h[1..4] != [0; 3] => Err(unknown()),
            (KIND_CREDIT, 0) => {
                self.credit = Some(Position(value));
                Ok(())
            }
            (KIND_WRITE, 1..) => {
                let offset = self.capacity.offset(self.arrived);
                let free = self.capacity.bytes() - self.arrived.since(head) as usize;
                let room = free.min(self.capacity.bytes() - offset);
                if value != offset as u64 || length > room {
                    return Err(Loss::Damage(format!(
                        "a write of {length} bytes at {value}, expected at {offset} with at most \
                         {room}"
                    )));
                }
                self.rest = length;
                Ok(())
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbouring_runs_share_a_frame() {
        let mut outbox = Outbox::default();
        outbox.write(0, b"abc");
        outbox.write(3, b"de");
        assert_eq!(outbox.unsent().len(), HEADER_BYTES + 5);
        outbox.write(0, b"f");
        assert_eq!(
            outbox.unsent().len(),
            2 * HEADER_BYTES + 6,
            "not a neighbour"
        );
        outbox.advance(HEADER_BYTES + 5 + 1);
        outbox.write(1, b"g");
        assert_eq!(
            outbox.unsent().len(),
            2 * HEADER_BYTES + 1,
            "its header is on its way"
        );
    }

    #[test]
    fn the_form_of_frames_is_that_of_their_version() {
        let [write, credit] =
            [KIND_WRITE, KIND_CREDIT].map(|kind| header(kind, 1001, 1002).to_vec());
        plover_types::forms::assert_form("tcp frames", &[write, credit]);
    }

    #[test]
    fn misplaced_writes_are_refused() {
        let capacity = Capacity::new(64).unwrap();
        let head = Position(0);
        for (length, offset) in [(1, 1), (65, 0), (0, 0), (u32::MAX, 0), (1, u64::MAX)] {
            let frame = header(KIND_WRITE, length, offset);
            let mut inbox = Inbox::new(capacity);
            assert!(
                inbox.feed(&frame, &mut [0; 64], head).is_err(),
                "{length} at {offset}"
            );
        }
        let mut inbox = Inbox::new(capacity);
        let mut lap = header(KIND_WRITE, 64, 0).to_vec();
        lap.extend([7; 64]);
        inbox.feed(&lap, &mut [0; 64], head).unwrap();
        let over = header(KIND_WRITE, 1, 0);
        assert!(
            inbox.feed(&over, &mut [0; 64], head).is_err(),
            "over unread bytes"
        );
    }

    proptest! {
        #[test]
        fn noise_never_panics(bytes: Vec<u8>, head in 0u64..=0, kind in 0u8..4) {
            let mut noise = bytes;
            if let Some(first) = noise.first_mut() {
                *first = kind;
            }
            let mut inbox = Inbox::new(Capacity::new(64).unwrap());
            let _ = inbox.feed(&noise, &mut [0; 64], Position(head));
        }

        /// The dumb twin of outbox and inbox is a copy into the ring.
        #[test]
        fn writes_arrive_where_they_should(
            turns in prop::collection::vec((1usize..90, 1usize..200), 1..40),
        ) {
            let capacity = Capacity::new(256).unwrap();
            let (mut outbox, mut inbox) = (Outbox::default(), Inbox::new(capacity));
            let (mut twin, mut ring) = (vec![0; 256], vec![0; 256]);
            let (mut tail, mut byte) = (Position(0), 0u8);
            for (length, chunk) in turns {
                // Bytes that have arrived count as consumed at once; the others take space.
                let free = 256 - tail.since(inbox.arrived()) as usize;
                for _ in 0..length.min(free) {
                    byte = byte.wrapping_add(1);
                    outbox.write(capacity.offset(tail), &[byte]);
                    twin[capacity.offset(tail)] = byte;
                    tail.0 += 1;
                }
                let count = chunk.min(outbox.unsent().len());
                let head = inbox.arrived();
                inbox.feed(&outbox.unsent()[..count], &mut ring, head).unwrap();
                outbox.advance(count);
            }
            outbox.credit(Position(9));
            let head = inbox.arrived();
            inbox.feed(outbox.unsent(), &mut ring, head).unwrap();
            prop_assert_eq!(inbox.arrived(), tail);
            prop_assert_eq!(inbox.take_credit(), Some(Position(9)));
            prop_assert_eq!(ring, twin);
        }
    }
}
