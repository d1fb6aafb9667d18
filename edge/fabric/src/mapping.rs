//! Mapped memory that a peer or a network card may write at any time.
//!
//! No Rust reference to its bytes ever exists. Words are atomics; other bytes are copied in and out
//! by raw copies with checked bounds, and what was copied out is believed only if its checksum
//! agrees.

use crate::ring::RingMemory;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

pub const PAGE_BYTES: usize = 4096;

/// Mapped memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is valid on every thread of the process.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a memory file, a page at least.
    pub fn shared(memory: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        assert!(bytes >= PAGE_BYTES, "{bytes} bytes are less than a page");
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, memory, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Zeroed pages of our own. The kernel backs them as they are first used.
    #[cfg(feature = "ofi")]
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Its first byte, for registration.
    #[cfg(feature = "ofi")]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[cfg(feature = "ofi")]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One of the first page's words, of a mapping that is shared.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_BYTES / 8, "word {index} of a page");
        // SAFETY: the first page is mapped for as long as `self` lives, and its words are aligned
        // since the page is. All that any process does to them by our code is atomic, and a mapping
        // that is read-only sees only loads.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u64>().add(index).as_ptr()) }
    }

    /// Copies `from` to `offset` of a mapping that is writable.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let place = self.place(offset, from.len());
        // SAFETY: `place` is the start of `from.len()` bytes of this mapping, which is writable by the
        // caller's word and overlaps no slice.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), place, from.len()) }
    }

    /// The address of `offset`, given that `length` bytes from there are inside.
    fn place(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        let inside = end.is_some_and(|end| end <= self.bytes);
        assert!(inside, "{length} bytes at {offset} of {}", self.bytes);
        // SAFETY: `offset` is within the mapping, as was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl RingMemory for Mapping {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let place = self.place(offset, into.len());
        // SAFETY: `place` is the start of `into.len()` readable bytes of this mapping, which overlaps
        // no slice. Somebody may write them meanwhile: any bytes are values of `u8`, and their
        // meaning is decided by a checksum over the copy.
        unsafe { ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped. Every pointer into it was lent from `self`, and a
        // port closes its registration of the memory before it drops it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}
