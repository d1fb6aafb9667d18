//! A guest's disks: each replica serves its own copy to its guest.
//!
//! ```text
//!   guest ─ virtio, SCSI, IDE ─ QEMU ══ NBD ══▶ a thread per disk ──▶ image (a raw file)
//!                                               │ notes the block
//!                                               ▼
//!   the loop: scan ◀────────────────── written blocks     journal ◀── a thread: stage, settle
//!        └ asks for blocks ─▶ a thread: hash, read, write
//! ```
//!
//! The loop waits for no disk once they are open: heartbeats come first. The start of a replica that has taken part before waits
//! for 5 s at most until its images are open and whole.
//!
//! Both guests read and write their own copy. To a syncvm the 4 KiB blocks of all writable disks are
//! pages, numbered after those of guest RAM ([`plover_types::PageLayout`]). But a disk outlives its host,
//! so its copy must be usable whenever the host dies:
//!
//! * A copy that its own guest writes is at every moment what a power loss would leave, as on any
//!   machine: a flush is done when the file is flushed (`fdatasync`). The guest's state explains
//!   everything that clients have seen, on the leader and on the secondary (PLOVER §4.6).
//! * While a syncvm is applied, half of the blocks would be the leader's and half its own. So the blocks
//!   are written to a journal first. The copy is *before* the syncvm until the journal is durable, and
//!   *after* it from then on: a restart completes what a crash has interrupted.
//! * A full copy is useless before its first syncvm, and the journal says so.
//!
//! ```text
//!             stage                     written                 settle
//!   settled ─────────▶ journal durable ────────▶ copy is ahead ───────▶ copy durable, journal void
//!   (guest runs)       acknowledged              (guest may run,        (guest writes)
//!                                                 its writes wait)
//! ```
//!
//! The guest must not write before the journal is void: a restart would write the journal's blocks over
//! newer ones.
//!
//! ```
//! use plover_disk::{Batch, DiskEvent, DiskSpec, Disks};
//! use plover_types::{BlockNo, DISK_BLOCK_BYTES, SyncNo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let spec = DiskSpec {
//!     path: dir.path().join("disk.raw"),
//!     read_only: false,
//!     bytes: Some(1 << 20),
//!     bytes_max: None,
//!     delay: std::time::Duration::ZERO,
//! };
//! let mut disks = Disks::open(&[spec], &dir.path().join("disks.journal"))?;
//! let guest = disks.attach_to_boot()?;
//!
//! // A syncvm brings block 7.
//! let content = [9; DISK_BLOCK_BYTES];
//! let mut batch = Batch::new();
//! batch.push(BlockNo(7), &content);
//! disks.stage(SyncNo(1), batch);
//! let mut events = Vec::new();
//! while events.is_empty() {
//!     disks.take_events(&mut events);
//! }
//! assert_eq!(events, [DiskEvent::Staged(SyncNo(1))]);
//! guest.direct().write(BlockNo(7), &content);
//! disks.settle();
//! # Ok(())
//! # }
//! ```

mod calls;
mod changes;
mod disks;
mod error;
pub mod export;
#[doc(hidden)]
pub mod fuzz;
mod health;
pub mod holes;
mod image;
pub mod import;
mod journal;
mod lock;
mod look;
mod mark;
mod memory;
mod nbd;
mod pace;
mod scratch;
mod snapshot;
mod worker;
mod written;

pub use disks::{Attachment, Blocks, DiskSpec, Disks, Purpose};
pub use error::DiskError;
pub use journal::Batch;
pub use look::Found;
pub use memory::{MachineState, MemoryCopy, MemoryImage};
pub use snapshot::{Snapshot, SnapshotDisk, SnapshotLimits, SnapshotRoom};
pub use worker::{AbortOnPanic, DiskEvent};
