//! Buffers that are used again.
//!
//! A record leaves its ring as a `Vec<u8>` of its own, because the caller may keep it. A caller that
//! is done with a record gives the buffer back, and the next record is copied into it: in the steady
//! state nothing is allocated.

/// A pool holds at most so many bytes: enough for the records that one turn delivers. Further
/// buffers are freed.
const HELD_BYTES_MAX: usize = 4 << 20;
/// A pool holds at most so many buffers, so that its own table stays small.
const HELD_MAX: usize = 1024;

/// A bounded stack of buffers.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// A buffer of `length` bytes of any content, for the caller to overwrite.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let Some(mut buffer) = self.free.pop() else {
            return vec![0; length];
        };
        self.bytes -= buffer.capacity();
        if buffer.capacity() < length {
            // The old content need not be moved to the larger allocation.
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
    fn a_pool_is_bounded() {
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
        assert_eq!(pool.free.len(), 4);
    }
}
