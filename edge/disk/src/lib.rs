//! A guest's disks, each replica's own copy of them (design §§3, 4).
//!
//! ```text
//!   guest ─ virtio, SCSI, IDE ─ QEMU ══ NBD ══▶ a thread per disk ──▶ image (a raw file)
//!                                               │ notes the block
//!                                               ▼
//!   the loop: scan ◀────────────────── written blocks     journal ◀── a thread: stage, settle
//!        └ asks for blocks ─▶ a thread: hash, read, write
//! ```
//!
//! The loop itself waits for no disk while a guest runs: heartbeats come first.
//!
//! Both guests read and write their own copy, and to a syncvm the 4 KiB blocks of all writable
//! disks are just more pages, numbered after those of guest RAM. What a disk has beyond memory is
//! that it outlives its host, so it must be of use whenever that host dies:
//!
//! * A copy that its own guest writes is at every moment what a power loss would leave, as on any
//!   machine: a flush is done when the file is (`fdatasync`). That guest's state explains all that
//!   clients have seen, on the leader and on the secondary alike (PLOVER §4.6).
//! * Applying a syncvm would break that while it lasts: half of the blocks are the leader's, half
//!   its own. So they go to a journal first, and the copy is *before* the syncvm until that is
//!   durable and *after* it from then on: a restart carries on what a crash has cut short.
//! * A full copy is of no use before its first syncvm, and the journal says so.
//!
//! ```text
//!             stage                     written                 settle
//!   settled ─────────▶ journal durable ────────▶ copy is ahead ───────▶ copy durable, journal void
//!   (guest runs)       acknowledged              (guest may run,        (guest writes)
//!                                                 its writes wait)
//! ```
//!
//! The guest must not write before the journal is void: a restart would write the journal's blocks
//! over what came after them.

mod disks;
mod error;
mod health;
mod image;
pub mod import;
mod journal;
mod lock;
mod nbd;
mod worker;
mod written;

pub use disks::{Attachment, Blocks, DiskSpec, Disks};
pub use error::DiskError;
pub use journal::Batch;
pub use worker::DiskEvent;
