//! What a shared-memory fabric is told.

use crate::Spin;
use plover_types::ReplicaId;
use std::path::PathBuf;
use std::time::Duration;

/// Where the replicas of a host find each other's unix sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShmPlace {
    /// Names without files, derived from the group's name. They end with their process, and
    /// each network namespace has its own: for replicas that share one (the default).
    #[default]
    Abstract,
    /// Files in this directory, which must exist: for replicas in different network namespaces.
    Directory(PathBuf),
}

/// The configuration of a [`super::ShmFabric`].
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// The group's name, 1 to 64 bytes, the same on all its replicas.
    pub group: String,
    /// This replica.
    pub me: ReplicaId,
    /// The other members on this host.
    pub peers: Vec<ReplicaId>,
    /// Where they meet.
    pub place: ShmPlace,
    /// Size of each log ring, the same on all replicas: a multiple of 8. A record takes at
    /// most half.
    pub log_ring_bytes: usize,
    /// Size of each bulk ring, likewise.
    pub bulk_ring_bytes: usize,
    /// Whether to look for records for a while before the caller sleeps. It happens inside of
    /// [`Fabric::timeout`](crate::Fabric::timeout), for 30 µs at most.
    pub spin: Spin,
    /// When to give up and when to try again.
    pub times: ShmTimes,
}

impl ShmConfig {
    /// The defaults for everything but who is there.
    pub fn new(group: impl Into<String>, me: ReplicaId, peers: Vec<ReplicaId>) -> Self {
        Self {
            group: group.into(),
            me,
            peers,
            place: ShmPlace::default(),
            log_ring_bytes: 4 << 20,
            bulk_ring_bytes: 16 << 20,
            spin: Spin::Never,
            times: ShmTimes::default(),
        }
    }
}

/// When a shared-memory fabric tries again. It need not give up by the clock: the kernel tells at
/// once when a peer's process ends.
#[derive(Clone, Copy, Debug)]
pub struct ShmTimes {
    /// The pace of dialling a peer that is not there.
    pub dial_every: Duration,
    /// How long the handshake may take.
    pub hello_within: Duration,
    /// The pace after a refusal: only a person can mend that, so the log need not fill.
    pub refused_every: Duration,
}

impl Default for ShmTimes {
    fn default() -> Self {
        Self {
            dial_every: Duration::from_millis(100),
            hello_within: Duration::from_millis(500),
            refused_every: Duration::from_secs(2),
        }
    }
}
