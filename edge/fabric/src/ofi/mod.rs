//! One-sided writes by libfabric: RDMA hardware in production, software providers without it.
//!
//! ```text
//!   write ─► copy of the ring ══ one write with immediate data a turn ══► ring ─► RingReader ─► Record
//!                    ▲               (the network card does this)          │
//!                    └──── credit ◄══ a write of 8 bytes with immediate data ◄──┘
//! ```
//!
//! The peer's processor has no part in a write; what it needs to know is in the write's 32 bits
//! of immediate data, its *doorbell* (`doorbell.rs`). Much of what one would like to rely on does
//! not hold everywhere, and nothing here relies on it:
//!
//! * **A completed write proves nothing.** A write into memory that the target had closed was
//!   seen to complete with success. Completions only tell when bytes may be reused
//!   (`outbound.rs`); they are never waited for (APUS §2), and their queue wakes nobody. Only
//!   the peer's answer proves that it has a record.
//! * **No order** inside a write, nor among writes (EFA): the checksum decides when a record is
//!   there (`inbound.rs`).
//! * **A plain write wakes nobody** reliably on software providers: hence a doorbell with each.
//! * **Software providers move bytes only while somebody calls them.** `progress` does; and no
//!   descriptor is slept on before `fi_trywait` has agreed ([`native::Port::may_sleep`]).
//! * **Some cannot wake a sleeper at all** (`shm`). They are refused with
//!   [`Spin::Never`](crate::Spin::Never); otherwise the fabric looks for a bounded time and then
//!   naps: a timer makes `wait_fd` readable after 50 µs to 1 ms. (That provider also keeps its
//!   locks in the shared memory, so that a peer which is stopped at the wrong moment stops who
//!   writes to it. It is here for tests; between replicas of one host use [`crate::shm`].)
//! * **An endpoint does not notice its peer's death.** A TCP connection beside it does; it
//!   carries the handshake (`greeting.rs`), then says that the peer lives (`link.rs`).
//!
//! Each lane of each link has a domain, an endpoint and queues of its own, so that bulk data never
//! stands before a heartbeat, and so that ending a session ends all it had under way and no more.
//!
//! RDMA cannot encrypt and this fabric does not authenticate: the network must be a trusted one.

mod config;
mod context;
mod doorbell;
mod end;
pub mod floor;
mod greeting;
mod inbound;
mod leftovers;
mod link;
mod memory;
mod native;
mod outbound;
mod signals;
mod sleep;
mod stage;
mod strangers;

pub use config::{OfiConfig, OfiError, Version};
pub use native::NativeError;
pub use signals::forget_signal_handlers;

use crate::hello::{GroupName, Session};
use crate::poll::Poll;
use crate::refused::Refused;
use crate::ring::BufferPool;
use crate::settings;
use crate::spin::Spinner;
use crate::{Fabric, FabricError, FabricEvent, FabricStats, Lane, PeerError, Spin, WriteError};
use context::{Context, Loss};
use leftovers::Leftovers;
use link::Peer;
use native::{Port, Provider};
use plover_types::ReplicaId;
use sleep::{Naps, Nudge};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use strangers::Door;

/// [`Fabric`] over libfabric.
#[derive(Debug)]
pub struct OfiFabric {
    door: Door,
    peers: Vec<Peer>,
    /// Which peer is served first, moved on by one each time.
    first: usize,
    spin: Spin,
    spinner: Spinner,
    /// Something went in or out since the last call that found nothing: spinning may pay.
    active: bool,
    nudge: Nudge,
    naps: Naps,
    // Last: what the ports of the links were opened on.
    context: Context,
}

impl OfiFabric {
    /// Opens the provider and listens; starts to dial at the first `progress`.
    pub fn new(config: OfiConfig) -> Result<Self, OfiError> {
        settings::check_members(config.me, config.peers.iter().map(|(id, _)| *id))?;
        let group = GroupName::new(&config.group)?;
        let capacities = settings::capacities(config.log_ring_bytes, config.bulk_ring_bytes)?;
        let node = config.listen.ip().to_string();
        let domain = config.domain.as_deref();
        let (provider, waits) = open_provider(&config.provider, domain, &node, config.spin)?;
        let system = |what| move |source| OfiError::from(FabricError::System { what, source });
        let mut poll = Poll::new().map_err(system("make an epoll descriptor"))?;
        let nudge = Nudge::new(&mut poll).map_err(system("make an eventfd"))?;
        let naps = Naps::new(&mut poll).map_err(system("make a timer"))?;
        let door = Door::open(&mut poll, config.listen)?;
        let now = Instant::now();
        let peers = config.peers.iter();
        let peers = peers.map(|&(id, address)| Peer::new(id, address, now));
        Ok(Self {
            peers: peers.collect(),
            door,
            first: 0,
            spin: config.spin,
            spinner: Spinner::new(config.spin),
            active: false,
            nudge,
            naps,
            context: Context {
                me: config.me,
                group,
                capacities,
                times: config.times,
                poll,
                stats: FabricStats::default(),
                refused: Refused::default(),
                events: Vec::new(),
                pool: BufferPool::default(),
                // After the door is open: there is no other living replica of this id here.
                leftovers: (provider.traits.name == "shm")
                    .then(|| Leftovers::clear(&config.group, config.me)),
                provider: Arc::new(provider),
                waits,
            },
        })
    }

