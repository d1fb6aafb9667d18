//! One-sided writes between processes of one host: rings in memory that both have mapped.
//!
//! Here a write is a copy and nothing else: no system call, no kernel, no help of the target. What
//! costs anything is waking a peer that sleeps. So this fabric shows what the protocol above it
//! costs by itself, and it is the nearest thing to RDMA that every machine has.
//!
//! ```text
//!      replica 0                                             replica 1
//!   ┌─────────────┐   record ────────────────────────►  ┌────────────────┐
//!   │ RingWriter  │   tail   ────────────────────────►  │ region of 1    │ ─► RingReader ─► Record
//!   │             │   bell   ── only if 1 naps ──────►  │ (memfd)        │
//!   │ region of 0 │  ◄───────────────────────── head    │ board: nap     │
//!   └─────────────┘                                     └────────────────┘
//!          └────────────── unix socket: greeting, then its end ──────┘
//! ```
//!
//! * **Regions** (`memory.rs`): each replica owns one per peer, which only that peer writes. They
//!   are memory files without a name, passed through the socket: nothing is left behind in any
//!   file system when a process is killed.
//! * **Sleeping** (`bell.rs`, `board.rs`): a replica that is awake sees records by looking; one that
//!   is about to sleep says so where its peers can see it, and the first to write then rings. When is a replica
//!   about to sleep? When its caller asks for [`Fabric::timeout`].
//! * **Spinning** before that is a choice ([`Spin`](crate::Spin)).
//! * **Loss**: the kernel closes the socket of a process that ends, however it ends. A process
//!   that is merely stopped keeps its link; its ring fills up and refuses, as it should.
//! * **What a peer does to its memory** can end the link and do no more: everything read is
//!   checked, and a tail or credit that makes no sense is damage. Peers have to run as the same
//!   user, which the kernel vouches for.

mod bell;
mod board;
mod channel;
mod config;
mod link;
mod memory;
mod socket;
mod strangers;
#[cfg(test)]
mod tests;

/// Memory and waking alone, for the floor.
pub(crate) mod bare {
    pub(crate) use super::bell::{Bell, eventfd_of_sleeper};
    pub(crate) use super::board::Nap;
    pub(crate) use super::memory::{Cell, Inbound, Layout, Outbound};
}

pub use config::{ShmConfig, ShmPlace, ShmTimes};

use crate::hello::{GroupName, Hello, Session};
use crate::poll::{Interest, Poll, Token};
use crate::refused::Refused;
use crate::ring::BufferPool;
use crate::settings;
use crate::spin::Spinner;
use crate::{Attached, Fabric, FabricError, FabricEvent, FabricStats, Lane, PeerError, WriteError};
use board::{Board, Nap};
use link::Peer;
use memory::Layout;
use plover_types::wire::WIRE_VERSION;
use plover_types::{Awaited, ReplicaId, ReplicaSet};
use socket::{Door, Listener, Offer};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use strangers::Stranger;

/// The greeting's lane: one connection stands for both.
const BOTH_LANES: u8 = 255;
/// How seldom the sockets are looked at while records keep coming and nobody sleeps. A link's
/// loss is seen so much later at most; each look is a system call.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// [`Fabric`] over shared memory.
#[derive(Debug)]
pub struct ShmFabric {
    context: Context,
    listener: Listener,
    listener_token: Token,
    strangers: Vec<Stranger>,
    peers: Vec<Peer>,
    /// What doors are named by.
    group: String,
    place: ShmPlace,
    /// Which peer is served first, moved on by one each time.
    first: usize,
    looked_at: Instant,
    /// The sockets have been looked at since the last `progress`, in a `wait`.
    has_looked: bool,
    /// The number of the last nap, and whether the board says that it is taken.
    nap: Cell<u64>,
    napping: Cell<bool>,
    /// What is to end the next nap; `None` for anyone's word.
    wake_for: Option<Awaited>,
    spinner: RefCell<Spinner>,
}

/// What all links share.
#[derive(Debug)]
struct Context {
    me: ReplicaId,
    group: GroupName,
    layout: Layout,
    times: ShmTimes,
    board: Board,
    poll: Poll,
    stats: FabricStats,
    refused: Refused,
    /// What happened since `progress` last returned.
    events: Vec<FabricEvent>,
    /// Buffers of records that the caller is done with.
    pool: BufferPool,
}

impl Context {
    fn deliver(&mut self, from: ReplicaId, lane: Lane, bytes: Vec<u8>) {
        let stats = self.stats.lane_mut(lane);
        stats.records_in += 1;
        stats.bytes_in += bytes.len() as u64;
        self.events.push(FabricEvent::Record { from, lane, bytes });
    }

