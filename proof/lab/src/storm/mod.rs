//! A write storm: random writes of 4 to 64 KiB with flushes to a guest's disk. Afterwards an audit finds
//! acknowledged writes that are lost or torn.
//!
//! ```text
//!  outside the guest                              in the guest
//!  writers ──write, write, flush 17──────────▶ plover-storm-server ──▶ disk
//!     │    ◀──durable 17───────────────────────      (guests/tools)      │
//!     ▼ before sending, after each answer                                │
//!  record (a file) ──▶ what each block may hold ──▶ audit ◀── read back ─┘
//! ```
//!
//! The record is kept outside the guest, so that the guest may be killed, or be another one by the end.
//! A write is *issued* when it is in the record, which is before it is sent. It is *durable* when the
//! guest has answered a flush that came after it. Each writer has a connection and a part of the disk of
//! its own, and numbers its writes in the order in which it sends them. So every block must hold the
//! durable write with the highest number, or one that was issued after it.
//!
//! | module | what |
//! |---|---|
//! | [`sector`] | what the bytes of a write are, and what bytes on a disk are of |
//! | [`record`] | what was issued and acknowledged, in a file that outlives everything |
//! | [`writers`] | the storm |
//! | [`audit`] | reading back, through the guest or from an image file |

pub mod audit;
pub mod record;
pub mod sector;
pub mod writers;

/// Bytes in a block, the unit in which writes are placed and judged.
pub const BLOCK_BYTES: usize = 4096;

/// The most blocks in one write or read: 64 KiB.
pub const BLOCKS_MAX: u64 = 16;
