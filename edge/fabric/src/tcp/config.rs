//! What a TCP fabric is told.

use plover_types::ReplicaId;
use std::net::SocketAddr;
use std::time::Duration;

/// The configuration of a [`super::TcpFabric`].
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The group's name, 1 to 64 bytes, the same on all its replicas. It keeps two groups that
    /// were given the same addresses apart.
    pub group: String,
    /// This replica.
    pub me: ReplicaId,
    /// Where replicas with lower ids reach this one.
    pub listen: SocketAddr,
    /// The other members and where they listen.
    pub peers: Vec<(ReplicaId, SocketAddr)>,
    /// Size of each log ring, the same on all replicas: a multiple of 8. A record takes at
    /// most half.
    pub log_ring_bytes: usize,
    /// Size of each bulk ring, likewise.
    pub bulk_ring_bytes: usize,
    /// Kernel send buffer of each connection; `None` leaves it to the kernel's tuning.
    pub send_buffer_bytes: Option<usize>,
    /// When to give up and when to try again.
    pub times: TcpTimes,
}

impl TcpConfig {
    /// The defaults for everything but who is where.
    pub fn new(
        group: impl Into<String>,
        me: ReplicaId,
        listen: SocketAddr,
        peers: Vec<(ReplicaId, SocketAddr)>,
    ) -> Self {
        Self {
            group: group.into(),
            me,
            listen,
            peers,
            log_ring_bytes: 8 << 20,
            bulk_ring_bytes: 16 << 20,
            send_buffer_bytes: None,
            times: TcpTimes::default(),
        }
    }
}

/// When a TCP fabric gives up and when it tries again.
///
/// The kernel's own patience is made for the internet: after a cut of some seconds it retries a
/// lost segment or SYN only seconds later. Between replicas a healed link must be back at once,
/// so connections are given up early and dialled anew at a steady pace.
#[derive(Clone, Copy, Debug)]
pub struct TcpTimes {
    /// The pace of dialling, and how long a connection attempt may take. It bounds how long a
    /// healed link stays unused.
    pub dial_every: Duration,
    /// How long both handshakes may take from the start of dialling.
    pub hello_within: Duration,
    /// The pace after a refusal: only a person can mend that, so the log need not fill.
    pub refused_every: Duration,
    /// A peer whose host has answered nothing for so long, though an answer was owed, is cut
    /// off. A live host acknowledges in well under 50 ms, also when its
    /// replica is stopped or busy; a single lost segment is sent again after about 200 ms. So
    /// this waits for two losses in a row.
    pub silent_after: Duration,
}

impl Default for TcpTimes {
    fn default() -> Self {
        Self {
            dial_every: Duration::from_millis(250),
            hello_within: Duration::from_millis(500),
            refused_every: Duration::from_secs(2),
            silent_after: Duration::from_millis(500),
        }
    }
}
