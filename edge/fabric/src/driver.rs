//! The fabric itself: what `tcp`, `shm` and `ofi` have in common, once.
//!
//! A fabric is a listener, peers with their links, and the turn that serves them all. The three
//! kinds differ in their [`Handshake`], and in their [`Transport`]: how bytes get into the peer's ring,
//! and how a sleeper is woken.

use crate::context::{Context, Loss};
use crate::door::{Door, Listen, TurnedAway, Visitor, host_of, turn_away};
use crate::hello::{Greet, Refusal};
use crate::peer::{HELLO_WITHIN, Peer, Step};
use crate::poll::Interest;
use crate::{Attached, Fabric, FabricError, FabricEvent, FabricStats, Lane, PeerError, WriteError};
use plover_types::wire::Versions;
use plover_types::{Awaited, ReplicaId};
use std::fmt::{Debug, Display};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};
use tracing::debug;

/// How two replicas come to a link, for one kind of fabric.
pub trait Handshake: Debug + Sized {
    /// The pace of dialling. It bounds how long a healed link stays unused.
    const DIAL_EVERY: Duration;
    /// Where a peer listens.
    type Place: Debug + Display + PartialEq;
    /// The socket that listens here.
    type Listener: Listen;
    /// A handshake under way.
    type Trying: Debug;
    /// A link that is up.
    type Up: Debug;

    /// Where `peer` listens, by what the caller says of it.
    fn place(&self, peer: ReplicaId, address: &str) -> Result<Self::Place, PeerError>;

    /// This side's answer to a greeting if nothing speaks against it, without what is made only for a
    /// link.
    fn answer(&self, context: &Context, theirs: &GreetingOf<Self>) -> GreetingOf<Self>;
    /// Whether a greeting is part of the handshake that is under way, and does not supersede it.
    fn is_continued(trying: &Self::Trying, greeting: &GreetingOf<Self>) -> bool {
        let _ = (trying, greeting);
        false
    }
    /// Answers a visitor that is welcome with what `mine` says. `trying` is the handshake that it
    /// continues.
    fn welcome(
        &mut self,
        context: &mut Context,
        trying: Option<Self::Trying>,
        visitor: Visitor<Self::Listener>,
        mine: GreetingOf<Self>,
        now: Instant,
    ) -> Result<Step<Self>, Loss>;

    /// Begins a handshake.
    fn dial(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        place: &Self::Place,
    ) -> Result<Step<Self>, Loss>;
    /// Goes on with one.
    fn advance(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        trying: Self::Trying,
        now: Instant,
    ) -> Result<Step<Self>, Loss>;
    /// How long a handshake may take from its beginning to what it waits for, and what that is.
    fn patience(trying: &Self::Trying) -> (Duration, &'static str) {
        let _ = trying;
        (HELLO_WITHIN, "handshake")
    }
}

/// The greeting of a kind of fabric.
pub type GreetingOf<T> = <<T as Handshake>::Listener as Listen>::Greeting;

/// The part of a fabric that each kind does its own way, besides the handshake.
pub trait Transport: Handshake {
    /// Writes one record into the peer's ring; `false` if that is full.
    fn write(
        &mut self,
        context: &mut Context,
        up: &mut Self::Up,
        lane: Lane,
        record: &[u8],
    ) -> Result<bool, Loss>;
    /// Bytes that it adds to each record, besides the ring's framing.
    fn extra_bytes(&self) -> usize {
        0
    }
    /// Takes in and delivers what has come on one lane.
    fn serve(
        &mut self,
        context: &mut Context,
        up: &mut Self::Up,
        lane: Lane,
        now: Instant,
    ) -> Result<(), Loss>;
    /// Hears what the connection of a link has to say besides records, such as its end, and does what
    /// is due.
    fn tick(&mut self, context: &mut Context, up: &mut Self::Up, now: Instant) -> Result<(), Loss>;
    /// When `tick` has something to do on a link that is up.
    fn due_at(up: &Self::Up) -> Option<Instant> {
        let _ = up;
        None
    }
    /// Sends something to which the peer's host answers, whatever its process does.
    fn challenge(&mut self, context: &mut Context, up: &mut Self::Up) -> Result<(), Loss> {
        let _ = (context, up);
        Ok(())
    }
    /// Whether the process at the other end has shown that it lives, since it was challenged.
    fn lives(&self, up: &Self::Up, challenged: Instant, now: Instant) -> Result<bool, Loss>;
    /// Hands over what was written to any peer.
    fn flush(&mut self, context: &mut Context, peers: &mut [Peer<Self>], now: Instant);

