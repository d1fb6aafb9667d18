//! Identifiers, page sets, frames and wire encoding shared by every part of Plover.
//!
//! Nothing here does I/O. Every index is a newtype so that a page number cannot be taken for a
//! log index, and every form that crosses a wire goes through [`wire`], which rejects what it
//! does not understand and never panics.

pub mod forms;
mod frame;
mod ids;
mod lane;
mod layout;
mod pages;
mod payload;
mod time;
pub mod wire;

pub use frame::{Frame, Mac, Unconsumed};
pub use ids::{
    Awaited, Digest, Index, OutputNo, PageNo, ReplicaId, ReplicaSet, SyncNo, View, Viewstamp,
};
pub use lane::Lane;
pub use layout::{
    BlockNo, DISK_BLOCK_BYTES, PAGE_BYTES, PageLayout, SUBPAGE_BYTES, SUBPAGES_PER_PAGE,
};
pub use pages::{PageSet, Runs};
pub use payload::Payload;
pub use time::{Micros, SplitMix64};
