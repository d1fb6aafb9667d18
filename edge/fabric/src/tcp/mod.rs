//! One-sided writes over TCP: a receiver that applies them.
//!
//! TCP has no remote writes, so the receiver's half of the fabric stands in for the network
//! card: it copies what arrives to the named place of the ring and looks for whole records
//! there. That needs the target's help (`progress`), as every software fabric does; what is
//! above the trait cannot tell the difference.
//!
//! ```text
//!   write ─► RingWriter ─► Outbox ═══ one connection a lane ═══► Inbox ─► ring ─► RingReader ─► Record
//!              ▲                                                                       │
//!              └────────── credit ◄═══════════ the same connection ◄═══════════════════┘
//! ```
//!
//! * **Lanes are connections**, so that a megabyte of pages never stands before a heartbeat;
//!   and in `progress` all log lanes come before all bulk lanes. A link is up when both its
//!   lanes are, and down when either is lost (`link.rs`).
//! * **Nothing blocks and nothing spins.** Sockets and listener sit in one level-triggered epoll
//!   (`poll.rs`), whose descriptor is `wait_fd`; the clock is served by `timeout`.
//! * **Memory is bounded** by the rings: a byte is queued only when the peer's ring has room
//!   for it, and the receiver always takes it off the wire into that room, so two peers that
//!   flood each other cannot lock each other up.
//! * **A cut link** is given up after half a second without an acknowledgement (`socket.rs`) and
//!   dialled every quarter of a second ([`TcpTimes`]).
//! * **Whoever connects** must say hello first (`hello.rs`); nothing else is believed. The peer
//!   is not authenticated yet: the replication network must be a trusted one.

mod config;
mod greeting;
pub(crate) mod lane;
mod link;
pub(crate) mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use config::{TcpConfig, TcpTimes};

use crate::hello::{GroupName, Hello, Refusal};
use crate::poll::{Interest, Poll, Token};
use crate::refused::Refused;
use crate::ring::{BufferPool, Capacity};
use crate::settings;
use crate::{Attached, Fabric, FabricError, FabricEvent, FabricStats, Lane, PeerError, WriteError};
use greeting::Stranger;
use link::Peer;
use plover_types::ReplicaId;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// Connections that may stand at the door without having said hello. Two lanes of each of 15
/// peers fit; whoever opens more is not a replica.
const STRANGERS_MAX: usize = 32;
/// One read takes in up to this much of small frames.
const SCRATCH_BYTES: usize = 256 << 10;

/// [`Fabric`] over TCP.
#[derive(Debug)]
pub struct TcpFabric {
    context: Context,
    listener: TcpListener,
    listener_token: Token,
    strangers: Vec<Stranger>,
    peers: Vec<Peer>,
    /// Which peer is served first, moved on by one each time.
    first: usize,
    /// The sockets have been looked at since the last `progress`, in a `wait`.
    has_looked: bool,
}

/// What all links share.
#[derive(Debug)]
struct Context {
    me: ReplicaId,
    group: GroupName,
    capacities: [Capacity; 2],
    send_buffer: Option<usize>,
    times: TcpTimes,
    poll: Poll,
    stats: FabricStats,
    refused: Refused,
    /// What happened since `progress` last returned.
    events: Vec<FabricEvent>,
    scratch: Vec<u8>,
    /// Buffers of records that the caller is done with.
    pool: BufferPool,
}

impl Context {
    fn capacity(&self, lane: Lane) -> Capacity {
        self.capacities[lane.index()]
    }

    fn deliver(&mut self, from: ReplicaId, lane: Lane, bytes: Vec<u8>) {
        let stats = self.stats.lane_mut(lane);
        stats.records_in += 1;
        stats.bytes_in += bytes.len() as u64;
        self.events.push(FabricEvent::Record { from, lane, bytes });
    }
}

