//! Waking a peer that sleeps, and only then.
//!
//! ```text
//!   sleeper                                      writer
//!     sleep := n   (on its own page)               tail := …  (in the sleeper's region)
//!     ── fence ──                                  ── fence ──
//!     anything new? then do not sleep              sleep ≠ 0?  then ring, once for this n
//! ```
//!
//! Whichever of the two fences comes second sees what stands before the other one: so either the
//! sleeper sees the record, or the writer sees the sleep. Sleeps are numbered, so that many writes to
//! a peer that is about to wake cost one system call.
//!
//! The doorbell is an eventfd in the sleeper's epoll, edge-triggered: ringing it wakes, and nobody
//! has to read it afterwards. (A futex would need a second thread for the sockets.)

use super::memory::BadMemory;
use super::page::Sleep;
use plover_types::ReplicaId;
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A peer's doorbell.
#[derive(Debug)]
pub struct Doorbell {
    eventfd: OwnedFd,
    /// The sleep that was looked at last.
    seen: u64,
}

/// A doorbell of our own.
pub fn make() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?)
}

impl Doorbell {
    /// Takes the doorbell out of a peer's offer. Whether it blocks is checked once: a peer that makes
    /// it block later runs as our user and could stop us in simpler ways.
    pub fn new(eventfd: OwnedFd) -> Result<Self, BadMemory> {
        let link = format!("/proc/self/fd/{}", eventfd.as_raw_fd());
        let is_eventfd =
            std::fs::read_link(link).is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]");
        let never_blocks = rustix::fs::fcntl_getfl(&eventfd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
        if is_eventfd && never_blocks {
            Ok(Self { eventfd, seen: 0 })
        } else {
            Err(BadMemory::Doorbell)
        }
    }

    /// The sleep of the peer, read from `sleep`, that `me` is to end, alone or with others; once for
    /// each sleep. Store what the peer is to see before.
    pub fn sleep_to_end(&mut self, sleep: &AtomicU64, me: ReplicaId) -> Option<Sleep> {
        fence(Ordering::SeqCst);
        let sleep = Sleep::read(sleep.load(Ordering::Relaxed), me)?;
        let is_new = sleep.number != self.seen;
        self.seen = sleep.number;
        is_new.then_some(sleep)
    }

    /// Wakes the peer.
    pub fn ring(&self) {
        // The only failure is a counter at its limit, after 2^64 rings.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_could_block_is_no_doorbell() {
        let blocking = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(Doorbell::new(blocking).is_err());
        let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        assert!(Doorbell::new(read).is_err());
    }
}
