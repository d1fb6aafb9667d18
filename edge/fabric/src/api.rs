//! The trait and its vocabulary.

use crate::FabricStats;
use crate::poll::Token;
use plover_types::wire::Versions;
use plover_types::{Awaited, ReplicaId};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

pub use plover_types::Lane;

/// Why a record could not be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// No link to that peer; an [`FabricEvent::Up`] will say when there is.
    #[error("no link to {0}: wait for `Up`")]
    Down(ReplicaId),
    /// The peer's ring has no room; [`FabricEvent::Room`] will say when there is. The record
    /// was not taken: the caller still owns it and writes it again.
    #[error("the ring at {0} is full: wait for `Room`")]
    Full(ReplicaId),
    /// The record can never fit: the caller must split it.
    #[error("a record of {bytes} bytes exceeds the largest of {max}: split it")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest.
        max: usize,
    },
}

/// Why a peer could not be added: correct its address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this fabric does not understand the address '{0}': correct it")]
pub struct PeerError(pub String);

/// A fabric on any thread.
pub type BoxedFabric = Box<dyn Fabric + Send>;

/// An event that a fabric reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// The link to `peer` came up anew, both lanes; what was in flight before is lost.
    Up(ReplicaId),
    /// The link to `peer` went down, both lanes. Comes before the next `Up` of that peer, and
    /// no record of the lost link comes after it.
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
    /// A ring that refused a record with [`WriteError::Full`] has room again, enough for the
    /// largest record it refused. Not reported when the link went down in between: `Up` then
    /// means an empty ring.
    Room {
        /// The ring's owner.
        peer: ReplicaId,
        /// Which ring.
        lane: Lane,
    },
}

/// A descriptor that a caller has attached to a fabric's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached(pub(crate) Token);

/// A way to write into other replicas' memory.
///
/// One thread drives a fabric: it asks for [`timeout`](Self::timeout), sleeps on
/// [`wait_fd`](Self::wait_fd) for at most that long, calls [`progress`](Self::progress), reacts
/// with [`write`](Self::write)s and ends its turn with [`flush`](Self::flush). A turn of which the
/// descriptor says nothing and for which the timeout is not over may leave `progress` out, and still
/// write and flush.
pub trait Fabric {
    /// Writes one record into the next place of our ring at `to`. Returns when the bytes are
    /// queued within the ring's bound; they leave at the next `flush` or `progress` at the
    /// latest, so that the writes of one turn share a system call. A lost link loses them.
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError>;

    /// Hands over what `write` queued, as far as that goes without blocking.
    fn flush(&mut self);

    /// Drives everything that can go on without blocking: pending writes, arrivals,
    /// reconnects. Appends what happened. One call delivers a bounded amount from each peer
    /// and lane, so that none starves the others; what is left over keeps `wait_fd` readable
    /// or `timeout` at zero.
    fn progress(&mut self, events: &mut Vec<FabricEvent>);

    /// Gives back the buffer of a [`FabricEvent::Record`] that the caller is done with, so that a
    /// later record can use it. Optional: it saves an allocation. The fabric holds a bounded amount.
    fn recycle(&mut self, bytes: Vec<u8>) {
        drop(bytes);
    }

    /// Adds a peer that listens at `address`, or removes it with `None`. A peer that is known at
    /// another address gets a new link; the old link, and that of a removed peer, is lost without an
    /// event.
    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError>;

    /// Ends the link to `peer`, because it has sent `why`, which no correct peer sends. For a moment no other link to it is
    /// made, so that it costs this side little to do the same again.
    fn cut(&mut self, peer: ReplicaId, why: &str);

    /// A descriptor that polls readable when `progress` has something to do (an epoll
    /// descriptor can be nested in the caller's own, level-triggered).
    fn wait_fd(&self) -> RawFd;

    /// Sleeps until `progress` has something to do, an attached descriptor is readable or
    /// `timeout` is over, which is at most [`timeout`](Self::timeout); call `progress` next. The
    /// same as polling `wait_fd`, but in one system call instead of two.
    fn wait(&mut self, timeout: Option<Duration>);

    /// Makes `wait` also end when a descriptor of the caller is readable, until that is closed;
    /// `wait_fd` is then readable, too.
    fn attach(&mut self, fd: BorrowedFd<'_>) -> io::Result<Attached>;

    /// Whether an attached descriptor was readable when the last `wait` ended. Ask before
    /// `progress`.
    fn is_readable(&self, attached: Attached) -> bool;

    /// Names what is to end the next sleep: so many of these peers have written, or with `None` (the
    /// default) any peer has. Other records are found when the sleep ends, so the sleep should be short.
    /// It holds for one sleep and is a hint: a fabric that cannot tell its peers apart while the caller
    /// sleeps ignores it. Call it before `timeout`.
    fn wake_for(&mut self, awaited: Option<Awaited>) {
        let _ = awaited;
    }

    /// How long the caller may sleep before it must call `progress` anyway, because a timer is due;
    /// `None` for as long as it likes. Ask right before each sleep, and after the last write: a fabric
    /// whose peers write into memory tells them here that from now on they have to wake this side.
    fn timeout(&self) -> Option<Duration>;

    /// Largest record `write` takes on `lane`, bytes.
    fn record_bytes_max(&self, lane: Lane) -> usize;

    /// The counters since the fabric was made.
    fn stats(&self) -> FabricStats;

    /// What this replica tells peers of its versions from now on; before the first call, all that this release speaks.
    /// Links to peers that do not speak the group's version end.
    fn speak(&mut self, versions: Versions) {
        let _ = versions;
    }

    /// The versions that `peer` told at its newest link; `None` if the fabric does not say.
    fn versions(&self, peer: ReplicaId) -> Option<Versions> {
        let _ = peer;
        None
    }

    /// A peer with which this process was never linked has refused it, because another process of this replica has a link
    /// there and lives: the peer, and its words for the operator. This process is to take no part in the group: drop the fabric.
    fn twin(&self) -> Option<(ReplicaId, String)> {
        None
    }

    /// Why this side and `peer` refuse each other at present, in words for the operator. `None` if
    /// they do not, if the link is up, or if the fabric does not say.
    fn refusal(&self, peer: ReplicaId) -> Option<String> {
        let _ = peer;
        None
    }
}