    /// What one side gives the other in the greeting.
    fn offer(&self, memory: OwnedFd, bell: &OwnedFd) -> io::Result<Offer> {
        Ok(Offer {
            memory,
            bell: bell.try_clone()?,
            board: self.board.offer()?,
        })
    }

    /// What we say to `peer` when all is well.
    fn hello(&self, peer: ReplicaId, session: Session) -> Hello {
        Hello {
            version: WIRE_VERSION,
            lane: BOTH_LANES,
            from: self.me,
            to: peer,
            verdict: 0,
            session,
            ring_bytes: self.layout.ring_bytes(),
            group: self.group,
        }
    }
}

impl ShmFabric {
    /// Opens the own door, and starts to dial at the first `progress`.
    pub fn new(config: ShmConfig) -> Result<Self, FabricError> {
        settings::check_members(config.me, config.peers.iter().copied())?;
        let group = GroupName::new(&config.group)?;
        let layout = Layout::new(settings::capacities(
            config.log_ring_bytes,
            config.bulk_ring_bytes,
        )?);
        let system = |what| move |source| FabricError::System { what, source };
        let mut poll = Poll::new().map_err(system("make an epoll descriptor"))?;
        let door = |id| Door::new(&config.place, &config.group, id);
        let listener = Listener::open(&door(config.me)?)?;
        let listener_token = poll
            .watch(&listener.socket, Interest::Read)
            .map_err(system("watch the listener"))?;
        let now = Instant::now();
        let peers: Result<_, FabricError> = config
            .peers
            .iter()
            .map(|&id| Ok(Peer::new(id, door(id)?, now)))
            .collect();
        Ok(Self {
            context: Context {
                me: config.me,
                group,
                layout,
                times: config.times,
                board: Board::new().map_err(system("make memory to share"))?,
                poll,
                stats: FabricStats::default(),
                refused: Refused::default(),
                events: Vec::new(),
                pool: BufferPool::default(),
            },
            listener,
            listener_token,
            strangers: Vec::new(),
            peers: peers?,
            group: config.group,
            place: config.place,
            first: 0,
            looked_at: now,
            has_looked: false,
            nap: Cell::new(0),
            napping: Cell::new(false),
            wake_for: None,
            spinner: RefCell::new(Spinner::new(config.spin)),
        })
    }

    /// Whether the link to `peer` is up.
    pub fn is_up(&self, peer: ReplicaId) -> bool {
        self.peers
            .iter()
            .any(|p| p.id == peer && p.channel().is_some())
    }

    /// Wakes those who sleep on what was stored for them: first those on other cores (`board.rs`).
    fn ring(&mut self) {
        let unrung = self.channels().filter(|channel| channel.is_unrung());
        if unrung.count() > 1 {
            let here = rustix::thread::sched_getcpu() as u64;
            let is_far = |channel: &channel::Channel| channel.core() != here;
            for place in 0..self.peers.len() {
                if self.peers[place].channel().is_some_and(is_far) {
                    self.ring_one(place);
                }
            }
        }
        for place in 0..self.peers.len() {
            self.ring_one(place);
        }
    }

    /// Wakes a peer if something was stored for it, it naps, and nobody else is to write before it
    /// has enough (`board.rs`).
    fn ring_one(&mut self, place: usize) {
        let channel = self.peers[place].channel_mut();
        let Some(nap) = channel.and_then(channel::Channel::nap_to_end) else {
            return;
        };
        let sleeper = self.peers[place].id;
        if nap.awaited.count > 1 {
            self.context.board.answers(sleeper, nap);
            fence(Ordering::SeqCst);
            if !self.is_complete(sleeper, nap) {
                return;
            }
        }
        if let Some(channel) = self.peers[place].channel() {
            channel.wake();
        }
    }

    /// Whether with this replica enough have answered the nap of `sleeper`, or that cannot be seen.
    fn is_complete(&self, sleeper: ReplicaId, nap: Nap) -> bool {
        let mut unknown = nap.awaited.from;
        unknown.remove(self.context.me);
        let mut answered = 1;
        for peer in &self.peers {
            let channel = peer.channel().filter(|_| unknown.contains(peer.id));
            if let Some(channel) = channel {
                unknown.remove(peer.id);
                answered += usize::from(channel.has_answered(sleeper, nap));
            }
        }
        answered >= nap.awaited.count || !unknown.is_empty()
    }

