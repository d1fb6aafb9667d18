//! Memory that a network card, or another process, writes to while we look.

use crate::ring::RingMemory;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};

/// Zeroed pages of our own. No Rust reference to what is in them ever exists: all access is by
/// raw copies with checked bounds.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages belong to this value alone, wherever it lives; nothing about them depends on
// the thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Pages for `bytes`. The kernel backs them as they are first used.
    pub fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place of a new private mapping, so nothing that exists
        // is affected.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Its first byte, for registration.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `from` to `offset`.
    pub fn copy_in(&mut self, offset: usize, from: &[u8]) {
        let place = self.place(offset, from.len());
        // SAFETY: `place` is the start of `from.len()` writable bytes of this mapping, and a
        // mapping of our own overlaps no slice.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), place, from.len()) }
    }

    /// The address of `offset`, given that `length` bytes from there are inside.
    fn place(&self, offset: usize, length: usize) -> *mut u8 {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.bytes);
        assert!(inside, "{length} bytes at {offset} of {}", self.bytes);
        // SAFETY: `offset` is within the mapping, as was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl RingMemory for Memory {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let place = self.place(offset, into.len());
        // SAFETY: `place` is the start of `into.len()` readable bytes of this mapping, which
        // overlaps no slice. A card may write them meanwhile; no value but bytes is made of them,
        // and what they say is believed only if the checksum over the copy agrees.
        unsafe { ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made, and nobody has an address in it any more:
        // a port closes its registration first.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_in_comes_out() {
        let mut memory = Memory::new(100).unwrap();
        memory.copy_in(90, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let mut out = [0; 4];
        memory.copy_out(96, &mut out);
        assert_eq!(out, [7, 8, 9, 10]);
        memory.copy_out(0, &mut out);
        assert_eq!(out, [0; 4]);
    }

    #[test]
    #[should_panic(expected = "4 bytes at 97 of 100")]
    fn nothing_beyond_the_end_is_touched() {
        Memory::new(100).unwrap().copy_out(97, &mut [0; 4]);
    }
}
