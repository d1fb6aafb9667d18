//! The memory between two replicas: what it looks like, how it is made, checked and touched.
//!
//! Each link has two regions, one for each direction. A region belongs to the replica that reads
//! it, and only the other one writes it, all of it:
//!
//! ```text
//!   ┌───────────────── one page ──────────────────┬──────────┬───────────┐
//!   │ tail Log │ tail Bulk │ head Log │ head Bulk │ log ring │ bulk ring │
//!   └─────────────────────────────────────────────┴──────────┴───────────┘
//!     up to where the writer    up to where it has
//!     has put records here      read *our* records
//! ```
//!
//! So the reader maps its region read-only, and what one side tells the other one is a
//! store into the other's region. All four cells share a cache line: to look whether a peer has
//! anything to say is one load that misses the cache. Whether a replica sleeps stands on its status
//! page (`page.rs`), once for all its peers.
//!
//! **Trust.** The region is memory that another process may change at any time. No Rust reference
//! to its bytes exists: cells are atomics, ring bytes are copied out by raw copies within bounds
//! that were fixed when it was mapped, and what was copied is checked afterwards. Its size is
//! sealed, so that nobody can take the memory away from under a mapping.

use crate::Lane;
use crate::ring::{Capacity, RingMemory};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// The cells' page; rings start at pages.
pub const PAGE_BYTES: usize = 4096;

/// What one cell of a region says. Each is written by the region's writer alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Up to where records were put into this region's ring.
    Tail(Lane),
    /// Up to where the writer has read the reader's records, in its own region.
    Head(Lane),
}

impl Cell {
    fn index(self) -> usize {
        match self {
            Self::Tail(lane) => lane.index(),
            Self::Head(lane) => 2 + lane.index(),
        }
    }
}

/// Where the rings lie in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    capacities: [Capacity; 2],
}

impl Layout {
    pub fn new(capacities: [Capacity; 2]) -> Self {
        Self { capacities }
    }

    pub fn capacity(&self, lane: Lane) -> Capacity {
        self.capacities[lane.index()]
    }

    fn offset(&self, lane: Lane) -> usize {
        match lane {
            Lane::Log => PAGE_BYTES,
            Lane::Bulk => {
                PAGE_BYTES
                    + self
                        .capacity(Lane::Log)
                        .bytes()
                        .next_multiple_of(PAGE_BYTES)
            }
        }
    }

    /// The size of a region.
    pub fn bytes(&self) -> usize {
        self.offset(Lane::Bulk)
            + self
                .capacity(Lane::Bulk)
                .bytes()
                .next_multiple_of(PAGE_BYTES)
    }

    /// Both rings' sizes in one number, for the handshake to compare.
    pub fn ring_bytes(&self) -> u64 {
        let [log, bulk] = self.capacities.map(|capacity| capacity.bytes() as u64);
        log | bulk << 32
    }
}

/// Mapped memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is valid on every thread of the process.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `memory`, a page at least.
    pub fn new(memory: BorrowedFd<'_>, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        assert!(bytes >= PAGE_BYTES, "{bytes} bytes are less than a page");
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                memory,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// One of the first page's words.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_BYTES / 8, "word {index} of a page");
        // SAFETY: the first page is mapped for as long as `self` lives, and its words are aligned
        // since the page is. All that any process does to them by our code is
        // atomic, and of a reader's mapping, which is read-only, only loads are done.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u64>().add(index).as_ptr()) }
    }
}

/// A mapping that is laid out as cells and rings.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    layout: Layout,
}

impl Region {
    fn new(memory: BorrowedFd<'_>, layout: Layout, access: ProtFlags) -> io::Result<Self> {
        let mapping = Mapping::new(memory, layout.bytes(), access)?;
        Ok(Self { mapping, layout })
    }

    fn cell(&self, cell: Cell) -> &AtomicU64 {
        self.mapping.word(cell.index())
    }

    /// Where `bytes` bytes of a lane's ring lie, from `offset`.
    fn ring(&self, lane: Lane, offset: usize, bytes: usize) -> *mut u8 {
        let capacity = self.layout.capacity(lane).bytes();
        let inside = offset <= capacity && bytes <= capacity - offset;
        assert!(inside, "{bytes} bytes at {offset} of a ring of {capacity}");
        // SAFETY: the ring's whole capacity lies inside of the mapping by `Layout::bytes`.
        unsafe {
            let start = self.mapping.start.as_ptr();
            start.add(self.layout.offset(lane) + offset)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and every pointer into it was lent from
        // `self`. That it fails is impossible for a whole mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// A region that this replica reads and a peer writes.
#[derive(Debug)]
pub struct Inbound {
    region: Region,
}

impl Inbound {
    /// Makes a region, and the descriptor to hand to its writer. The kernel backs it with memory
    /// as it is first written.
    pub fn create(layout: Layout) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("plover-ring", flags)?;
        rustix::fs::ftruncate(&memory, layout.bytes() as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SEALS | SealFlags::SEAL)?;
        let region = Region::new(memory.as_fd(), layout, ProtFlags::READ)?;
        Ok((Self { region }, memory))
    }

    pub fn cell(&self, cell: Cell) -> &AtomicU64 {
        self.region.cell(cell)
    }

    /// The ring of one lane, to copy out of.
    pub fn ring(&self, lane: Lane) -> InboundRing<'_> {
        InboundRing {
            region: &self.region,
            lane,
        }
    }
}

/// One ring of an [`Inbound`].
pub struct InboundRing<'a> {
    region: &'a Region,
    lane: Lane,
}

