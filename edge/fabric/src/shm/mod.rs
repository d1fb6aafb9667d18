//! One-sided writes between processes of one host: rings in memory that both have mapped.
//!
//! Here a write is a copy and nothing else: no system call, no kernel, no help of the target. The only
//! expensive step is waking a peer that sleeps. So this fabric shows what the protocol above it
//! costs by itself, and it is the nearest thing to RDMA that every machine has.
//!
//! ```text
//!      replica 0                                             replica 1
//!   ┌─────────────┐   record ────────────────────────►  ┌────────────────┐
//!   │ RingWriter  │   tail   ────────────────────────►  │ region of 1    │ ─► RingReader ─► Record
//!   │             │   doorbell, only if 1 sleeps ────►  │ (memfd)        │
//!   │ region of 0 │  ◄───────────────────────── head    │ status page    │
//!   └─────────────┘                                     └────────────────┘
//!          └────────────── unix socket: greeting, then its end ──────┘
//! ```
//!
//! * **Regions** (`memory.rs`): each replica owns one per peer, which only that peer writes. They
//!   are memory files without a name, passed through the socket: nothing is left behind in any
//!   file system when a process is killed.
//! * **Sleeping** (`page.rs`, `doorbell.rs`): a replica that is awake sees records by looking. A
//!   replica that is about to sleep says so on its status page, and the first peer that writes then
//!   rings its doorbell. A replica is about to sleep when its caller asks for
//!   [`Fabric::timeout`](crate::Fabric::timeout).
//! * **Spinning** before that is a choice ([`Spin`]).
//! * **Loss**: the kernel closes the socket of a process that ends, however it ends. A process
//!   that is merely stopped keeps its link; its ring fills up and refuses, as it should.
//! * **A faulty peer** can end the link by what it writes into the memory, and nothing more:
//!   everything read is checked, and a tail or credit that makes no sense is damage. Peers have to
//!   run as the same user, which the kernel vouches for.

mod channel;
mod doorbell;
mod handshake;
mod memory;
mod page;
mod socket;
#[cfg(test)]
mod tests;

use crate::context::{Context, Loss};
use crate::driver::{RingFabric, Transport};
use crate::peer::Peer;
use crate::processes::Process;
use crate::spin::Spinner;
use crate::{FabricError, Lane, Spin};
use channel::Channel;
use memory::Layout;
use page::{Sleep, StatusPage};
use plover_types::{Awaited, ReplicaId, ReplicaSet};
use socket::{Address, Listener};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// While records keep coming and nobody sleeps, the sockets are looked at only so often: each look is
/// a system call. The loss of a link is seen so much later at most.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// [`Fabric`](crate::Fabric) over shared memory.
pub type ShmFabric = RingFabric<Shm>;

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

/// The configuration of a [`ShmFabric`].
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
    /// Sizes of each log ring and of each bulk ring, the same on all replicas: multiples of 8. A
    /// record takes at most half.
    pub ring_bytes: [usize; 2],
    /// Whether to look for records for a while before the caller sleeps. It happens inside of
    /// [`Fabric::timeout`](crate::Fabric::timeout), for 30 µs at most.
    pub spin: Spin,
    /// Names this process, as [`TcpConfig::process`](crate::TcpConfig::process).
    pub process: u64,
}

impl ShmConfig {
    /// Rings of the usual sizes, names without files, no spinning.
    pub fn new(group: impl Into<String>, me: ReplicaId, peers: Vec<ReplicaId>) -> Self {
        Self {
            group: group.into(),
            me,
            peers,
            place: ShmPlace::default(),
            ring_bytes: [4 << 20, 16 << 20],
            spin: Spin::Never,
            process: 0,
        }
    }
}

impl ShmFabric {
    /// Listens, and starts to dial at the first `progress`.
    pub fn new(config: ShmConfig) -> Result<Self, FabricError> {
        let ids = config.peers.iter().copied();
        let mut context = Context::new(&config.group, config.me, ids, config.ring_bytes)?;
        context.process = Process(config.process);
        let address = |id| Address::new(&config.place, &config.group, id);
        let listener = Listener::open(address(config.me)?)?;
        let peers = config.peers.iter().map(|&id| Ok((id, address(id)?)));
        let peers = peers.collect::<Result<_, FabricError>>()?;
        let transport = Shm {
            layout: Layout::new(context.capacities),
            page: StatusPage::new().map_err(FabricError::system("make memory to share"))?,
            looked_at: Instant::now(),
            sleeps: Cell::new(0),
            sleeping: Cell::new(false),
            wake_for: None,
            spinner: RefCell::new(Spinner::new(config.spin)),
            group: config.group,
            place: config.place,
        };
        Self::assemble(context, transport, listener, peers)
    }
}

/// The state that only a shared-memory fabric has.
#[derive(Debug)]
pub struct Shm {
    layout: Layout,
    page: StatusPage,
    looked_at: Instant,
    /// How often this side has slept, and whether its page says that it does.
    sleeps: Cell<u64>,
    sleeping: Cell<bool>,
    /// Which peers are to end the next sleep; `None` for any.
    wake_for: Option<Awaited>,
    spinner: RefCell<Spinner>,
    /// From these two follows where a peer listens.
    group: String,
    place: ShmPlace,
}

