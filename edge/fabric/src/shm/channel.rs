//! A link that is up: two regions of memory, two rings in each, and what one side knows of them.

use super::doorbell::Doorbell;
use super::memory::{BadMemory, Cell, Inbound, Outbound};
use super::page::{PeerPage, Sleep};
use super::socket::{self, Offer};
use crate::Lane;
use crate::context::{Context, Loss, Share};
use crate::door::Connection;
use crate::hello::Hello;
use crate::poll::Token;
use crate::ring::{Position, RingReader, RingWriter, record_bytes};
use plover_types::ReplicaId;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// After this much written the doorbell is rung without waiting for the turn's end.
const EAGER_BYTES: usize = 256 << 10;

/// One side of a link.
#[derive(Debug)]
pub struct Channel {
    me: ReplicaId,
    peer: ReplicaId,
    /// Held open: its end is what the peer sees when this process ends.
    pub socket: OwnedFd,
    token: Token,
    /// Our own doorbell, held open for as long as the epoll watches it.
    pub _own_doorbell: OwnedFd,
    inbound: Inbound,
    pub outbound: Outbound,
    doorbell: Doorbell,
    pub page: PeerPage,
    writers: [RingWriter; 2],
    readers: [RingReader; 2],
    /// Delivery stopped at its bound: the ring may hold more records.
    more: [bool; 2],
    /// Bytes stored for the peer since its doorbell was last looked at.
    unrung: usize,
}

impl Channel {
    /// A link of which both sides have offered memory, if the peer's `offer` is what it should be.
    /// `mine` is what this side has said to the peer, `own` the memory and the doorbell that it offered.
    pub fn open(
        context: &Context,
        mine: &Hello,
        connection: Connection<OwnedFd>,
        (inbound, own_doorbell): (Inbound, OwnedFd),
        offer: Offer,
    ) -> Result<Self, BadMemory> {
        let (me, peer, session) = (mine.from, mine.to, mine.session);
        let writer = |lane| RingWriter::new(context.capacity(lane), session.salt(me, lane));
        let reader = |lane| RingReader::new(context.capacity(lane), session.salt(peer, lane));
        Ok(Self {
            me,
            peer,
            socket: connection.socket,
            token: connection.token,
            _own_doorbell: own_doorbell,
            outbound: Outbound::map(&offer.memory, inbound.layout())?,
            inbound,
            doorbell: Doorbell::new(offer.doorbell)?,
            page: PeerPage::map(&offer.page)?,
            writers: Lane::ALL.map(writer),
            readers: Lane::ALL.map(reader),
            more: [false; 2],
            unrung: 0,
        })
    }

    /// Puts one record into the peer's ring; `false` if there is no room.
    pub fn write(&mut self, lane: Lane, record: &[u8]) -> Result<bool, Loss> {
        if record_bytes(record.len()) > self.writers[lane.index()].free() {
            self.take_credit(lane)?;
        }
        if !self.put(lane, record) {
            return Ok(false);
        }
        // So much is no answer that others have to join.
        if self.unrung >= EAGER_BYTES && self.sleep_to_end().is_some() {
            self.wake();
        }
        Ok(true)
    }

    fn put(&mut self, lane: Lane, record: &[u8]) -> bool {
        let writer = &mut self.writers[lane.index()];
        let outbound = &self.outbound;
        if !writer.put(record, |offset, run| outbound.write(lane, offset, run)) {
            return false;
        }
        // The record is there before the tail that says so.
        outbound
            .cell(Cell::Tail(lane))
            .store(writer.tail().0, Ordering::Release);
        self.unrung += record_bytes(record.len());
        true
    }

    /// Whether something was stored for the peer since its doorbell was last looked at.
    pub fn is_unrung(&self) -> bool {
        self.unrung > 0
    }

    /// The core on which the peer last fell asleep.
    pub fn core(&self) -> u64 {
        self.page.core()
    }

