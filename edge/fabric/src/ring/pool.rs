//! Buffers that are used again.
//!
//! A record leaves its ring as a `Vec<u8>` of its own, because whoever gets it keeps it for as
//! long as it likes. In the steady state that would be one allocation a record. So whoever is
//! done with a record may give its buffer back, and the next record is copied into that one.

/// What one pool holds at most, bytes. Enough for the records that one turn delivers and the
/// next gives back; beyond it a buffer is freed as any other.
const HELD_BYTES_MAX: usize = 4 << 20;
/// How many buffers one pool holds at most, so that its own table stays small.
const HELD_MAX: usize = 1024;

/// A bounded heap of buffers, the last one given first.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// A buffer of `length` bytes, all of which are to be overwritten: one that was given back if
    /// there is any, with what it held, else a new one.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let Some(mut buffer) = self.free.pop() else {
            return vec![0; length];
        };
        self.bytes -= buffer.capacity();
        if buffer.capacity() < length {
            // So that what it held is not moved.
            buffer.clear();
        }
        buffer.resize(length, 0);
        buffer
    }

    /// Takes a buffer back, or frees it if the pool is full.
    pub fn give(&mut self, buffer: Vec<u8>) {
        let bytes = self.bytes + buffer.capacity();
        if buffer.capacity() > 0 && bytes <= HELD_BYTES_MAX && self.free.len() < HELD_MAX {
            self.bytes = bytes;
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_given_back_is_used_again() {
        let mut pool = BufferPool::default();
        let buffer = vec![7; 100];
        let address = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(60);
        assert_eq!(again.as_ptr(), address, "no new allocation");
        assert_eq!(again.len(), 60);
        assert!(!std::ptr::eq(pool.take(60).as_ptr(), address));
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut pool = BufferPool::default();
        for _ in 0..2 * HELD_MAX {
            pool.give(vec![0; 8]);
        }
        assert_eq!(pool.free.len(), HELD_MAX);
        let mut pool = BufferPool::default();
        pool.give(vec![0; HELD_BYTES_MAX + 1]);
        assert!(pool.free.is_empty(), "one that is too large is freed");
        for _ in 0..10 {
            pool.give(vec![0; HELD_BYTES_MAX / 4]);
        }
        assert!(pool.bytes <= HELD_BYTES_MAX);
        assert_eq!(pool.free.len(), 4);
    }
}
