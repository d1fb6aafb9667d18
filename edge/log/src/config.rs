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
    /// The voters with which the group began, 1 to 9. The lowest of them leads first. A newcomer
    /// names those that it is to join, and is none of them.
    pub members: ReplicaSet,
    /// Where the replicas of the group reach each other, this one included, as text that the
    /// fabric understands. Only for a group whose members are to change; empty otherwise.
    pub addresses: BTreeMap<ReplicaId, String>,
    /// The leader's heartbeat period; shorter than `timeout`.
    pub heartbeat: Micros,
    /// Silence of the leader after which another may be elected (APUS: 100 ms).
    pub timeout: Micros,
    /// When an acknowledgement counts.
    pub durability: Durability,
    /// Payload bytes the log may hold; proposals wait when it is full. A proposer that is
    /// faster than the slowest of the quorum fills it.
    pub log_bytes_max: usize,
    /// Payload bytes the leader keeps of what is committed, for replicas that come late and for
    /// readers. At most half of `log_bytes_max` is of use.
    pub retain_bytes: usize,
    /// Whether answers of the state machine are hashed and compared between replicas (APUS §3):
    /// a stream for each session, and stream 0 for all proposers without one.
    pub check_outputs: bool,
}

impl Config {
    /// The defaults for everything but who is who: 20 ms heartbeats, 100 ms timeout, memory, a
    /// log of 64 MiB of which 32 MiB are retained, outputs not checked.
    pub fn new(me: ReplicaId, members: ReplicaSet) -> Self {
        Self {
            me,
            members,
            addresses: BTreeMap::new(),
            heartbeat: Micros::from_ms(20),
            timeout: Micros::from_ms(100),
            durability: Durability::Memory,
            log_bytes_max: 64 << 20,
            retain_bytes: 32 << 20,
            check_outputs: false,
        }
    }

    /// The group before the log has named another.
    pub(crate) fn group(&self) -> Group {
        Group {
            members: Members::of(self.members),
            addresses: self.addresses.clone(),
        }
    }

    /// Who leads a group that has never run.
    pub(crate) fn first_leader(&self) -> ReplicaId {
        self.members.iter().next().unwrap_or(self.me)
    }
}