    /// The sleep of the peer that this replica is to end, alone or with others, if something was
    /// stored for the peer. Said once.
    pub fn sleep_to_end(&mut self) -> Option<Sleep> {
        if std::mem::take(&mut self.unrung) == 0 {
            return None;
        }
        self.doorbell.sleep_to_end(self.page.sleep(), self.me)
    }

    /// Whether the peer has written to `sleeper` since that one fell asleep for `sleep`.
    pub fn has_answered(&self, sleeper: ReplicaId, sleep: Sleep) -> bool {
        self.page.has_answered(sleeper, sleep)
    }

    /// Wakes the peer.
    pub fn wake(&self) {
        self.doorbell.ring();
    }

    /// Looks at the socket. When the peer's process has ended, what it wrote before is delivered
    /// first.
    pub fn attend(&mut self, context: &mut Context) -> Result<(), Loss> {
        if !context.poll.is_ready(self.token) {
            return Ok(());
        }
        match socket::receive(&self.socket) {
            Ok(None) => Ok(()),
            Err(Loss::Closed) => {
                let mut lanes = Lane::ALL.into_iter();
                lanes.try_for_each(|lane| self.serve(context, lane))?;
                Err(Loss::Closed)
            }
            Ok(Some(_)) | Err(Loss::Damage(_)) => {
                let what = "something came through its socket after the handshake";
                Err(Loss::Damage(what.into()))
            }
            Err(loss) => Err(loss),
        }
    }

    /// Delivers records of one lane up to the bound, and takes in the peer's credit.
    pub fn serve(&mut self, context: &mut Context, lane: Lane) -> Result<(), Loss> {
        self.deliver(context, lane)?;
        if let Some(head) = self.readers[lane.index()].credit() {
            self.outbound
                .cell(Cell::Head(lane))
                .store(head.0, Ordering::Release);
            self.unrung += 1;
        }
        self.take_credit(lane)?;
        context.report_room(self.peer, lane, &mut self.writers[lane.index()]);
        Ok(())
    }

    fn deliver(&mut self, context: &mut Context, lane: Lane) -> Result<(), Loss> {
        let reader = &mut self.readers[lane.index()];
        let (tail, head) = (tail(&self.inbound, lane), reader.head());
        self.more[lane.index()] = false;
        if tail == head {
            return Ok(());
        }
        let damage = || Loss::Damage(format!("records up to {tail} in a ring read up to {head}"));
        let capacity = context.capacity(lane).bytes() as u64;
        if tail < head || tail.since(head) > capacity {
            return Err(damage());
        }
        let ring = self.inbound.ring(lane);
        let stopped = context.deliver(self.peer, lane, &mut Share::default(), |pool| {
            if reader.head() >= tail {
                return Ok(None);
            }
            // A tail lies behind a record, never inside of one.
            let record = reader.take(&ring, tail, pool)?;
            record.map(Some).ok_or_else(damage)
        })?;
        self.more[lane.index()] = stopped && reader.head() < tail;
        Ok(())
    }

    fn take_credit(&mut self, lane: Lane) -> Result<(), Loss> {
        let writer = &mut self.writers[lane.index()];
        let head = head(&self.inbound, lane);
        if head != writer.head() {
            writer.credit(head)?;
        }
        Ok(())
    }

    /// Whether the peer has stored anything that `serve` would act on.
    pub fn has_news(&self) -> bool {
        Lane::ALL.into_iter().any(|lane| {
            let (reader, writer) = (&self.readers[lane.index()], &self.writers[lane.index()]);
            tail(&self.inbound, lane) != reader.head()
                || writer.is_refusing() && head(&self.inbound, lane) != writer.head()
        })
    }

    /// Whether `progress` would get on without the peer's doing anything.
    pub fn wants_progress(&self) -> bool {
        self.unrung > 0 || self.more.contains(&true)
    }
}

fn tail(inbound: &Inbound, lane: Lane) -> Position {
    Position(inbound.cell(Cell::Tail(lane)).load(Ordering::Acquire))
}

fn head(inbound: &Inbound, lane: Lane) -> Position {
    Position(inbound.cell(Cell::Head(lane)).load(Ordering::Acquire))
}