impl Shm {
    /// Rings a peer's doorbell if something was stored for it, it sleeps, and nobody else is to write
    /// before it has enough (`page.rs`).
    fn ring(&self, context: &Context, peers: &mut [Peer<Self>], index: usize) {
        let sleeper = peers[index].id;
        let channel = peers[index].up_mut();
        let Some(sleep) = channel.and_then(Channel::sleep_to_end) else {
            return;
        };
        if sleep.awaited.count > 1 {
            self.page.answers(sleeper, sleep);
            fence(Ordering::SeqCst);
            if !is_complete(context, peers, sleeper, sleep) {
                return;
            }
        }
        if let Some(channel) = peers[index].up() {
            channel.wake();
        }
    }
}

/// Whether with this replica enough have answered the sleep of `sleeper`, or that cannot be seen.
fn is_complete(context: &Context, peers: &[Peer<Shm>], sleeper: ReplicaId, sleep: Sleep) -> bool {
    let mut unknown = sleep.awaited.from;
    unknown.remove(context.me);
    let mut answered = 1;
    for peer in peers
        .iter()
        .filter(|peer| sleep.awaited.from.contains(peer.id))
    {
        if let Some(channel) = peer.up() {
            unknown.remove(peer.id);
            answered += usize::from(channel.has_answered(sleeper, sleep));
        }
    }
    answered >= sleep.awaited.count || !unknown.is_empty()
}

/// Which of `asked` have stored anything.
fn news(peers: &[Peer<Shm>], asked: ReplicaSet) -> ReplicaSet {
    let asked = peers.iter().filter(|peer| asked.contains(peer.id));
    let has_news = |peer: &&Peer<Shm>| peer.up().is_some_and(Channel::has_news);
    ReplicaSet::of(asked.filter(has_news).map(|peer| peer.id))
}

impl Transport for Shm {
    fn write(
        &mut self,
        _: &mut Context,
        up: &mut Channel,
        lane: Lane,
        record: &[u8],
    ) -> Result<bool, Loss> {
        up.write(lane, record)
    }

    fn serve(
        &mut self,
        context: &mut Context,
        up: &mut Channel,
        lane: Lane,
        _: Instant,
    ) -> Result<(), Loss> {
        up.serve(context, lane)
    }

    fn tick(&mut self, context: &mut Context, up: &mut Channel, _: Instant) -> Result<(), Loss> {
        up.attend(context)
    }

    /// The kernel closes the socket of a process that ends.
    fn lives(&self, up: &Channel, _: Instant, _: Instant) -> Result<bool, Loss> {
        Ok(socket::receive(&up.socket)?.is_none())
    }

    /// Rings the doorbells of those that sleep on what was stored for them: first those on other
    /// cores (`page.rs`).
    fn flush(&mut self, context: &mut Context, peers: &mut [Peer<Self>], _: Instant) {
        let unrung = peers
            .iter()
            .filter_map(Peer::up)
            .filter(|it| it.is_unrung());
        if unrung.count() > 1 {
            let here = rustix::thread::sched_getcpu() as u64;
            for index in 0..peers.len() {
                if peers[index].up().is_some_and(|it| it.core() != here) {
                    self.ring(context, peers, index);
                }
            }
        }
        for index in 0..peers.len() {
            self.ring(context, peers, index);
        }
    }

    fn begin(&mut self, context: &mut Context, has_waited: bool, now: Instant) -> bool {
        // A doorbell keeps `wait_fd` readable until it is looked at, and it is only rung for a sleep.
        let looks = has_waited || self.sleeping.get() || now >= self.looked_at + LOOK_EVERY;
        if looks {
            self.looked_at = now;
        }
        if looks && !has_waited {
            context.poll.look();
        } else if !looks {
            context.poll.skip();
        }
        if self.sleeping.take() {
            self.page.awake();
        }
        self.wake_for = None;
        looks
    }

    /// A peer that a sleep does not name does not ring, nor does one that others still have to join;
    /// both see that in memory. So neither side makes a system call for it.
    fn wake_for(&mut self, awaited: Option<Awaited>) {
        self.wake_for = awaited;
    }

    fn stays_awake(&self, context: &Context, peers: &[Peer<Self>]) -> bool {
        // A caller that waits for certain peers is not kept awake by what others have written.
        let awaited = self.wake_for.unwrap_or(Awaited::ANY);
        let has_enough = || news(peers, awaited.from).len() >= awaited.count;
        let mut channels = peers.iter().filter_map(Peer::up);
        if !context.events.is_empty() || channels.any(Channel::wants_progress) || has_enough() {
            return true;
        }
        let mut spinner = self.spinner.borrow_mut();
        if spinner.spin(has_enough) || !spinner.may_sleep() {
            return true;
        }
        // Those that have written already do not see the sleep, and the others do not count them.
        let written = news(peers, awaited.from);
        let missing = Awaited {
            from: ReplicaSet(awaited.from.0 & !written.0),
            count: awaited.count.saturating_sub(written.len()),
        };
        if missing.count == 0 {
            return true;
        }
        self.sleeps.set(self.sleeps.get() + 1);
        self.sleeping.set(true);
        self.page.sleeps(Sleep {
            number: self.sleeps.get(),
            awaited: missing,
        });
        fence(Ordering::SeqCst);
        !news(peers, missing.from).is_empty()
    }
}