impl RingMemory for InboundRing<'_> {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.region.ring(self.lane, offset, into.len());
        // SAFETY: `ring` has checked that the source lies in the mapping; `into` is memory of
        // our own, so the two do not overlap. A writer may change the source meanwhile: any
        // bytes are values of `u8`, and what they mean is decided by their checksum afterwards.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }
}

/// A peer's region, which this replica writes.
#[derive(Debug)]
pub struct Outbound {
    region: Region,
}

/// A region's size can neither shrink (a fault at the next access) nor grow.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Why memory that a peer offers is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BadMemory {
    #[error("it is not sealed against shrinking and growing")]
    Seals,
    #[error("it has {found} bytes, not {expected}")]
    Size { found: u64, expected: u64 },
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Whether memory that a peer offers has the size that it should have, for ever.
pub fn check(memory: &OwnedFd, bytes: usize) -> Result<(), BadMemory> {
    // Only memory files have seals at all.
    let seals = rustix::fs::fcntl_get_seals(memory).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS) {
        return Err(BadMemory::Seals);
    }
    let found = rustix::fs::fstat(memory).map_err(io::Error::from)?.st_size as u64;
    let expected = bytes as u64;
    if found != expected {
        return Err(BadMemory::Size { found, expected });
    }
    Ok(())
}

impl Outbound {
    /// Maps what a peer offers, if it is what it should be.
    pub fn map(memory: &OwnedFd, layout: Layout) -> Result<Self, BadMemory> {
        check(memory, layout.bytes())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let region = Region::new(memory.as_fd(), layout, access)?;
        Ok(Self { region })
    }

    pub fn cell(&self, cell: Cell) -> &AtomicU64 {
        self.region.cell(cell)
    }

    /// Copies `bytes` into one lane's ring at `offset`.
    pub fn write(&self, lane: Lane, offset: usize, bytes: &[u8]) {
        let to = self.region.ring(lane, offset, bytes.len());
        // SAFETY: `ring` has checked that the target lies in the mapping, which is writable;
        // `bytes` is memory of our own, so the two do not overlap. Nobody else writes there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn layout(log: usize, bulk: usize) -> Layout {
        Layout::new([log, bulk].map(|bytes| Capacity::new(bytes).unwrap()))
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let layout = layout(72, 4096);
        let (inbound, memory) = Inbound::create(layout).unwrap();
        let outbound = Outbound::map(&memory, layout).unwrap();
        outbound.write(Lane::Log, 70, b"xy");
        outbound.write(Lane::Bulk, 0, b"bulk");
        outbound.write(Lane::Bulk, 4095, b"e");
        let read = |lane, offset, bytes| {
            let mut into = vec![0; bytes];
            inbound.ring(lane).copy_out(offset, &mut into);
            into
        };
        assert_eq!(read(Lane::Log, 70, 2), b"xy");
        assert_eq!(read(Lane::Bulk, 0, 4), b"bulk");
        assert_eq!(read(Lane::Bulk, 4095, 1), b"e");
        let cells = [
            Cell::Tail(Lane::Log),
            Cell::Tail(Lane::Bulk),
            Cell::Head(Lane::Log),
            Cell::Head(Lane::Bulk),
        ];
        for (n, cell) in cells.into_iter().enumerate() {
            outbound.cell(cell).store(n as u64 + 1, Ordering::Release);
        }
        for (n, cell) in cells.into_iter().enumerate() {
            let seen = inbound.cell(cell).load(Ordering::Acquire);
            assert_eq!(seen, n as u64 + 1, "{cell:?}");
        }
    }

    #[test]
    #[should_panic(expected = "of a ring of 64")]
    fn nothing_is_read_beyond_a_ring() {
        let (inbound, _memory) = Inbound::create(layout(64, 64)).unwrap();
        inbound.ring(Lane::Log).copy_out(60, &mut [0; 5]);
    }

    #[test]
    fn memory_that_could_vanish_is_refused() {
        let layout = layout(64, 64);
        let size = layout.bytes() as u64;
        let make = |bytes, seals| {
            let memory = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&memory, bytes).unwrap();
            rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
            Outbound::map(&memory, layout).map(drop)
        };
        assert!(make(size, SEALS).is_ok());
        assert!(matches!(make(size, SealFlags::GROW), Err(BadMemory::Seals)));
        assert!(matches!(make(size - 1, SEALS), Err(BadMemory::Size { .. })));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(
            Outbound::map(&file.into(), layout),
            Err(BadMemory::Seals)
        ));
    }
}
