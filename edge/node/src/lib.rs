//! The body of a replica: it turns messages, frames and finished work into events, applies them to the
//! brain, and carries out the brain's actions.
//!
//! One thread owns the brain, the guest, the fabric and the TAP. It sleeps in one `ppoll` until a
//! descriptor is ready or a deadline comes. Between two sleeps it does one turn:
//!
//! ```text
//!  ppoll ─▶ fabric records ┐
//!        ─▶ guest events   ├─▶ Replica::apply ─▶ actions ─▶ guest, TAP, fabric, disk
//!        ─▶ TAP frames     │         ▲               │
//!        ─▶ control        ┘         └── answers ◀───┘ (scans, hashes, pages)
//! ```
//!
//! `plover-replica` makes all decisions. This crate makes none.

mod announce;
mod body;
mod clock;
mod config;
mod control;
mod disk_pages;
mod fabric;
mod host;
mod images;
mod metrics;
mod pack;
mod policy;
mod storage;
mod tap;
mod trace;

pub use body::{ExitReason, SPLIT_WARNING, run};
pub use config::{ConfigError, ReplicaConfig};
pub use control::StopHandle;
pub use fabric::FabricName;
pub use host::{CpuConfig, HostConfig, usable_cpus};
pub use plover_replica::newest;
pub use policy::{PolicyConfig, PolicyName, SyncName};
