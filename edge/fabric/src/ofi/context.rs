//! What all links of a fabric share, and what ends one.

use super::greeting::{Greeting, ProviderName};
use super::leftovers::Leftovers;
use super::native::{Address, NativeError, Provider};
use crate::hello::{GroupName, Hello, NotHello, Session};
use crate::poll::Poll;
use crate::refused::Refused;
use crate::ring::{BufferPool, Capacity};
use crate::tcp::TcpTimes;
use crate::{FabricEvent, FabricStats, Lane};
use plover_types::ReplicaId;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What all links share.
#[derive(Debug)]
pub(super) struct Context {
    pub me: ReplicaId,
    pub group: GroupName,
    pub capacities: [Capacity; 2],
    pub times: TcpTimes,
    pub poll: Poll,
    pub stats: FabricStats,
    pub refused: Refused,
    /// What happened since `progress` last returned.
    pub events: Vec<FabricEvent>,
    pub pool: BufferPool,
    pub provider: Arc<Provider>,
    /// Whether ports have a wait object.
    pub waits: bool,
    /// The provider's files, for the one that has any.
    pub leftovers: Option<Leftovers>,
}

/// Why a link, or an attempt at one, ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Loss {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(io::Error),
    #[error("no connection in time")]
    ConnectTimeout,
    #[error("no greeting in time")]
    GreetingTimeout,
    #[error(
        "the handshake went well but no doorbell came: libfabric's own traffic does not get \
         through (is a firewall between the replicas?)"
    )]
    JoinTimeout,
    #[error(transparent)]
    Stranger(NotHello),
    #[error("the peer's host acknowledged nothing for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the peer began a new session")]
    Superseded,
    #[error("what the peer announced on the {0} lane never became a record")]
    Stuck(Lane),
    #[error(transparent)]
    Native(#[from] NativeError),
}

impl From<io::Error> for Loss {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl Context {
    pub fn capacity(&self, lane: Lane) -> Capacity {
        self.capacities[lane.index()]
    }

    pub fn deliver(&mut self, from: ReplicaId, lane: Lane, bytes: Vec<u8>) {
        let stats = self.stats.lane_mut(lane);
        stats.records_in += 1;
        stats.bytes_in += bytes.len() as u64;
        self.events.push(FabricEvent::Record { from, lane, bytes });
    }

    /// What we say to `peer` when all is well.
    pub fn greeting(&self, peer: ReplicaId, session: Session, addresses: [Address; 2]) -> Greeting {
        let hello = |lane: Lane| Hello {
            version: plover_types::wire::WIRE_VERSION,
            lane: lane.index() as u8,
            from: self.me,
            to: peer,
            verdict: 0,
            session,
            ring_bytes: self.capacity(lane).bytes() as u64,
            group: self.group,
        };
        Greeting {
            lanes: Lane::ALL.map(hello),
            provider: ProviderName::new(&self.provider.traits.name),
            addresses,
        }
    }
}