    /// Where it listens for handshakes (the port, if the configuration left it to the kernel).
    pub fn listen_address(&self) -> io::Result<SocketAddr> {
        self.door.address()
    }

    /// The provider, as it names itself.
    pub fn provider(&self) -> &str {
        &self.context.provider.traits.name
    }

    /// Whether the link to `peer` is up.
    pub fn is_up(&self, peer: ReplicaId) -> bool {
        self.peers.iter().any(|p| p.id == peer && p.is_up())
    }

    fn serve(&mut self, now: Instant, spinning: bool) {
        let count = self.peers.len();
        for lane in Lane::ALL {
            for turn in 0..count {
                let peer = &mut self.peers[(self.first + turn) % count];
                peer.serve(&mut self.context, now, lane, spinning);
            }
        }
        self.first = (self.first + 1) % count.max(1);
    }

    /// Looks for a while if that is wanted and promising; `true` if something came.
    fn look(&mut self) -> bool {
        let Self { spinner, peers, .. } = self;
        let joined = peers.iter().any(Peer::is_joined);
        joined && sleep::look(spinner, || peers.iter_mut().any(Peer::look))
    }

    /// Leaves things so that `wait_fd` shows whatever there is to do from now on.
    fn settle(&mut self, now: Instant) {
        let mut armed = true;
        for peer in &mut self.peers {
            armed &= peer.arm(&mut self.context, now);
        }
        // What losing a link reports is something to do, too.
        let more = !armed
            || !self.context.events.is_empty()
            || self.peers.iter().any(Peer::wants_progress);
        self.nudge.set(more);
        let blind = !self.context.waits && self.peers.iter().any(Peer::is_joined);
        if blind || self.peers.iter().any(Peer::wants_nap) {
            self.naps.nap(now);
        } else {
            self.naps.cancel();
        }
    }
}

/// Opens a provider and finds out whether it can wake a sleeper.
fn open_provider(
    configured: &str,
    domain: Option<&str>,
    node: &str,
    spin: Spin,
) -> Result<(Provider, bool), OfiError> {
    let (built, running) = native::versions();
    Version::unpack(built).check(Version::unpack(running))?;
    let refused = |source| OfiError::Provider {
        provider: configured.to_owned(),
        source,
    };
    let provider = Provider::open(configured, domain, node).map_err(refused)?;
    let name = provider.traits.name.clone();
    if provider.traits.immediate_bytes < 4 {
        return Err(OfiError::Unfit {
            provider: name,
            lack: "cannot carry 4 bytes of immediate data with a write",
        });
    }
    let provider = Arc::new(provider);
    // A port that is thrown away: only this tells, and it tells now what would otherwise keep
    // every link down.
    let trial = |waits| Port::open(&provider, waits, 4096, Session::fresh().0 >> 32).map(drop);
    let waits = match trial(true) {
        Ok(()) => true,
        Err(source) => {
            trial(false).map_err(refused)?;
            if spin == Spin::Never {
                return Err(OfiError::CannotSleep {
                    provider: name,
                    source,
                });
            }
            false
        }
    };
    let provider = Arc::into_inner(provider).expect("the trial ports are closed");
    Ok((provider, waits))
}

impl Fabric for OfiFabric {
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
        if self.peers.iter().any(Peer::wants_progress) {
            self.active = true;
            self.naps.freshen(now);
        }
        for peer in &mut self.peers {
            peer.flush(&mut self.context, now);
        }
        self.settle(now);
    }

    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        let mut now = Instant::now();
        self.naps.wake();
        self.context.poll.look();
        self.door.serve(&mut self.context, &mut self.peers, now);
        for peer in &mut self.peers {
            peer.advance(&mut self.context, now);
        }
        let blind = !self.context.waits || !self.spinner.may_sleep();
        self.serve(now, blind);
        // Whom nothing wakes looks at each nap's end as well.
        let hopeful = self.active || !self.context.waits && self.naps.is_fresh(now);
        if self.context.events.is_empty() && hopeful && self.look() {
            now = Instant::now();
            self.serve(now, true);
        }
        for peer in &mut self.peers {
            peer.tick(&mut self.context, now);
            peer.flush(&mut self.context, now);
        }
        self.active = !self.context.events.is_empty();
        if self.active {
            self.naps.freshen(now);
        }
        events.append(&mut self.context.events);
        self.settle(now);
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.context.pool.give(bytes);
    }

    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        let address = address
            .map(|text| text.parse().map_err(|_| PeerError::Address(text.into())))
            .transpose()?;
        // Its ports close with it, and with them all that it had under way.
        self.peers.retain(|known| known.id != peer);
        if let Some(address) = address {
            self.peers.push(Peer::new(peer, address, Instant::now()));
        }
        Ok(())
    }

    fn wait_fd(&self) -> RawFd {
        self.context.poll.fd()
    }

    fn timeout(&self) -> Option<Duration> {
        let spinning = match self.spin {
            Spin::Never => false,
            Spin::Adaptive => self.active,
            Spin::Always => self.peers.iter().any(Peer::is_up),
        };
        let due = || self.peers.iter().any(Peer::wants_progress);
        if spinning || !self.context.events.is_empty() || due() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let links = self
            .peers
            .iter()
            .filter_map(|peer| peer.due_at(&self.context));
        let strangers = self.door.due_at(&self.context);
        links
            .chain(strangers)
            .min()
            .map(|due| due.saturating_duration_since(now))
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
