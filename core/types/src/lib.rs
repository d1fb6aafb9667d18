//! Identifiers, page sets, frames and wire encoding shared by every part of Plover.
//!
//! Nothing here does I/O. Every index is a newtype so that a page number cannot be taken for a
//! log index, and every form that crosses a wire goes through [`wire`], which rejects what it
//! does not understand and never panics.

pub mod forms;
mod frame;
mod ids;
mod lane;
mod pages;
mod payload;
mod time;
pub mod wire;

pub use frame::{Frame, Mac, Unconsumed};
pub use ids::{
    Awaited, Digest, Index, OutputNo, PageNo, ReplicaId, ReplicaSet, SyncNo, View, Viewstamp,
};
pub use lane::Lane;
pub use pages::{PageSet, Runs};
pub use payload::Payload;
pub use time::{Micros, SplitMix64};

/// Bytes in a guest page. Dirty tracking, hashing and transfer all work in this unit.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a block: the piece of a divergent page that travels when only it differs. Chosen by
/// measurement (docs/decisions/0014): smaller blocks send fewer bytes of memory and more of hashes.
pub const BLOCK_BYTES: usize = 128;

/// Blocks of a page, at most 64.
pub const BLOCKS_PER_PAGE: usize = PAGE_BYTES / BLOCK_BYTES;