    /// Everything that the sockets have to say.
    fn attend(&mut self, now: Instant) {
        for peer in &mut self.peers {
            peer.listen(&mut self.context, now);
        }
        self.accept(now);
        self.greet(now);
    }

    /// Who of `peers` has stored anything.
    fn news(&self, peers: ReplicaSet) -> ReplicaSet {
        let asked = self.peers.iter().filter(|peer| peers.contains(peer.id));
        let has_news = |peer: &&Peer| peer.channel().is_some_and(channel::Channel::has_news);
        ReplicaSet::of(asked.filter(has_news).map(|peer| peer.id))
    }

    /// Whether as many as are awaited have stored something.
    fn has_enough(&self, awaited: Awaited) -> bool {
        self.news(awaited.from).len() >= awaited.count
    }

    fn channels(&self) -> impl Iterator<Item = &channel::Channel> {
        self.peers.iter().filter_map(Peer::channel)
    }

    /// Whether the caller must not sleep; if it may, the peers know that it does.
    fn stays_awake(&self) -> bool {
        let wants_progress = |channel: &channel::Channel| channel.wants_progress();
        // What the others have written already is no more reason to stay awake than what they will.
        let awaited = self.wake_for.unwrap_or(Awaited::ANY);
        if !self.context.events.is_empty()
            || self.channels().any(wants_progress)
            || self.has_enough(awaited)
        {
            return true;
        }
        let mut spinner = self.spinner.borrow_mut();
        if spinner.spin(|| self.has_enough(awaited)) || !spinner.may_sleep() {
            return true;
        }
        // Who has written before the nap does not see it, and is not counted by those who do.
        let written = self.news(awaited.from);
        let missing = Awaited {
            from: ReplicaSet(awaited.from.0 & !written.0),
            count: awaited.count.saturating_sub(written.len()),
        };
        if missing.count == 0 {
            return true;
        }
        self.nap.set(self.nap.get() + 1);
        self.napping.set(true);
        self.context.board.naps(Nap {
            number: self.nap.get(),
            awaited: missing,
        });
        fence(Ordering::SeqCst);
        !self.news(missing.from).is_empty()
    }
}

impl Fabric for ShmFabric {
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
        self.ring();
    }

    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        let now = Instant::now();
        // A bell that was rung keeps `wait_fd` readable until it is looked at; it can only have
        // been rung for a nap.
        let has_looked = std::mem::take(&mut self.has_looked);
        let looks = has_looked || self.napping.get() || now >= self.looked_at + LOOK_EVERY;
        if looks {
            self.looked_at = now;
        }
        if looks && !has_looked {
            self.context.poll.look();
        } else if !looks {
            self.context.poll.skip();
        }
        if self.napping.take() {
            self.context.board.is_awake();
        }
        self.wake_for = None;
        let count = self.peers.len();
        for lane in Lane::ALL {
            for turn in 0..count {
                self.peers[(self.first + turn) % count].serve(&mut self.context, now, lane);
            }
        }
        self.first = (self.first + 1) % count.max(1);
        // After the rings: what a peer wrote before its end is there and is delivered.
        if looks {
            self.attend(now);
        }
        for peer in &mut self.peers {
            peer.tick(&mut self.context, now);
        }
        self.ring();
        events.append(&mut self.context.events);
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.context.pool.give(bytes);
    }

    /// Where a peer of this host is follows from its id, so the address is not looked at, and a
    /// peer that is known already keeps its link.
    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        if address.is_none() {
            self.peers.retain(|known| known.id != peer);
        } else if peer != self.context.me && !self.peers.iter().any(|known| known.id == peer) {
            // Only an id of more digits can make the path too long now.
            let door = Door::new(&self.place, &self.group, peer)
                .map_err(|error| PeerError::Address(error.to_string()))?;
            self.peers.push(Peer::new(peer, door, Instant::now()));
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

    /// A peer that a nap does not name, or to whom others are yet to be added, does not ring, and sees
    /// that in memory: so neither side makes a system call for it.
    fn wake_for(&mut self, awaited: Option<Awaited>) {
        self.wake_for = awaited;
    }

    fn timeout(&self) -> Option<Duration> {
        if self.stays_awake() {
            return Some(Duration::ZERO);
        }
        let hello_within = self.context.times.hello_within;
        let strangers = self.strangers.iter().map(|s| s.since + hello_within);
        let links = self.peers.iter().filter_map(|p| p.due_at(&self.context));
        let due = strangers.chain(links).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn record_bytes_max(&self, lane: Lane) -> usize {
        self.context.layout.capacity(lane).record_bytes_max()
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
