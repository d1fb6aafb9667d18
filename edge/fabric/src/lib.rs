//! One-sided writes into per-peer rings: how replicas put bytes into each other's memory.
//!
//! The consensus core never "sends a message". It says: *write these bytes at the next place of
//! peer P's inbound ring* (APUS §4). Every replica owns one inbound ring per peer and
//! [`Lane`], which only that peer writes, so a deposed leader can overwrite nothing of value
//! and no permission ever needs revoking.
//!
//! ```text
//!     replica 0                                        replica 1
//!   ┌───────────┐   record: header, payload, canary  ┌──────────────────┐
//!   │ RingWriter├───────── one-sided write ─────────►│ ring of 0 (Log)  │── RingReader ─► Record
//!   │  tail     │                                    │ ring of 0 (Bulk) │
//!   │  head  ◄──┼───────── credit: "read so far" ────┤                  │
//!   └───────────┘                                    └──────────────────┘
//! ```
//!
//! * [`ring`] is the framing, pure and shared by every fabric: what a record looks like in the
//!   ring, when it counts as there, how space is given back.
//! * [`Fabric`] is the trait; [`tcp`] implements it over TCP by a receiver that applies the
//!   writes, [`shm`] between processes of one host by memory that both have mapped. RDMA fits
//!   the same trait. [`Mixed`] reaches some peers by one and some by another.
//! * [`contract`] is the one test suite that every implementation passes.
//! * [`floor`] is what the same bytes cost without all this: the limit to measure against.
//! * [`faulty`] wraps any fabric with seeded drops, delays and cuts, for tests.
//!
//! What a fabric promises while a link is up: records of one lane arrive whole, once and in
//! order. What it does not promise: that a record arrives at all. A lost link loses what was in
//! flight, and only the peer's answer proves that a record is in its memory.

mod api;
pub mod contract;
mod error;
pub mod faulty;
pub mod floor;
mod hello;
mod mixed;
#[cfg(feature = "ofi")]
pub mod ofi;
mod poll;
mod refused;
pub mod ring;
mod settings;
pub mod shm;
mod spin;
mod stats;
pub mod tcp;

pub use api::{Attached, Fabric, FabricEvent, Lane, PeerError, WriteError};
pub use error::FabricError;
pub use faulty::Faulty;
pub use mixed::{BoxedFabric, Mixed};

pub use shm::{ShmConfig, ShmFabric, ShmPlace};
pub use spin::{Spin, UnknownSpin};
pub use stats::{FabricStats, LaneStats};
pub use tcp::{TcpConfig, TcpFabric};
