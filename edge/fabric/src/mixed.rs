//! One fabric out of several: each peer is reached by one of them.
//!
//! ```text
//!                  ┌─ tcp ──► replica 2, 3 (other hosts)
//!   caller ─ Mixed ┤
//!                  └─ shm ──► replica 1    (this host)
//! ```
//!
//! The parts know nothing of each other. The members of a part are the peers that it serves and no
//! others, so that a peer that reaches this replica another way is refused instead of getting two
//! links. The parts' descriptors are nested in one epoll, which is readable as long as one of them
//! is.

use crate::poll::{Interest, Poll};
use crate::{
    Attached, BoxedFabric, Fabric, FabricError, FabricEvent, FabricStats, Lane, PeerError,
    WriteError,
};
use plover_types::wire::Versions;
use plover_types::{Awaited, ReplicaId};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// Several fabrics as one.
pub struct Mixed {
    parts: Vec<Part>,
    /// Dropped after the parts, whose descriptors it watches.
    poll: Poll,
}

struct Part {
    fabric: BoxedFabric,
    peers: Vec<ReplicaId>,
    /// Records it has delivered whose buffers have not been given back.
    lent: usize,
}

impl Mixed {
    /// Puts fabrics together, each with the peers it was made for. Fails if a peer is named
    /// twice, or the kernel gives no descriptor.
    pub fn new(parts: Vec<(BoxedFabric, Vec<ReplicaId>)>) -> Result<Self, FabricError> {
        let mut poll = Poll::new().map_err(FabricError::system("make an epoll descriptor"))?;
        let mut seen = Vec::new();
        let mut taken = Vec::new();
        for (fabric, peers) in parts {
            for &peer in &peers {
                if seen.contains(&peer) {
                    return Err(FabricError::Member(peer));
                }
                seen.push(peer);
            }
            // SAFETY: the fabric is borrowed for as long as the descriptor is used, and keeps
            // its `wait_fd` open.
            let wait_fd = unsafe { BorrowedFd::borrow_raw(fabric.wait_fd()) };
            poll.watch(wait_fd, Interest::Read)
                .map_err(FabricError::system("watch a fabric"))?;
            taken.push(Part {
                fabric,
                peers,
                lent: 0,
            });
        }
        Ok(Self { parts: taken, poll })
    }
}

impl std::fmt::Debug for Mixed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers = self.parts.iter().map(|part| &part.peers);
        f.debug_tuple("Mixed")
            .field(&peers.collect::<Vec<_>>())
            .finish()
    }
}

impl Fabric for Mixed {
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError> {
        let max = self.record_bytes_max(lane);
        if record.len() > max {
            return Err(WriteError::TooLarge {
                bytes: record.len(),
                max,
            });
        }
        match self.parts.iter_mut().find(|part| part.peers.contains(&to)) {
            Some(part) => part.fabric.write(to, lane, record),
            None => Err(WriteError::Down(to)),
        }
    }

    fn flush(&mut self) {
        for part in &mut self.parts {
            part.fabric.flush();
        }
    }

    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        for part in &mut self.parts {
            let before = events.len();
            part.fabric.progress(events);
            let is_record = |event: &&FabricEvent| matches!(event, FabricEvent::Record { .. });
            part.lent += events[before..].iter().filter(is_record).count();
        }
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        // A buffer does not show which part it came from; the part that lent most needs it most.
        if let Some(part) = self.parts.iter_mut().max_by_key(|part| part.lent) {
            part.lent = part.lent.saturating_sub(1);
            part.fabric.recycle(bytes);
        }
    }

    /// The first part reaches a peer that is added.
    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        let known = self.parts.iter().position(|p| p.peers.contains(&peer));
        let part = &mut self.parts[known.unwrap_or(0)];
        part.fabric.set_peer(peer, address)?;
        part.peers.retain(|id| *id != peer);
        if address.is_some() {
            part.peers.push(peer);
        }
        Ok(())
    }

    fn cut(&mut self, peer: ReplicaId, why: &str) {
        if let Some(part) = self.parts.iter_mut().find(|p| p.peers.contains(&peer)) {
            part.fabric.cut(peer, why);
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.poll.fd()
    }

    /// The parts look for themselves in `progress`.
    fn wait(&mut self, timeout: Option<Duration>) {
        self.poll.wait(timeout);
    }

    fn attach(&mut self, fd: BorrowedFd<'_>) -> io::Result<Attached> {
        self.poll.watch(fd, Interest::Read).map(Attached)
    }

    fn is_readable(&self, attached: Attached) -> bool {
        self.poll.is_readable(attached.0)
    }

    /// No part sees who has written to the others, so none can count.
    fn wake_for(&mut self, awaited: Option<Awaited>) {
        for part in &mut self.parts {
            part.fabric.wake_for(awaited.map(Awaited::uncounted));
        }
    }

    fn timeout(&self) -> Option<Duration> {
        // All are asked: each has to know that its caller is about to sleep.
        let parts = self.parts.iter();
        parts.filter_map(|part| part.fabric.timeout()).min()
    }

    /// The least of the parts', so that a record fits any peer.
    fn record_bytes_max(&self, lane: Lane) -> usize {
        let parts = self.parts.iter();
        let largest = parts.map(|part| part.fabric.record_bytes_max(lane));
        largest.min().unwrap_or(0)
    }

    fn stats(&self) -> FabricStats {
        let parts = self.parts.iter();
        let all = parts.map(|part| part.fabric.stats());
        all.fold(FabricStats::default(), std::ops::Add::add)
    }

    fn speak(&mut self, versions: Versions) {
        for part in &mut self.parts {
            part.fabric.speak(versions);
        }
    }

    fn versions(&self, peer: ReplicaId) -> Option<Versions> {
        let part = self.parts.iter().find(|part| part.peers.contains(&peer))?;
        part.fabric.versions(peer)
    }

    fn twin(&self) -> Option<(ReplicaId, String)> {
        self.parts.iter().find_map(|part| part.fabric.twin())
    }

    fn refusal(&self, peer: ReplicaId) -> Option<String> {
        self.parts.iter().find_map(|part| part.fabric.refusal(peer))
    }
}
