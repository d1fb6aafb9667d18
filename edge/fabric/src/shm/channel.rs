//! A link that is up: two regions of memory, two rings in each, and what one side knows of them.

use super::Context;
use super::bell::{Bell, NoBell};
use super::board::{BoardOf, Nap};
use super::memory::{BadMemory, Cell, Inbound, Layout, Outbound};
use crate::hello::Session;
use crate::poll::Token;
use crate::ring::{BadCredit, Damage, Position, PutError, RingReader, RingWriter, record_bytes};
use crate::{FabricEvent, Lane, WriteError};
use plover_types::ReplicaId;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// What one `progress` call delivers at most from one lane of one peer, as in `tcp`.
const DELIVER_RECORDS_MAX: usize = 1024;
const DELIVER_BYTES_MAX: usize = 1 << 20;
/// This much written rings the bell without waiting for the turn's end.
const EAGER_BYTES: usize = 256 << 10;

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Loss {
    #[error("the peer closed it")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("damaged: {0}")]
    Record(#[from] Damage),
    #[error("damaged: {0}")]
    Credit(#[from] BadCredit),
    #[error("damaged: records up to {tail} in a ring read up to {head}")]
    Tail { tail: Position, head: Position },
    #[error("damaged: something else than a greeting came through its socket")]
    Noise,
    #[error("it offers no memory: {0}")]
    Memory(#[from] BadMemory),
    #[error("{0}")]
    Bell(#[from] NoBell),
    #[error("the peer dialled anew")]
    Superseded,
    #[error("no handshake in time")]
    HelloTimeout,
}

impl Loss {
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Record(_) | Self::Credit(_) | Self::Tail { .. } | Self::Noise
        )
    }
}

/// One side of a link.
#[derive(Debug)]
pub(super) struct Channel {
    me: ReplicaId,
    peer: ReplicaId,
    /// Held open: its end is what the peer sees when this process ends.
    pub socket: OwnedFd,
    pub token: Token,
    /// Our own bell, held open for as long as the epoll watches it.
    _bell: OwnedFd,
    inbound: Inbound,
    outbound: Outbound,
    bell: Bell,
    board: BoardOf,
    writers: [RingWriter; 2],
    readers: [RingReader; 2],
    /// The largest record (as it lies in the ring) that was refused since there last was room.
    refused: [Option<usize>; 2],
    /// Delivery stopped at its bound: the ring may hold more records.
    more: [bool; 2],
    /// Stored for the peer, who has not been rung for since; bytes, at least one.
    unrung: usize,
}

/// What a channel is made of, once the greeting is done.
#[derive(Debug)]
pub(super) struct Parts {
    pub socket: OwnedFd,
    pub token: Token,
    pub own_bell: OwnedFd,
    pub inbound: Inbound,
    pub outbound: Outbound,
    pub bell: Bell,
    pub board: BoardOf,
}

impl Channel {
    pub fn new(
        me: ReplicaId,
        peer: ReplicaId,
        layout: Layout,
        session: Session,
        parts: Parts,
    ) -> Self {
        let writer = |lane| RingWriter::new(layout.capacity(lane), session.salt(me, lane));
        let reader = |lane| RingReader::new(layout.capacity(lane), session.salt(peer, lane));
        Self {
            me,
            peer,
            socket: parts.socket,
            token: parts.token,
            _bell: parts.own_bell,
            inbound: parts.inbound,
            outbound: parts.outbound,
            bell: parts.bell,
            board: parts.board,
            writers: Lane::ALL.map(writer),
            readers: Lane::ALL.map(reader),
            refused: [None; 2],
            more: [false; 2],
            unrung: 0,
        }
    }

    /// Puts one record into the peer's ring.
    pub fn write(
        &mut self,
        context: &mut Context,
        lane: Lane,
        record: &[u8],
    ) -> Result<(), WriteError> {
        let mut put = self.put(lane, record);
        if put == Err(PutError::Full) && self.take_credit(lane).is_ok() {
            put = self.put(lane, record);
        }
        let stats = context.stats.lane_mut(lane);
        match put {
            Ok(()) => {
                stats.records_out += 1;
                stats.bytes_out += record.len() as u64;
            }
            Err(PutError::Full) => {
                stats.full += 1;
                let refused = &mut self.refused[lane.index()];
                *refused = (*refused).max(Some(record_bytes(record.len())));
                return Err(WriteError::Full(self.peer));
            }
            Err(PutError::TooLarge) => {
                return Err(WriteError::TooLarge {
                    bytes: record.len(),
                    max: context.layout.capacity(lane).record_bytes_max(),
                });
            }
        }
        // So much is no answer that others have to join.
        if self.unrung >= EAGER_BYTES && self.nap_to_end().is_some() {
            self.wake();
        }
        Ok(())
    }

    fn put(&mut self, lane: Lane, record: &[u8]) -> Result<(), PutError> {
        let writer = &mut self.writers[lane.index()];
        let outbound = &self.outbound;
        writer.put(record, |offset, run| outbound.write(lane, offset, run))?;
        // The record is there before the tail that says so.
        outbound
            .cell(Cell::Tail(lane))
            .store(writer.tail().0, Ordering::Release);
        self.unrung += record_bytes(record.len());
        Ok(())
    }

    /// Whether something was stored for the peer since it was last rung for.
    pub fn is_unrung(&self) -> bool {
        self.unrung > 0
    }

    /// On which core the peer last fell asleep.
    pub fn core(&self) -> u64 {
        self.board.core()
    }

    /// The nap that the peer takes, if something was stored for it meanwhile and this replica is to
    /// end that nap, alone or with others. Said once.
    pub fn nap_to_end(&mut self) -> Option<Nap> {
        if std::mem::take(&mut self.unrung) == 0 {
            return None;
        }
        self.bell.nap_to_end(self.board.nap(), self.me)
    }

    /// Whether the peer has written to `sleeper` since that took `nap`.
    pub fn has_answered(&self, sleeper: ReplicaId, nap: Nap) -> bool {
        self.board.has_answered(sleeper, nap)
    }

    /// Wakes the peer.
    pub fn wake(&self) {
        self.bell.ring_anyway();
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
        let free = self.writers[lane.index()].free();
        let refused = &mut self.refused[lane.index()];
        if refused.is_some_and(|bytes| bytes <= free) {
            *refused = None;
            context.events.push(FabricEvent::Room {
                peer: self.peer,
                lane,
            });
        }
        Ok(())
    }

    fn deliver(&mut self, context: &mut Context, lane: Lane) -> Result<(), Loss> {
        let reader = &mut self.readers[lane.index()];
        let tail = tail(&self.inbound, lane);
        self.more[lane.index()] = false;
        if tail == reader.head() {
            return Ok(());
        }
        let impossible = Loss::Tail {
            tail,
            head: reader.head(),
        };
        let capacity = context.layout.capacity(lane).bytes() as u64;
        if tail < reader.head() || tail.since(reader.head()) > capacity {
            return Err(impossible);
        }
        let ring = self.inbound.ring(lane);
        let (mut records, mut delivered) = (0, 0);
        while reader.head() < tail {
            let Some(bytes) = reader.take_with(&ring, tail, &mut context.pool)? else {
                // A tail lies behind a record, never inside of one.
                return Err(impossible);
            };
            records += 1;
            delivered += bytes.len();
            context.deliver(self.peer, lane, bytes);
            if records == DELIVER_RECORDS_MAX || delivered >= DELIVER_BYTES_MAX {
                self.more[lane.index()] = reader.head() < tail;
                break;
            }
        }
        Ok(())
    }

    fn take_credit(&mut self, lane: Lane) -> Result<(), BadCredit> {
        let writer = &mut self.writers[lane.index()];
        let head = head(&self.inbound, lane);
        if head == writer.head() {
            return Ok(());
        }
        writer.credit(head)
    }

    /// Whether the peer has stored anything that `serve` would act on.
    pub fn has_news(&self) -> bool {
        Lane::ALL.into_iter().any(|lane| {
            tail(&self.inbound, lane) != self.readers[lane.index()].head()
                || self.refused[lane.index()].is_some()
                    && head(&self.inbound, lane) != self.writers[lane.index()].head()
        })
    }

    /// Whether `progress` would get on without the peer's doing anything.
    pub fn wants_progress(&self) -> bool {
        self.unrung > 0 || self.more.contains(&true)
    }
}

#[cfg(test)]
impl Channel {
    pub fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    pub fn own_bell(&self) -> &OwnedFd {
        &self._bell
    }

    /// What the peer's board says.
    pub fn nap_seen(&self) -> u64 {
        self.board.nap().load(Ordering::Acquire)
    }
}

fn tail(inbound: &Inbound, lane: Lane) -> Position {
    Position(inbound.cell(Cell::Tail(lane)).load(Ordering::Acquire))
}

fn head(inbound: &Inbound, lane: Lane) -> Position {
    Position(inbound.cell(Cell::Head(lane)).load(Ordering::Acquire))
}