    /// A turn begins: asks the kernel what is ready, unless the caller `has_waited` and so knows.
    /// `false` if nothing was asked; the sockets' turn is a later one then.
    fn begin(&mut self, context: &mut Context, has_waited: bool, now: Instant) -> bool {
        let _ = now;
        if !has_waited {
            context.poll.look();
        }
        true
    }
    /// Nothing has come: looks on for a while, if that is wanted. `true` if something came.
    fn spin(&mut self, context: &Context, peers: &mut [Peer<Self>], now: Instant) -> bool {
        let _ = (context, peers, now);
        false
    }
    /// Nothing more is done until the caller comes again: sees to it that the descriptor shows
    /// whatever there is to do by then. At the end of a turn `is_active` says whether it reported
    /// anything.
    fn settle(
        &mut self,
        context: &mut Context,
        peers: &mut [Peer<Self>],
        is_active: Option<bool>,
        now: Instant,
    ) {
        let _ = (context, peers, is_active, now);
    }
    /// As [`Fabric::wake_for`].
    fn wake_for(&mut self, awaited: Option<Awaited>) {
        let _ = awaited;
    }
    /// When to look again though nothing says so.
    fn look_at(&self) -> Option<Instant> {
        None
    }
    /// Whether the caller must not sleep now. If it may, the peers know from here on that it does.
    fn stays_awake(&self, context: &Context, peers: &[Peer<Self>]) -> bool;
}

/// A [`Fabric`] over one kind of transport.
#[derive(Debug)]
pub struct RingFabric<T: Transport> {
    // First: what it opened for a link must be closed before the context goes.
    peers: Vec<Peer<T>>,
    door: Door<T::Listener>,
    transport: T,
    context: Context,
    /// The peer that is served first, moved on by one each time.
    first: usize,
    /// A `wait` has asked the kernel since the last `progress`.
    has_waited: bool,
}

impl<T: Transport> RingFabric<T> {
    /// Puts a fabric together. It starts to dial at the first `progress`.
    pub(crate) fn assemble(
        mut context: Context,
        transport: T,
        listener: T::Listener,
        peers: Vec<(ReplicaId, T::Place)>,
    ) -> Result<Self, FabricError> {
        let now = Instant::now();
        let peers = peers.into_iter();
        Ok(Self {
            door: Door::new(&mut context, listener)?,
            peers: peers.map(|(id, place)| Peer::new(id, place, now)).collect(),
            transport,
            context,
            first: 0,
            has_waited: false,
        })
    }

    pub(crate) fn listener(&self) -> &T::Listener {
        &self.door.listener
    }

    /// Whether the link to `peer` is up.
    pub fn is_up(&self, peer: ReplicaId) -> bool {
        self.peers.iter().any(|p| p.id == peer && p.up().is_some())
    }