impl TcpFabric {
    /// Listens, and starts to dial at the first `progress`.
    pub fn new(config: TcpConfig) -> Result<Self, FabricError> {
        settings::check_members(config.me, config.peers.iter().map(|(id, _)| *id))?;
        let group = GroupName::new(&config.group)?;
        let capacities = settings::capacities(config.log_ring_bytes, config.bulk_ring_bytes)?;
        let system = |what| move |source| FabricError::System { what, source };
        let mut poll = Poll::new().map_err(system("make an epoll descriptor"))?;
        // On Unix the standard library sets SO_REUSEADDR: a restarted replica need not wait for
        // the connections of its last life to be forgotten.
        let listener = TcpListener::bind(config.listen)
            .map_err(|source| FabricError::bind(config.listen, source))?;
        listener
            .set_nonblocking(true)
            .map_err(system("make the listener non-blocking"))?;
        let listener_token = poll
            .watch(&listener, Interest::Read)
            .map_err(system("watch the listener"))?;
        let context = Context {
            me: config.me,
            group,
            capacities,
            send_buffer: config.send_buffer_bytes,
            times: config.times,
            poll,
            stats: FabricStats::default(),
            refused: Refused::default(),
            events: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES],
            pool: BufferPool::default(),
        };
        let now = Instant::now();
        let peers = config
            .peers
            .iter()
            .map(|&(id, address)| Peer::new(&context, id, address, now))
            .collect();
        Ok(Self {
            context,
            listener,
            listener_token,
            strangers: Vec::new(),
            peers,
            first: 0,
            has_looked: false,
        })
    }

    /// Where it listens (the port, if the configuration left it to the kernel).
    pub fn listen_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Whether the link to `peer` is up.
    pub fn is_up(&self, peer: ReplicaId) -> bool {
        self.peers.iter().any(|p| p.id == peer && p.is_up())
    }

    /// Lets in whoever knocks.
    fn accept(&mut self, now: Instant) {
        if !self.context.poll.is_ready(self.listener_token) {
            return;
        }
        for _ in 0..STRANGERS_MAX {
            match self.listener.accept() {
                Ok((socket, address)) => {
                    if self.strangers.len() == STRANGERS_MAX {
                        // The oldest has had its chance; a peer dials again.
                        let oldest = self.strangers.remove(0);
                        self.context.stats.rejected += 1;
                        debug!(address = %oldest.address, "turned away: too many at the door");
                    }
                    match Stranger::welcome(&mut self.context, socket, address, now) {
                        Ok(stranger) => self.strangers.push(stranger),
                        Err(error) => debug!(%address, %error, "a connection failed at once"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The connection was gone before we took it, or we are short of descriptors;
                // epoll asks again.
                Err(error) => return debug!(%error, "accept failed"),
            }
        }
    }

    /// Hears who the strangers are.
    fn greet(&mut self, now: Instant) {
        let mut waiting = Vec::with_capacity(self.strangers.len());
        for mut stranger in std::mem::take(&mut self.strangers) {
            let address = stranger.address;
            match stranger.buffer.read(&stranger.connection.socket) {
                Ok(Some(bytes)) => match Hello::decode(bytes) {
                    Ok(theirs) => self.introduce(stranger, &theirs, now),
                    Err(error) => {
                        self.context.stats.rejected += 1;
                        debug!(%address, %error, "turned away");
                    }
                },
                Ok(None) if now < stranger.since + self.context.times.hello_within => {
                    waiting.push(stranger);
                }
                Ok(None) => {
                    self.context.stats.rejected += 1;
                    debug!(%address, "turned away: said nothing");
                }
                // It left by itself, as peers do that give up dialling.
                Err(error) => debug!(%address, %error, "a connection ended early"),
            }
        }
        self.strangers = waiting;
    }

    /// A stranger has said who it is: answers, and hands it to its peer.
    fn introduce(&mut self, stranger: Stranger, theirs: &Hello, now: Instant) {
        let context = &mut self.context;
        let lane = Lane::ALL
            .into_iter()
            .find(|lane| lane.index() == usize::from(theirs.lane));
        let peer = self
            .peers
            .iter_mut()
            .find(|p| p.id == theirs.from && p.id < context.me);
        let mut mine = context.hello(theirs.from, lane.unwrap_or(Lane::Log), theirs.session);
        let refusal = theirs
            .refusal(&mine)
            .or(peer.is_none().then_some(Refusal::Identity));
        mine.verdict = refusal.map_or(0, |refusal| refusal as u8);
        let Stranger {
            connection,
            address,
            ..
        } = stranger;
        let answered = greeting::send(&connection.socket, &mine);
        match (refusal, lane, peer, answered) {
            (Some(refusal), ..) => {
                context.stats.rejected += 1;
                if context.refused.note(theirs.from, &refusal, now) {
                    warn!("refused {} from {address}: {refusal}", theirs.from);
                }
            }
            (None, Some(lane), Some(peer), Ok(())) => {
                match context
                    .poll
                    .change(&connection.socket, connection.token, Interest::Nothing)
                {
                    Ok(()) => peer.offer(context, now, lane, theirs.session, connection),
                    Err(error) => debug!(%address, %error, "a connection failed"),
                }
            }
            (None, _, _, answered) => debug!(%address, ?answered, "a connection ended early"),
        }
    }
}

impl Fabric for TcpFabric {
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError> {
        let max = self.record_bytes_max(lane);
        if record.len() > max {
            return Err(WriteError::TooLarge {
                bytes: record.len(),
                max,
            });
        }
        match self.peers.iter_mut().find(|peer| peer.id == to) {
            Some(peer) => peer.write(&mut self.context, lane, record),
            None => Err(WriteError::Down(to)),
        }
    }

    fn flush(&mut self) {
        let now = Instant::now();
        for peer in &mut self.peers {
            peer.flush(&mut self.context, now);
        }
    }

    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        let now = Instant::now();
        if !std::mem::take(&mut self.has_looked) {
            self.context.poll.look();
        }
        self.accept(now);
        self.greet(now);
        for peer in &mut self.peers {
            peer.advance(&mut self.context, now);
        }
        let count = self.peers.len();
        for lane in Lane::ALL {
            for turn in 0..count {
                self.peers[(self.first + turn) % count].serve(&mut self.context, now, lane);
            }
        }
        self.first = (self.first + 1) % count.max(1);
        for peer in &mut self.peers {
            peer.tick(&mut self.context, now);
            peer.flush(&mut self.context, now);
        }
        events.append(&mut self.context.events);
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.context.pool.give(bytes);
    }

    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        let address = address
            .map(|text| text.parse().map_err(|_| PeerError::Address(text.into())))
            .transpose()?;
        // Its sockets leave the epoll set when they are closed.
        self.peers.retain(|known| known.id != peer);
        if let Some(address) = address {
            let now = Instant::now();
            self.peers
                .push(Peer::new(&self.context, peer, address, now));
        }
        Ok(())
    }

    fn wait_fd(&self) -> RawFd {
        self.context.poll.fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.context.poll.wait(timeout);
        self.has_looked = true;
    }

    fn attach(&mut self, fd: BorrowedFd<'_>) -> io::Result<Attached> {
        self.context.poll.watch(fd, Interest::Read).map(Attached)
    }

    fn is_readable(&self, attached: Attached) -> bool {
        self.context.poll.is_readable(attached.0)
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.context.events.is_empty() || self.peers.iter().any(Peer::wants_progress) {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let hello_within = self.context.times.hello_within;
        let strangers = self
            .strangers
            .iter()
            .map(|stranger| stranger.since + hello_within);
        let links = self
            .peers
            .iter()
            .filter_map(|peer| peer.due_at(&self.context));
        strangers
            .chain(links)
            .min()
            .map(|due| link::until(due, now))
    }

    fn record_bytes_max(&self, lane: Lane) -> usize {
        self.context.capacity(lane).record_bytes_max()
    }

    fn stats(&self) -> FabricStats {
        self.context.stats
    }

    fn refusal(&self, peer: ReplicaId) -> Option<String> {
        // A link that is up is not refused: then it was a stranger who claimed to be `peer`.
        let refused = &self.context.refused;
        let why = refused.lately(peer, Instant::now());
        why.filter(|_| !self.is_up(peer)).map(str::to_owned)
    }
}
