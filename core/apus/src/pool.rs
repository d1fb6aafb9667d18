//! Spare buffers, so that the steady state allocates nothing.
//!
//! ```text
//!   received bytes --copy--> log --copy--> Deliver(entry) --caller--> recycle
//!                             |                                          |
//!                            trim --------------> POOL <-----------------+
//!                                                   |
//!                          Write{bytes} <---lend----+
//! ```
//!
//! Buffers are kept by size, a power of two. Otherwise a buffer that once held a large message
//! could come back with a few bytes, and keep its memory for as long as the log keeps the entry.

use crate::Entry;
use std::fmt;

/// The smallest buffer, bytes.
const BYTES_MIN: usize = 64;
/// Sizes kept: 64 B, doubling, up to 1 MiB. Larger buffers are allocated each time.
const SIZES: usize = 15;
/// Bytes kept in all: what one trim of a log of the usual size gives back at once, and a window of
/// messages to each of eight peers.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Lists of entries kept, and their longest length: a turn persists one batch, rarely more.
const LISTS_MAX: usize = 4;
const LIST_ENTRIES_MAX: usize = 4096;

/// Spare buffers.
#[derive(Clone, Default)]
pub(crate) struct Pool {
    spare: [Vec<Vec<u8>>; SIZES],
    kept_bytes: usize,
    lists: Vec<Vec<Entry>>,
}

/// Spare buffers are no part of a replica's state: the model checker compares states by their
/// `Debug` form.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    /// An empty buffer with room for `bytes`.
    pub(crate) fn lend(&mut self, bytes: usize) -> Vec<u8> {
        let room = bytes.max(BYTES_MIN).next_power_of_two();
        let spare = self.spare.get_mut(size_of(room));
        match spare.and_then(Vec::pop) {
            Some(buffer) => {
                self.kept_bytes -= room;
                buffer
            }
            None => Vec::with_capacity(room),
        }
    }

    /// A buffer that holds `bytes`.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let mut buffer = self.lend(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes a buffer back, wherever it came from.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity < BYTES_MIN {
            return;
        }
        // The power of two at or below its capacity is what it can hold for certain.
        let room = 1 << capacity.ilog2();
        if let Some(spare) = self.spare.get_mut(size_of(room)) {
            if self.kept_bytes + room <= KEPT_BYTES_MAX {
                self.kept_bytes += room;
                buffer.clear();
                spare.push(buffer);
            }
        }
    }

    /// An empty list for entries that are to be persisted.
    pub(crate) fn lend_list(&mut self) -> Vec<Entry> {
        self.lists.pop().unwrap_or_default()
    }

    /// Takes a list back, with the payloads of its entries.
    pub(crate) fn give_list(&mut self, mut list: Vec<Entry>) {
        for entry in list.drain(..) {
            self.give(entry.payload);
        }
        if self.lists.len() < LISTS_MAX && list.capacity() <= LIST_ENTRIES_MAX {
            self.lists.push(list);
        }
    }
}

/// The place among the sizes of `room`, a power of two of at least [`BYTES_MIN`].
fn size_of(room: usize) -> usize {
    (room.ilog2() - BYTES_MIN.ilog2()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_for_its_own_size_only() {
        let mut pool = Pool::default();
        let mut large = pool.lend(5000);
        large.push(1);
        let place = large.as_ptr();
        pool.give(large);
        assert_ne!(pool.lend(100).capacity(), 8192);
        let again = pool.lend(8000);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }

    #[test]
    fn the_pool_keeps_a_bounded_number_of_bytes() {
        let mut pool = Pool::default();
        for _ in 0..100 {
            pool.give(Vec::with_capacity(100_000));
            pool.give(Vec::with_capacity(3));
            pool.give(Vec::with_capacity(8 << 20));
        }
        let kept: usize = pool.spare.iter().flatten().map(Vec::capacity).sum();
        assert!(kept <= 2 * KEPT_BYTES_MAX, "{kept}");
        for _ in 0..1000 {
            pool.lend(60_000);
        }
        assert_eq!(pool.kept_bytes, 0, "what was lent is not kept");
    }
}
