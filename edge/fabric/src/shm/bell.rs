//! Waking a peer that sleeps, and only then.
//!
//! ```text
//!   sleeper                                 writer
//!     nap := n   (on its own board)           tail := …  (in the sleeper's region)
//!     ── fence ──                             ── fence ──
//!     anything new? then do not sleep         nap ≠ 0?  then ring the bell, once for this n
//! ```
//!
//! Whichever of the two fences comes second sees what stands before the other one: so either the
//! sleeper sees the record, or the writer sees the nap. Naps are numbered, so that many writes to
//! a peer that is about to wake cost one system call.
//!
//! The bell is an eventfd in the sleeper's epoll, edge-triggered: ringing it wakes, and nobody
//! has to read it afterwards.

use super::board::Nap;
use plover_types::ReplicaId;
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A peer's bell.
#[derive(Debug)]
pub(crate) struct Bell {
    eventfd: OwnedFd,
    /// For which nap it was rung last.
    rung: u64,
}

/// What came as a bell is none.
#[derive(Debug, thiserror::Error)]
#[error("the bell it offers is not an eventfd that never blocks")]
pub(crate) struct NoBell;

/// A bell of our own.
pub(super) fn make() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?)
}

/// A bell for a sleeper who waits in a read of it, as nobody does but the bare [`crate::floor`].
pub(crate) fn eventfd_of_sleeper() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?)
}

impl Bell {
    /// Takes the bell out of a peer's offer. Whether it blocks is checked once: a peer that makes
    /// it block later runs as our user and could stop us in simpler ways.
    pub fn new(eventfd: OwnedFd) -> Result<Self, NoBell> {
        let link = format!("/proc/self/fd/{}", eventfd.as_raw_fd());
        let is_eventfd =
            std::fs::read_link(link).is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]");
        let never_blocks = rustix::fs::fcntl_getfl(&eventfd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
        if is_eventfd && never_blocks {
            Ok(Self { eventfd, rung: 0 })
        } else {
            Err(NoBell)
        }
    }

    /// The bell of a bare sleeper of this process.
    pub fn bare(eventfd: OwnedFd) -> Self {
        Self { eventfd, rung: 0 }
    }

    /// The nap of the peer that `me` is to end, alone or with others, once for each nap. What the peer
    /// is to see must have been stored before.
    pub fn nap_to_end(&mut self, nap: &AtomicU64, me: ReplicaId) -> Option<Nap> {
        fence(Ordering::SeqCst);
        let nap = Nap::of(nap.load(Ordering::Relaxed), me)?;
        let is_new = nap.number != self.rung;
        self.rung = nap.number;
        is_new.then_some(nap)
    }

    /// Wakes the peer if it naps and `me` is to end that, without regard to how many others are.
    pub fn ring(&mut self, nap: &AtomicU64, me: ReplicaId) {
        if self.nap_to_end(nap, me).is_some() {
            self.ring_anyway();
        }
    }

    /// Wakes the peer whether it naps or not.
    pub fn ring_anyway(&self) {
        // The only failure is a counter at its limit, after 2^64 rings.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::{Awaited, ReplicaSet};

    const ME: ReplicaId = ReplicaId(3);

    fn count(eventfd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(eventfd, &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }

    #[test]
    fn it_rings_once_a_nap_and_not_for_the_awake() {
        let mine = make().unwrap();
        let mut bell = Bell::new(mine.try_clone().unwrap()).unwrap();
        let nap = AtomicU64::new(0);
        bell.ring(&nap, ME);
        assert_eq!(count(&mine), 0, "awake");
        let naps = |number, from| {
            let awaited = Awaited { from, count: 1 };
            nap.store(Nap { number, awaited }.word(), Ordering::Relaxed);
        };
        naps(7, ReplicaSet::ALL);
        bell.ring(&nap, ME);
        bell.ring(&nap, ME);
        assert_eq!(count(&mine), 1, "one nap");
        naps(8, ReplicaSet::of([ME]));
        bell.ring(&nap, ME);
        assert_eq!(count(&mine), 1, "the next nap");
        naps(9, ReplicaSet(!ReplicaSet::of([ME]).0));
        bell.ring(&nap, ME);
        assert_eq!(count(&mine), 0, "a nap for others to end");
    }

    #[test]
    fn what_could_block_is_no_bell() {
        let blocking = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(Bell::new(blocking).is_err());
        let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        assert!(Bell::new(read).is_err());
    }
}
