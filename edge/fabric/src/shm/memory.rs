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
//! **Trust.** The region is memory that another process may change at any time (`mapping.rs`). Its
//! size is sealed, so that nobody can take the memory away from under a mapping.

use crate::Lane;
use crate::context::No;
use crate::hello::Refusal;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::ring::{Capacity, RingMemory};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::ProtFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

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
        log | (bulk << 32)
    }
}

/// A mapping that is laid out as cells and rings.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    layout: Layout,
}

impl Region {
    fn cell(&self, cell: Cell) -> &AtomicU64 {
        self.mapping.word(cell.index())
    }

    /// The offset in the region of `bytes` bytes at `offset` of a lane's ring.
    fn ring(&self, lane: Lane, offset: usize, bytes: usize) -> usize {
        let capacity = self.layout.capacity(lane).bytes();
        let inside = offset <= capacity && bytes <= capacity - offset;
        assert!(inside, "{bytes} bytes at {offset} of a ring of {capacity}");
        self.layout.offset(lane) + offset
    }
}

/// A region that this replica reads and a peer writes.
#[derive(Debug)]
pub struct Inbound {
    region: Region,
}

impl Inbound {
    /// Makes a region, and the descriptor to hand to its writer.
    pub fn create(layout: Layout) -> io::Result<(Self, OwnedFd)> {
        let (access, bytes) = (ProtFlags::READ, layout.bytes());
        let (mapping, memory) = make("plover-ring", bytes, access, SealFlags::empty())?;
        let region = Region { mapping, layout };
        Ok((Self { region }, memory))
    }

    /// The layout of the regions of this link.
    pub fn layout(&self) -> Layout {
        self.region.layout
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
        let place = self.region.ring(self.lane, offset, into.len());
        self.region.mapping.copy_out(place, into);
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
    #[error("its doorbell is not an eventfd that never blocks")]
    Doorbell,
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<BadMemory> for No {
    fn from(why: BadMemory) -> Self {
        Self::because(Refusal::Memory, format!("its memory: {why}"))
    }
}

/// Makes memory of `bytes` bytes that cannot change its size, and maps it. The kernel backs it as it is
/// first written. `seals` are set besides.
pub fn make(
    name: &str,
    bytes: usize,
    access: ProtFlags,
    seals: SealFlags,
) -> io::Result<(Mapping, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&memory, bytes as u64)?;
    let mapping = Mapping::shared(memory.as_fd(), bytes, access)?;
    rustix::fs::fcntl_add_seals(&memory, SEALS | seals | SealFlags::SEAL)?;
    Ok((mapping, memory))
}

/// Maps memory that a peer offers, if it is what it should be.
pub fn map(memory: &OwnedFd, bytes: usize, access: ProtFlags) -> Result<Mapping, BadMemory> {
    check(memory, bytes)?;
    Ok(Mapping::shared(memory.as_fd(), bytes, access)?)
}

/// Whether memory that a peer offers has the size that it should have, for ever.
fn check(memory: &OwnedFd, bytes: usize) -> Result<(), BadMemory> {
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
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = map(memory, layout.bytes(), access)?;
        let region = Region { mapping, layout };
        Ok(Self { region })
    }

    pub fn cell(&self, cell: Cell) -> &AtomicU64 {
        self.region.cell(cell)
    }

    /// Copies `bytes` into one lane's ring at `offset`.
    pub fn write(&self, lane: Lane, offset: usize, bytes: &[u8]) {
        let place = self.region.ring(lane, offset, bytes.len());
        self.region.mapping.copy_in(place, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(log: usize, bulk: usize) -> Layout {
        Layout::new([log, bulk].map(|bytes| Capacity::new(bytes).unwrap()))
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
