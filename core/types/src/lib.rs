//! Identifiers, page sets, frames and wire encoding shared by every part of Plover.
//!
//! Nothing here does I/O. Every index is a newtype, so that a page number cannot be taken for a log index.
//! Everything that crosses a wire goes through [`wire`], which returns an error for bytes that it does not
//! understand and never panics.
//!
//! ```
//! use plover_types::{Frame, PageNo, PageSet, wire};
//!
//! let frames = vec![Frame(vec![1, 2, 3])];
//! let bytes = wire::encode(&frames);
//! assert_eq!(wire::decode::<Vec<Frame>>(&bytes), Ok(frames));
//! assert!(wire::decode::<Vec<Frame>>(&bytes[1..]).is_err());
//!
//! let mut dirty = PageSet::new(1000);
//! dirty.insert(PageNo(7));
//! dirty.insert_run(8, 10);
//! assert_eq!(dirty.to_runs().0, [(7, 3)]);
//! ```

#![forbid(unsafe_code)]

mod device;
pub mod forms;
mod frame;
mod hash_key;
mod ids;
mod lane;
mod layout;
mod pages;
mod payload;
mod reply;
mod time;
mod told;
pub mod wire;

pub use device::{DeviceState, MachineWords};
pub use frame::{Frame, Mac, Offload, Unconsumed};
pub use hash_key::HashKey;
pub use ids::{
    Awaited, Digest, Incarnation, Index, OutputNo, PageNo, ReplicaId, ReplicaSet, SyncNo, View,
    Viewstamp,
};
pub use lane::Lane;
pub use layout::{
    BlockNo, DISK_BLOCK_BYTES, PAGE_BYTES, PageLayout, SUBPAGE_BYTES, SUBPAGES_PER_PAGE,
};
pub use pages::{PageSet, Runs};
pub use payload::Payload;
pub use reply::{About, Reply, fnv1a};
pub use time::{Micros, SplitMix64};
pub use told::{REASON_BYTES_MAX, told};
