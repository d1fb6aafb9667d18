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
//! The link to each peer is in one of three states; [`FabricEvent`] reports the last one:
//!
//! ```text
//!            ┌────────────┐  lower id: time to dial        ┌────────────┐
//!     ┌─────►│    Down    │───────────────────────────────►│   Trying   │
//!     │      └────────────┘  higher id: the peer greeted   └─────┬──────┘
//!     │ any error, end, silence or damage, in any state          │ both sides agree,
//!     │                                                          │ both lanes work
//!     │      ┌────────────┐   event Up                           │
//!     └──────┤     Up     │◄─────────────────────────────────────┘
//! event Down └────────────┘
//! ```
//!
//! While a link is up, records of one lane arrive whole, once and in order. A lost link loses what
//! was in flight: only the peer's answer proves that a record is in its memory.
//!
//! * [`Fabric`] is the trait. [`TcpFabric`] implements it over TCP, [`ShmFabric`] between processes of
//!   one host by memory that both have mapped, `ofi::OfiFabric` (feature `ofi`) over libfabric, that is
//!   RDMA. [`Mixed`] reaches some peers by one and some by another.
//! * [`ring`] is the framing, pure and shared by all: what a record looks like in the ring, when it
//!   counts as there, how space is given back.
//! * `driver.rs` is the turn that all fabrics share, `peer.rs` the link, `door.rs` the listener.
//! * `tests/contract.rs` is the one suite that every implementation passes.
//!
//! # Example
//!
//! Two replicas over loopback: one writes a record, the other one reads it.
//!
//! ```
//! use plover_fabric::{Fabric, FabricEvent, Lane, TcpConfig, TcpFabric};
//! use plover_types::ReplicaId;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let [zero, one] = [0, 1].map(ReplicaId);
//! let any = "127.0.0.1:0".parse()?;
//! // The lower id dials, so the higher one need not know where the lower one is.
//! let mut there = TcpFabric::new(TcpConfig::new("example", one, any, vec![(zero, any)]))?;
//! let listens = there.listen_address()?;
//! let mut here = TcpFabric::new(TcpConfig::new("example", zero, any, vec![(one, listens)]))?;
//!
//! let mut events = Vec::new();
//! let mut is_written = false;
//! let record = loop {
//!     // A turn: what has happened, the writes that follow from it, then sleep.
//!     here.progress(&mut events);
//!     if events.contains(&FabricEvent::Up(one)) && !is_written {
//!         here.write(one, Lane::Log, b"a record")?;
//!         here.flush();
//!         is_written = true;
//!     }
//!     events.clear();
//!     there.progress(&mut events);
//!     if let Some(FabricEvent::Record { from, bytes, .. }) = events.pop() {
//!         assert_eq!(from, zero);
//!         break bytes;
//!     }
//!     there.wait(Some(std::time::Duration::from_millis(1)));
//! };
//! assert_eq!(record, b"a record");
//! # Ok(())
//! # }
//! ```

mod api;
mod context;
mod door;
mod driver;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod hello;
pub mod keys;
mod line;
mod mapping;
mod mixed;
#[cfg(feature = "ofi")]
pub mod ofi;
mod peer;
mod poll;
mod processes;
mod refused;
pub mod ring;
mod shm;
mod socket;
mod spin;
mod stats;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;

pub use api::{Attached, BoxedFabric, Fabric, FabricEvent, Lane, PeerError, WriteError};
pub use driver::RingFabric;
pub use error::FabricError;
pub use keys::Keys;
pub use mixed::Mixed;
pub use processes::draw_process;
pub use refused::{Strangers, most_crowded};
pub use shm::{ShmConfig, ShmFabric, ShmPlace};
pub use spin::{Spin, UnknownSpin};
pub use stats::{FabricStats, LaneStats};
pub use tcp::{TcpConfig, TcpFabric};
pub use tls::client::{ClientDoor, ClientLine};
pub use tls::stream::Stream;
