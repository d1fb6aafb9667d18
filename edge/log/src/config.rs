//! How a replica of the log is set up.

use crate::members::Group;
use apus::{Durability, Members};
use plover_types::{Micros, ReplicaId, ReplicaSet};
use std::collections::BTreeMap;

/// The configuration of a [`Server`](crate::Server). All replicas of a group should agree on
/// everything but `me`.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica.
    pub me: ReplicaId,
    /// The voters with which the group began, 1 to 9. The lowest of them leads first. For a replica
    /// that joins later: the voters of the group, without itself.
    pub members: ReplicaSet,
    /// The addresses of all replicas, this one included, as text that the fabric understands. Empty
    /// for a group whose members never change.
    pub addresses: BTreeMap<ReplicaId, String>,
    /// The leader's heartbeat period; shorter than `timeout`.
    pub heartbeat: Micros,
    /// Silence of the leader after which another replica may be elected at the latest (APUS: 100 ms).
    pub timeout: Micros,
    /// The same at the earliest, where the leader's messages come steadily; at most `timeout`. `None`: half of it.
    pub timeout_min: Option<Micros>,
    /// When an acknowledgement counts.
    pub durability: Durability,
    /// Payload bytes the log may hold; proposals wait when it is full, as happens when a proposer
    /// is faster than the slowest of the quorum.
    pub log_bytes_max: usize,
    /// Payload bytes of committed entries that the leader keeps, for replicas that come late and
    /// for readers. At most half of `log_bytes_max` is of use.
    pub retain_bytes: usize,
    /// Whether replicas compare hashes of the state machine's answers (APUS §3): a stream for each
    /// session, and stream 0 for all proposers without one.
    pub check_outputs: bool,
}

impl Config {
    /// The defaults: heartbeats of 20 ms, a timeout of 100 ms, a log in memory of 64 MiB of which 32
    /// MiB are retained, outputs not checked.
    pub fn new(me: ReplicaId, members: ReplicaSet) -> Self {
        Self {
            me,
            members,
            addresses: BTreeMap::new(),
            heartbeat: Micros::from_ms(20),
            timeout: Micros::from_ms(100),
            timeout_min: None,
            durability: Durability::Memory,
            log_bytes_max: 64 << 20,
            retain_bytes: 32 << 20,
            check_outputs: false,
        }
    }

    /// The group until the log names another.
    pub(crate) fn group(&self) -> Group {
        Group {
            members: Members::of(self.members),
            addresses: self.addresses.clone(),
        }
    }

    /// The leader of a group that has never run.
    pub(crate) fn first_leader(&self) -> ReplicaId {
        self.members.iter().next().unwrap_or(self.me)
    }
}
