//! syncvm: making two running guests equal by sending only the bytes that differ (PLOVER §4.4).
//!
//! ```text
//!  leader                                   secondary
//!  pause, scan                              consume inputs, idle or waited enough, pause, scan
//!  Dirty(own dirty pages, hash keys) ─────▶
//!  hash own pages                           hash the union of both sides' dirty pages
//!                                   ◀────── Hashes(own dirty pages, digests of the union)
//!  hash the rest, compare
//!  Subpages(divergent pages) ─────────────▶ hash their subpages
//!                                   ◀────── SubpageHashes (those not sent before: [`HashHistory`])
//!  Pages(what differs of them) … ─────────▶ stage
//!  End(device state, counts) ─────────────▶ all there? then nothing can be lost any more
//!                                   ◀────── Ack
//!  release outputs, resume                  apply what was staged, resume
//! ```
//!
//! `plover-replica` handles failures between any two of these lines. This crate holds the parts: the
//! [`message`]s, page [`chunk`]s, the [`Ledger`] of pages not yet known to be equal, the comparing, and
//! the [`Staging`] area that makes the secondary's step atomic.
//!
//! A sync of two dirty pages, of which one differs:
//!
//! ```
//! use plover_syncvm::{Ledger, Staging, chunk, compare};
//! use plover_types::{Digest, PAGE_BYTES, PageNo, PageSet, SyncNo, Unconsumed};
//!
//! let guest_pages = 1000;
//! let mut dirty = PageSet::new(guest_pages);
//! dirty.insert_run(7, 8);
//! let mut ledger = Ledger::settled(guest_pages);
//! ledger.owe(&dirty); // Their dirty bits are cleared.
//!
//! let pages = [PageNo(7), PageNo(8)];
//! let (ours, theirs) = ([Digest(1), Digest(2)], [Digest(1), Digest(3)]);
//! let found = compare(&pages, &ours, &theirs).expect("both lists are of these pages");
//! assert_eq!((found.same, &found.divergent[..]), (1, &[PageNo(8)][..]));
//!
//! // The leader sends the page that differs, and the secondary stages it.
//! let mut chunk = chunk::ChunkWriter::new();
//! chunk.push(PageNo(8), &[9; PAGE_BYTES]);
//! let mut staging = Staging::new(SyncNo(1), PageSet::all(guest_pages));
//! staging.push(0, chunk.finish()).unwrap();
//! let staged = staging.finish(1, b"device state".to_vec().into(), Unconsumed::default()).unwrap();
//! assert!(staged.touched.contains(PageNo(8)));
//!
//! ledger.settle(); // The secondary has acknowledged: both sides are equal.
//! assert!(ledger.owed().is_empty());
//! ```

#![forbid(unsafe_code)]

pub mod chunk;
mod compare;
mod history;
mod ledger;
pub mod message;
mod report;
mod staging;
pub mod subpages;

pub use compare::{Comparison, compare};
pub use history::{HashHistory, HashReport};
pub use ledger::Ledger;
pub use message::{CopyPurpose, SyncMessage};
pub use report::{Phase, SyncReport};
pub use staging::{Staged, Staging, StagingError};