    /// Lets replicas in that greet, and turns others away.
    fn greet(&mut self, now: Instant) {
        for come in self.door.serve(&mut self.context, now) {
            let mut visitor = match come {
                Ok(visitor) => visitor,
                Err(turned_away) => {
                    self.note_turned_away(&turned_away, now);
                    continue;
                }
            };
            let (transport, context) = (&mut self.transport, &mut self.context);
            let mut mine = transport.answer(context, &visitor.greeting);
            let from = visitor.greeting.sender();
            let mut peers = self.peers.iter_mut();
            let peer = peers.find(|peer| peer.id == from && from < context.me);
            if peer.as_ref().is_some_and(|peer| peer.is_kept_away(now)) {
                // Its connection ends here; it dials again.
                continue;
            }
            let socket = &visitor.connection.socket;
            let objection = self.door.listener.objection(socket, &visitor.greeting);
            let why = objection.or_else(|| visitor.greeting.refusal(&mine));
            let admitted = match (why, peer) {
                (None, Some(peer)) => {
                    let process = visitor.greeting.process();
                    match peer.admit(transport, context, now, process) {
                        // Its connection ends here; it dials again.
                        Err(None) => continue,
                        Err(Some(why)) => Err(why),
                        Ok(()) => Ok(peer),
                    }
                }
                (why, _) => Err(why.unwrap_or(Refusal::Identity.into())),
            };
            match admitted {
                Ok(peer) => {
                    context.met(&visitor.greeting);
                    peer.welcome(transport, context, now, visitor, mine);
                }
                Err(why) => {
                    context.refused(from, &visitor.address, &why, now);
                    mine.refuse(why.verdict);
                    if let Err(loss) = T::Listener::send(&mut visitor.connection.socket, &mine) {
                        debug!(address = visitor.address, %loss, "a connection ended early");
                    }
                }
            }
        }
    }

    /// A connection was refused before it said from which replica it comes. If one peer alone listens on the host that it
    /// comes from, it counts as that one's: both sides of a refusal are to show it.
    fn note_turned_away(&mut self, it: &TurnedAway, now: Instant) {
        let context = &mut self.context;
        let host = host_of(&it.address);
        let dials_from =
            |peer: &&Peer<T>| peer.id < context.me && host_of(&peer.place.to_string()) == host;
        let mut peers = self.peers.iter().filter(dials_from);
        match (peers.next(), peers.next()) {
            (Some(peer), None) => context.refused(peer.id, &it.address, &it.why, now),
            _ => turn_away(context, &it.address, &it.why, now),
        }
    }

    /// Delivers from all peers, the urgent lane of all before the other lane of any.
    fn serve(&mut self, now: Instant) {
        let count = self.peers.len();
        for lane in Lane::ALL {
            for turn in 0..count {
                let peer = &mut self.peers[(self.first + turn) % count];
                peer.serve(&mut self.transport, &mut self.context, now, lane);
            }
        }
        self.first = (self.first + 1) % count.max(1);
    }
}

impl<T: Transport> Fabric for RingFabric<T> {
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError> {
        let (bytes, max) = (record.len(), self.record_bytes_max(lane));
        if bytes > max {
            return Err(WriteError::TooLarge { bytes, max });
        }
        let peer = self.peers.iter_mut().find(|peer| peer.id == to);
        let peer = peer.ok_or(WriteError::Down(to))?;
        let up = peer.up_mut().ok_or(WriteError::Down(to))?;
        match self.transport.write(&mut self.context, up, lane, record) {
            Ok(true) => {
                self.context.stats.lane_mut(lane).bytes_out += bytes as u64;
                Ok(())
            }
            Ok(false) => Err(WriteError::Full(to)),
            Err(loss) => {
                peer.lose(&mut self.context, Instant::now(), &loss);
                Ok(())
            }
        }
    }

