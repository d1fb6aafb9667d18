//! One-sided writes into per-peer rings: the trait, its contract suite, tcp and faulty.

use plover_types::ReplicaId;
use std::os::fd::RawFd;
use std::time::Duration;

/// Each pair of replicas has two rings in each direction, so that bulk data never delays a
/// heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Consensus: small, urgent.
    Log,
    /// syncvm: pages, hashes, device state.
    Bulk,
}

/// Why a record could not be written now.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// No link to that peer; a `Link` event will say when there is.
    #[error("no link to {0}")]
    Down(ReplicaId),
    /// The peer's ring has no room; `Room` will say when there is.
    #[error("the ring at {0} is full")]
    Full(ReplicaId),
    /// The record can never fit: the caller must split it.
    #[error("a record of {bytes} bytes exceeds the largest of {max}")]
    TooLarge {
        /// What was asked.
        bytes: usize,
        /// The most.
        max: usize,
    },
}

/// What a fabric reports.
#[derive(Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// The link to `peer` came up anew; what was in flight before is lost.
    Up(ReplicaId),
    /// The link to `peer` went down.
    Down(ReplicaId),
    /// One whole, checksummed record out of the inbound ring of `peer`.
    Record {
        /// The writer.
        from: ReplicaId,
        /// Which of its rings.
        lane: Lane,
        /// The record's bytes.
        bytes: Vec<u8>,
    },
    /// A ring that refused a record with [`WriteError::Full`] has room again.
    Room {
        /// The ring's owner.
        peer: ReplicaId,
        /// Which ring.
        lane: Lane,
    },
}

/// A way to write into other replicas' memory.
pub trait Fabric {
    /// Writes one record into the next place of our ring at `to`. Returns when the bytes are
    /// handed over or queued within the ring's bound; a lost link loses them.
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError>;

    /// Drives everything that can go on without blocking: pending writes, arrivals,
    /// reconnects. Appends what happened.
    fn progress(&mut self, events: &mut Vec<FabricEvent>);

    /// A descriptor that polls readable when `progress` has something to do (an epoll
    /// descriptor can be nested in the caller's own).
    fn wait_fd(&self) -> RawFd;

    /// How long the caller may sleep on `wait_fd` before it must call `progress` anyway
    /// (reconnect timers); `None` for as long as it likes.
    fn timeout(&self) -> Option<Duration>;

    /// Largest record `write` takes on `lane`, bytes.
    fn record_bytes_max(&self, lane: Lane) -> usize;
}
