//! syncvm: making two running guests equal by sending only the bytes that differ (PLOVER §4.4).
//!
//! ```text
//!  leader                                   secondary
//!  pause, scan                              consume inputs, idle or waited enough, pause, scan
//!  Dirty(own dirty pages, hash key) ──────▶
//!  hash own pages                           hash the union of both sides' dirty pages
//!                                   ◀────── Hashes(own dirty pages, digests of the union)
//!  hash the rest, compare
//!  Blocks(divergent pages) ───────────────▶ hash their blocks
//!                                   ◀────── BlockHashes (those not said before: [`HashHistory`])
//!  Pages(what differs of them) … ─────────▶ stage
//!  End(device state, counts) ─────────────▶ all there? then nothing can be lost any more
//!                                   ◀────── Ack
//!  release outputs, resume                  apply what was staged, resume
//! ```
//!
//! `plover-replica` handles failures between any two of these lines. This crate holds the parts: the
//! [`message`]s, page [`chunk`]s, the [`Ledger`] of pages not yet known to be equal, the comparing, and
//! the [`Staging`] area that makes the secondary's step atomic.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod chunk;
mod compare;
mod history;
mod ledger;
pub mod message;
mod staging;

pub use compare::{Comparison, compare};
pub use history::{HashHistory, HashReport};
pub use ledger::Ledger;
pub use message::{CopyPurpose, Phase, SyncMessage, SyncReport};
pub use staging::{Staged, Staging, StagingError};