    fn flush(&mut self) {
        let now = Instant::now();
        let (context, peers) = (&mut self.context, &mut self.peers);
        self.transport.flush(context, peers, now);
        self.transport.settle(context, peers, None, now);
    }

    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        let mut now = Instant::now();
        let has_waited = std::mem::take(&mut self.has_waited);
        if self.transport.begin(&mut self.context, has_waited, now) {
            self.greet(now);
            for peer in &mut self.peers {
                peer.advance(&mut self.transport, &mut self.context, now);
            }
        }
        // First of all, whether a link has ended: some providers of libfabric crash when they are asked
        // for the news of a peer that is gone.
        for peer in &mut self.peers {
            peer.tick(&mut self.transport, &mut self.context, now);
        }
        self.serve(now);
        if self.context.events.is_empty()
            && self.transport.spin(&self.context, &mut self.peers, now)
        {
            now = Instant::now();
            self.serve(now);
        }
        let (context, peers) = (&mut self.context, &mut self.peers);
        self.transport.flush(context, peers, now);
        let is_active = !context.events.is_empty();
        events.append(&mut context.events);
        self.transport.settle(context, peers, Some(is_active), now);
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.context.pool.give(bytes);
    }

    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        let place = address.map(|text| self.transport.place(peer, text));
        let place = place.transpose()?;
        let known = self.peers.iter().find(|known| known.id == peer);
        if peer == self.context.me || known.is_some_and(|it| Some(&it.place) == place.as_ref()) {
            return Ok(());
        }
        // Its descriptors leave the epoll set when they are closed.
        self.peers.retain(|known| known.id != peer);
        let now = Instant::now();
        self.peers
            .extend(place.map(|place| Peer::new(peer, place, now)));
        Ok(())
    }

    fn cut(&mut self, peer: ReplicaId, why: &str) {
        if let Some(peer) = self.peers.iter_mut().find(|it| it.id == peer) {
            peer.cut(&mut self.context, Instant::now(), why);
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.context.poll.fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.context.poll.wait(timeout);
        self.has_waited = true;
    }

    fn attach(&mut self, fd: BorrowedFd<'_>) -> io::Result<Attached> {
        self.context.poll.watch(fd, Interest::Read).map(Attached)
    }

    fn is_readable(&self, attached: Attached) -> bool {
        self.context.poll.is_readable(attached.0)
    }

    fn wake_for(&mut self, awaited: Option<Awaited>) {
        self.transport.wake_for(awaited);
    }

    fn timeout(&self) -> Option<Duration> {
        if self.transport.stays_awake(&self.context, &self.peers) {
            return Some(Duration::ZERO);
        }
        let links = self.peers.iter().filter_map(|p| p.due_at(&self.context));
        let others = self
            .door
            .due_at()
            .into_iter()
            .chain(self.transport.look_at());
        let due = links.chain(others).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn record_bytes_max(&self, lane: Lane) -> usize {
        let max = self.context.capacity(lane).record_bytes_max();
        max.saturating_sub(self.transport.extra_bytes())
    }

    fn stats(&self) -> FabricStats {
        self.context.stats
    }

    fn speak(&mut self, versions: Versions) {
        let context = &mut self.context;
        context.versions = versions;
        for peer in self.peers.iter_mut().filter(|peer| peer.up().is_some()) {
            if let Some(why) = context.outgrown(peer.id) {
                peer.lose(context, Instant::now(), &Loss::Refused(why));
            }
        }
    }

    fn versions(&self, peer: ReplicaId) -> Option<Versions> {
        self.context.told.get(&peer).copied()
    }

    fn twin(&self) -> Option<(ReplicaId, String)> {
        self.context.twin.clone()
    }

    fn refusal(&self, peer: ReplicaId) -> Option<String> {
        // A link that is up is not refused: then somebody else claimed to be `peer`.
        let refused = &self.context.refused;
        let why = refused.lately(peer, Instant::now());
        why.filter(|_| !self.is_up(peer)).map(str::to_owned)
    }
}

#[cfg(test)]
impl<T: Transport> RingFabric<T> {
    pub(crate) fn me(&self) -> ReplicaId {
        self.context.me
    }

    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    /// The link to the first peer.
    pub(crate) fn link(&self) -> &T::Up {
        self.peers[0].up().expect("up")
    }

    #[cfg(feature = "ofi")]
    pub(crate) fn link_mut(&mut self) -> &mut T::Up {
        self.peers[0].up_mut().expect("up")
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &T::Up> {
        self.peers.iter().filter_map(Peer::up)
    }
}
