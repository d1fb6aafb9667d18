//! One-sided writes by libfabric: RDMA hardware in production, software providers without it.
//!
//! ```text
//!   write ─► copy of the ring ══ one write with immediate data a turn ══► ring ─► RingReader ─► Record
//!                    ▲               (the network card does this)          │
//!                    └──── credit ◄══ a write of 8 bytes with immediate data ◄──┘
//! ```
//!
//! The peer's processor has no part in a write. It learns of the write by 32 bits of immediate data,
//! the *doorbell* (`doorbell.rs`). Providers promise less than one would like, and
//! nothing here relies on more:
//!
//! * **A completed write proves nothing.** A write into memory that the target had closed was
//!   seen to complete with success. Completions only tell when bytes may be reused
//!   (`outbound.rs`); they are never waited for (APUS §2), and their queue wakes nobody. Only
//!   the peer's answer proves that it has a record.
//! * **No order** inside a write, nor among writes (EFA): the checksum decides when a record is
//!   there (`inbound.rs`).
//! * **A plain write wakes nobody** reliably on software providers: hence a doorbell with each.
//! * **Software providers move bytes only while somebody calls them.** `progress` does; and no
//!   descriptor is slept on before `fi_trywait` has agreed.
//! * **Some cannot wake a sleeper at all** (`efa`, libfabric's `shm`). They are refused with
//!   [`Spin::Never`]; otherwise the fabric looks for a bounded time and then asks to be called every
//!   50 µs to 1 ms (`wakeup.rs`). libfabric's `shm` is here for tests: it keeps its locks in the shared
//!   memory, so that a peer which is stopped at the wrong moment stops its writers, and leaves files in
//!   `/dev/shm` when it is killed. Between replicas of one host use [`ShmFabric`](crate::ShmFabric).
//! * **An endpoint does not notice its peer's death.** A TCP connection beside it does; it
//!   carries the handshake (`greeting.rs`), then shows that the peer lives (`link.rs`).
//!
//! Each lane of each link has a domain, an endpoint and queues of its own, so that bulk data never
//! stands before a heartbeat, and so that ending a session ends all it had under way and no more.
//!
//! **Fencing.** A session ends with its ports, and with them goes the registration of the memory that
//! the peer wrote to. The next session has new memory under a new key, rings that start empty and
//! another salt in its checksums. A write of an old session fails, or lands in memory that nobody
//! reads, or fails its checksum.
//!
//! **RDMA does not encrypt.** With keys the handshake is under TLS, so that only a peer learns where to write and
//! only a peer makes a link, and each record is sealed before it is written and opened after it was read (`seal.rs`). Doorbells are
//! not sealed: they are hints, and a false one costs the link at most. Without keys nothing is sealed, and the network
//! must be a trusted one.

mod config;
mod doorbell;
mod end;
mod greeting;
mod inbound;
mod link;
#[doc(hidden)]
pub mod native;
mod outbound;
mod seal;
mod signals;
#[cfg(test)]
mod tests;
mod wakeup;

pub use config::{OfiConfig, OfiError, Version};
pub use native::NativeError;
pub use signals::forget_signal_handlers;

use crate::context::{Context, Loss};
use crate::driver::{RingFabric, Transport};
use crate::hello::Session;
use crate::peer::{Link, Peer};
use crate::processes::Process;
use crate::socket::TcpDoor;
use crate::spin::Spinner;
use crate::{Keys, Lane, Spin};
use end::End;
use link::{Joined, Trying};
use native::{Port, Provider};
use std::sync::Arc;
use std::time::Instant;
use wakeup::Pace;

/// [`Fabric`](crate::Fabric) over libfabric.
pub type OfiFabric = RingFabric<Ofi>;

impl OfiFabric {
    /// Opens the provider and listens; starts to dial at the first `progress`.
    pub fn new(config: OfiConfig) -> Result<Self, OfiError> {
        let ids = config.peers.iter().map(|(id, _)| *id);
        let mut context = Context::new(&config.group, config.me, ids, config.ring_bytes)?;
        context.process = Process(config.process);
        let node = config.listen.ip().to_string();
        let (provider, waits) = open_provider(&config.provider, &node, config.spin)?;
        let listener = TcpDoor::open(config.listen, config.keys.as_ref())?;
        let transport = Ofi {
            provider: Arc::new(provider),
            waits,
            spin: config.spin,
            spinner: Spinner::new(config.spin),
            looks: false,
            active: false,
            unarmed: false,
            pace: Pace::new(Instant::now()),
            keys: config.keys,
        };
        Ok(Self::assemble(context, transport, listener, config.peers)?)
    }
}

