//! One-sided writes over TCP: a receiver that applies them.
//!
//! TCP has no remote writes, so the receiving side stands in for the network card: it copies what
//! arrives to the named place of the ring and looks for whole records there. That needs the
//! target's help (`progress`), as every software fabric does; the layers above the trait cannot
//! tell the difference.
//!
//! ```text
//!   write ─► RingWriter ─► Outbox ═══ one connection a lane ═══► Inbox ─► ring ─► RingReader ─► Record
//!              ▲                                                                       │
//!              └────────── credit ◄═══════════ the same connection ◄═══════════════════┘
//! ```
//!
//! * **Lanes are connections**, so that a megabyte of pages never stands before a heartbeat. A link
//!   is up when both its lanes are, and down when either is lost.
//! * **Nothing blocks and nothing spins.** Sockets and listener sit in one level-triggered epoll,
//!   whose descriptor is `wait_fd`; the clock is served by `timeout`.
//! * **Memory is bounded** by the rings: a byte is queued only when the peer's ring has room
//!   for it, and the receiver always takes it off the wire into that room, so two peers that
//!   flood each other cannot lock each other up.
//! * **A cut link** is given up after half a second without an acknowledgement (`socket.rs`) and
//!   dialled every quarter of a second. The kernel's own patience is made for the internet: after a
//!   cut of some seconds it retries a lost segment or SYN only seconds later.
//! * **Every connection** is under TLS if there are keys (`tls.rs`), and begins with a greeting (`hello.rs`);
//!   nothing else is believed. Without keys the peer is not authenticated: the replication network must be
//!   a trusted one then.

mod handshake;
mod lane;
mod stream;
#[cfg(test)]
mod tests;

use crate::context::{Context, Loss};
use crate::door::Connection;
use crate::driver::{RingFabric, Transport};
use crate::hello::Session;
use crate::line::Line;
use crate::peer::Peer;
use crate::processes::Process;
use crate::socket::{ASK_EVERY, TcpDoor};
use crate::{FabricError, Keys, Lane};
use lane::LaneLink;
use plover_types::ReplicaId;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// One read takes in up to this much of small frames.
const SCRATCH_BYTES: usize = 256 << 10;

/// [`Fabric`](crate::Fabric) over TCP.
pub type TcpFabric = RingFabric<Tcp>;

/// The configuration of a [`TcpFabric`].
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The group's name, 1 to 64 bytes, the same on all its replicas. It keeps two groups apart that
    /// were given the same addresses.
    pub group: String,
    /// This replica.
    pub me: ReplicaId,
    /// Where replicas with lower ids reach this one.
    pub listen: SocketAddr,
    /// The other members and where they listen.
    pub peers: Vec<(ReplicaId, SocketAddr)>,
    /// Sizes of each log ring and of each bulk ring, the same on all replicas: multiples of 8. A
    /// record takes at most half.
    pub ring_bytes: [usize; 2],
    /// The keys for TLS. Without them everything is sent in the clear, and believed.
    pub keys: Option<Arc<Keys>>,
    /// Names this process among those of the replica: drawn at its start. With zero, a second process of the replica is taken
    /// for a restarted one.
    pub process: u64,
}

impl TcpConfig {
    /// Rings of the usual sizes.
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
            ring_bytes: [8 << 20, 16 << 20],
            keys: None,
            process: 0,
        }
    }
}

impl TcpFabric {
    /// Listens, and starts to dial at the first `progress`.
    pub fn new(config: TcpConfig) -> Result<Self, FabricError> {
        let ids = config.peers.iter().map(|(id, _)| *id);
        let mut context = Context::new(&config.group, config.me, ids, config.ring_bytes)?;
        context.process = Process(config.process);
        let listener = TcpDoor::open(config.listen, config.keys.as_ref())?;
        let transport = Tcp {
            scratch: vec![0; SCRATCH_BYTES],
            keys: config.keys,
        };
        Self::assemble(context, transport, listener, config.peers)
    }

    /// Where it listens (the port, if the configuration left it to the kernel).
    pub fn listen_address(&self) -> io::Result<SocketAddr> {
        self.listener().address()
    }
}

/// The state that only a TCP fabric has.
#[derive(Debug)]
pub struct Tcp {
    scratch: Vec<u8>,
    keys: Option<Arc<Keys>>,
}

/// Both lanes of a link that is up.
#[derive(Debug)]
pub struct Up {
    lanes: [LaneLink; 2],
    /// When to ask the kernel next whether the peer's host is silent.
    check_at: Instant,
}

impl Up {
    fn new(
        context: &Context,
        peer: ReplicaId,
        session: Session,
        [log, bulk]: [Connection<Line>; 2],
        now: Instant,
    ) -> io::Result<Self> {
        let lane = |lane, connection| LaneLink::new(context, peer, lane, session, connection);
        Ok(Self {
            lanes: [lane(Lane::Log, log)?, lane(Lane::Bulk, bulk)?],
            check_at: now + ASK_EVERY,
        })
    }
}

impl Transport for Tcp {
    fn write(
        &mut self,
        context: &mut Context,
        up: &mut Up,
        lane: Lane,
        record: &[u8],
    ) -> Result<bool, Loss> {
        up.lanes[lane.index()].write(context, record)
    }

    fn serve(
        &mut self,
        context: &mut Context,
        up: &mut Up,
        lane: Lane,
        _: Instant,
    ) -> Result<(), Loss> {
        up.lanes[lane.index()].serve(context, &mut self.scratch)
    }

    fn tick(&mut self, _: &mut Context, up: &mut Up, now: Instant) -> Result<(), Loss> {
        if now < up.check_at {
            return Ok(());
        }
        up.check_at = now + ASK_EVERY;
        let keys = self.keys.as_deref();
        let mut lanes = up.lanes.iter_mut();
        lanes.try_for_each(|lane| lane.check(keys, now))
    }

    fn challenge(&mut self, context: &mut Context, up: &mut Up) -> Result<(), Loss> {
        let mut lanes = up.lanes.iter_mut();
        lanes.try_for_each(|lane| lane.challenge(context))
    }

    fn lives(&self, up: &Up, challenged: Instant, now: Instant) -> Result<bool, Loss> {
        let [log, bulk] = &up.lanes;
        Ok(log.has_answered(challenged, now)? || bulk.has_answered(challenged, now)?)
    }

    fn due_at(up: &Up) -> Option<Instant> {
        Some(up.check_at)
    }

    fn flush(&mut self, context: &mut Context, peers: &mut [Peer<Self>], now: Instant) {
        for peer in peers {
            peer.with_up(context, now, |context, up| {
                up.lanes.iter_mut().try_for_each(|lane| lane.flush(context))
            });
        }
    }

    fn stays_awake(&self, context: &Context, peers: &[Peer<Self>]) -> bool {
        let mut lanes = peers.iter().filter_map(Peer::up).flat_map(|up| &up.lanes);
        !context.events.is_empty() || lanes.any(LaneLink::wants_progress)
    }
}
