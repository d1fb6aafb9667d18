//! The floor under every figure of consensus: what the same bytes cost without any protocol.
//!
//! ```text
//!   bare leader ── payload ──► bare backup 1 ┐
//!        │      ── payload ──► bare backup 2 ├── 8 bytes back, at once
//!        ▼                          …        ┘
//!   done when as many have answered as make a majority with the leader
//! ```
//!
//! No framing, no checksum, no ring that could be full, no order, no view, no timer: sockets or
//! memory, and waking each other. Two replicas are a plain ping-pong. The backups are threads: a
//! switch between threads is cheaper than one between processes, so the floor is rather too low
//! than too high, and what is measured against it has the harder part.
//!
//! The floor is measured in the same run as what stands on it, and taking turns with it, because
//! the same machine differs from one minute to the next by more than the two differ.

mod shm;
mod tcp;

use crate::Spin;
use std::io;
use std::time::Instant;

/// What an acknowledgement has, bytes.
const ACKNOWLEDGEMENT_BYTES: usize = 8;

/// What the floor is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloorKind {
    /// TCP sockets on the loopback interface, Nagle's algorithm off.
    Tcp,
    /// Memory files and eventfds.
    Shm,
}

/// A bare leader with its backups running. They end when it is dropped.
#[derive(Debug)]
pub struct Floor(Leader);

#[derive(Debug)]
enum Leader {
    Tcp(tcp::Leader),
    Shm(shm::Leader),
}

impl Floor {
    /// Starts `replicas - 1` backups (at least one) that wait for payloads of `payload_bytes`
    /// (at least one, for `Shm` at most 1 MiB). Fails if the system gives no sockets, memory or
    /// threads.
    pub fn start(
        kind: FloorKind,
        payload_bytes: usize,
        replicas: usize,
        spin: Spin,
    ) -> io::Result<Self> {
        assert!(replicas >= 2, "a leader and {replicas} replicas in all");
        assert!(payload_bytes > 0, "nothing to send");
        let backups = replicas - 1;
        Ok(Self(match kind {
            FloorKind::Tcp => Leader::Tcp(tcp::Leader::start(payload_bytes, backups, spin)?),
            FloorKind::Shm => Leader::Shm(shm::Leader::start(payload_bytes, backups, spin)?),
        }))
    }

    /// Sends one payload to all backups and waits until enough have answered.
    pub fn round(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Leader::Tcp(leader) => leader.round(),
            Leader::Shm(leader) => leader.round(),
        }
    }
}

/// Times `rounds` rounds, after a tenth as many that are not counted; nanoseconds each, in the
/// order of measuring. See [`Floor::start`].
pub fn run(
    kind: FloorKind,
    payload_bytes: usize,
    replicas: usize,
    rounds: usize,
    spin: Spin,
) -> io::Result<Vec<u64>> {
    let mut floor = Floor::start(kind, payload_bytes, replicas, spin)?;
    for _ in 0..rounds / 10 {
        floor.round()?;
    }
    (0..rounds)
        .map(|_| {
            let start = Instant::now();
            floor.round()?;
            Ok(start.elapsed().as_nanos() as u64)
        })
        .collect()
}

/// How many of the backups have to answer.
fn needed(backups: usize) -> usize {
    backups.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_answered() {
        for kind in [FloorKind::Tcp, FloorKind::Shm] {
            for spin in [Spin::Never, Spin::Adaptive] {
                for (replicas, bytes) in [(2, 1), (3, 256), (5, 64 << 10)] {
                    let times = run(kind, bytes, replicas, 50, spin).unwrap();
                    assert_eq!(times.len(), 50, "{kind:?} {spin:?}");
                    assert!(times.iter().all(|nanoseconds| *nanoseconds > 0));
                }
            }
        }
    }

    #[test]
    fn a_majority_counts_the_leader() {
        assert_eq!([1, 2, 4, 6, 8].map(needed), [1, 1, 2, 3, 4]);
    }
}