/// Opens a provider and finds out whether it can wake a sleeper.
fn open_provider(configured: &str, node: &str, spin: Spin) -> Result<(Provider, bool), OfiError> {
    let (built, running) = native::versions();
    Version::unpack(built).check(Version::unpack(running))?;
    let refused = |source| OfiError::Provider {
        provider: configured.to_owned(),
        source,
    };
    let provider = Provider::open(configured, node).map_err(refused)?;
    let name = native::provider_name(&provider.traits.name);
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

/// The state that only an ofi fabric has.
#[derive(Debug)]
pub struct Ofi {
    provider: Arc<Provider>,
    /// Whether ports have a wait object.
    waits: bool,
    spin: Spin,
    spinner: Spinner,
    /// This turn looks at all queues, though no descriptor says so.
    looks: bool,
    /// Something went in or out since the last turn that found nothing: spinning may pay.
    active: bool,
    /// An arrival might not show on the descriptors: the caller has to come again first.
    unarmed: bool,
    pace: Pace,
    keys: Option<Arc<Keys>>,
}

/// The ports of a peer that something may come to, whether its link is up yet or not.
fn joined(peer: &Peer<Ofi>) -> Option<&Joined> {
    match &peer.link {
        Link::Up(joined) => Some(joined),
        Link::Trying(trying) => match &**trying {
            Trying::Joining(joined) => Some(joined),
            Trying::Dialing(..) => None,
        },
        Link::Down => None,
    }
}

fn joined_mut(peer: &mut Peer<Ofi>) -> Option<&mut Joined> {
    match &mut peer.link {
        Link::Up(joined) => Some(joined),
        Link::Trying(trying) => match &mut **trying {
            Trying::Joining(joined) => Some(joined),
            Trying::Dialing(..) => None,
        },
        Link::Down => None,
    }
}

fn ends(peers: &[Peer<Ofi>]) -> impl Iterator<Item = &End> {
    peers.iter().filter_map(joined).flat_map(|it| &it.ends)
}

impl Transport for Ofi {
    fn write(
        &mut self,
        _: &mut Context,
        up: &mut Joined,
        lane: Lane,
        record: &[u8],
    ) -> Result<bool, Loss> {
        Ok(up.ends[lane.index()].write(record)?)
    }

    fn extra_bytes(&self) -> usize {
        self.keys.as_ref().map_or(0, |_| seal::TAG_BYTES)
    }

    fn serve(
        &mut self,
        context: &mut Context,
        up: &mut Joined,
        lane: Lane,
        now: Instant,
    ) -> Result<(), Loss> {
        let end = &mut up.ends[lane.index()];
        if self.looks || end.is_due(context) {
            end.serve(context, now)?;
        }
        Ok(())
    }

    fn tick(&mut self, context: &mut Context, up: &mut Joined, now: Instant) -> Result<(), Loss> {
        up.listen(context)?;
        up.beat(now)
    }

    fn challenge(&mut self, _: &mut Context, up: &mut Joined) -> Result<(), Loss> {
        up.challenge()
    }

    fn lives(&self, up: &Joined, challenged: Instant, now: Instant) -> Result<bool, Loss> {
        Ok(up.has_answered(challenged, now)?)
    }

    fn due_at(up: &Joined) -> Option<Instant> {
        Some(up.beat_at)
    }

    fn flush(&mut self, context: &mut Context, peers: &mut [Peer<Self>], now: Instant) {
        if ends(peers).any(End::wants_progress) {
            self.active = true;
            self.pace.freshen(now);
        }
        for peer in peers {
            peer.with_up(context, now, |_, up| {
                Ok(up.ends.iter_mut().try_for_each(End::flush)?)
            });
        }
    }

    fn begin(&mut self, context: &mut Context, has_waited: bool, _: Instant) -> bool {
        self.pace.clear();
        if !has_waited {
            context.poll.look();
        }
        self.looks = !self.waits || !self.spinner.may_sleep();
        true
    }

    fn spin(&mut self, _: &Context, peers: &mut [Peer<Self>], now: Instant) -> bool {
        // Where nothing wakes a sleeper, it also looks at each turn.
        let hopeful = self.active || !self.waits && self.pace.is_fresh(now);
        if !hopeful || ends(peers).next().is_none() {
            return false;
        }
        let mut look = || {
            let mut joined = peers.iter_mut().filter_map(joined_mut);
            joined.any(|it| it.ends.iter_mut().any(End::look))
        };
        self.looks |= wakeup::look(&mut self.spinner, &mut look);
        self.looks
    }

    fn settle(
        &mut self,
        context: &mut Context,
        peers: &mut [Peer<Self>],
        is_active: Option<bool>,
        now: Instant,
    ) {
        if let Some(is_active) = is_active {
            self.active = is_active;
            if is_active {
                self.pace.freshen(now);
            }
        }
        self.unarmed = false;
        for peer in &mut *peers {
            match joined_mut(peer).map_or(Ok(true), Joined::arm) {
                Ok(is_armed) => self.unarmed |= !is_armed,
                Err(error) => peer.lose(context, now, &error.into()),
            }
        }
        let is_joining = |peer: &Peer<Self>| peer.up().is_none() && joined(peer).is_some();
        let blind = !self.waits && ends(peers).next().is_some();
        if blind || peers.iter().any(is_joining) || ends(peers).any(End::wants_another_look) {
            self.pace.ask(now);
        } else {
            self.pace.clear();
        }
    }

    fn stays_awake(&self, context: &Context, peers: &[Peer<Self>]) -> bool {
        let spinning = match self.spin {
            Spin::Never => false,
            Spin::Adaptive => self.active,
            Spin::Always => peers.iter().any(|peer| peer.up().is_some()),
        };
        let has_events = !context.events.is_empty();
        spinning || self.unarmed || has_events || ends(peers).any(End::wants_progress)
    }

    fn look_at(&self) -> Option<Instant> {
        self.pace.look_at()
    }
}
