//! One lane of a link that is up: a connection, the ring it writes and the ring it fills.

use super::Context;
use super::socket::{self, Silence};
use super::stream::{Inbox, Outbox, StreamDamage};
use crate::poll::{Interest, Token};
use crate::ring::{BadCredit, Damage, PutError, RingReader, RingWriter, record_bytes};
use crate::{FabricEvent, Lane, WriteError};
use plover_types::ReplicaId;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What one `progress` call delivers at most from one lane of one peer: enough to amortise the
/// call, little enough (well under a millisecond) that a flood on one lane delays no other.
const DELIVER_RECORDS_MAX: usize = 1024;
const DELIVER_BYTES_MAX: usize = 1 << 20;
/// What one `progress` call reads at most from one connection.
const READ_BYTES_MAX: usize = 2 << 20;
/// Writes from this size up are read straight into the ring; for smaller ones one system call
/// that takes in many frames is worth the extra copy.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// This much queued is handed to the kernel without waiting for the turn's end, so that a long
/// turn's bulk data is under way while the rest is made.
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
    Stream(#[from] StreamDamage),
    #[error("damaged: {0}")]
    Credit(#[from] BadCredit),
    #[error("nothing acknowledged for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the peer dialled anew")]
    Superseded,
    #[error("no connection in time")]
    ConnectTimeout,
    #[error("no handshake in time")]
    HelloTimeout,
}

impl Loss {
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Stream(_) | Self::Credit(_))
    }
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub(super) struct Greeted {
    pub socket: TcpStream,
    pub token: Token,
}

#[derive(Debug)]
pub(super) struct LaneLink {
    peer: ReplicaId,
    lane: Lane,
    socket: TcpStream,
    token: Token,
    interest: Interest,
    writer: RingWriter,
    reader: RingReader,
    outbox: Outbox,
    inbox: Inbox,
    /// The largest record (as it lies in the ring) that was refused since there last was room.
    refused: Option<usize>,
    /// The kernel takes no more; epoll will say when it does.
    blocked: bool,
    /// Delivery stopped at its bound: the ring may hold more records.
    more: bool,
    silence: Silence,
}

impl LaneLink {
    pub fn new(
        context: &Context,
        peer: ReplicaId,
        lane: Lane,
        session: crate::hello::Session,
        greeted: Greeted,
    ) -> io::Result<Self> {
        let capacity = context.capacity(lane);
        let Greeted { socket, token } = greeted;
        context.poll.change(&socket, token, Interest::Read)?;
        Ok(Self {
            peer,
            lane,
            socket,
            token,
            interest: Interest::Read,
            writer: RingWriter::new(capacity, session.salt(context.me, lane)),
            reader: RingReader::new(capacity, session.salt(peer, lane)),
            outbox: Outbox::default(),
            inbox: Inbox::new(capacity),
            refused: None,
            blocked: false,
            more: false,
            silence: Silence::default(),
        })
    }

    /// Queues one record. A loss met on the way out is for the caller to act on.
    pub fn write(
        &mut self,
        context: &mut Context,
        record: &[u8],
    ) -> Result<Result<(), Loss>, WriteError> {
        let put = self
            .writer
            .put(record, |offset, run| self.outbox.write(offset, run));
        let stats = context.stats.lane_mut(self.lane);
        match put {
            Ok(()) => {}
            Err(PutError::Full) => {
                stats.full += 1;
                self.refused = self.refused.max(Some(record_bytes(record.len())));
                return Err(WriteError::Full(self.peer));
            }
            Err(PutError::TooLarge) => {
                let max = context.capacity(self.lane).record_bytes_max();
                return Err(WriteError::TooLarge {
                    bytes: record.len(),
                    max,
                });
            }
        }
        stats.records_out += 1;
        stats.bytes_out += record.len() as u64;
        if self.outbox.unsent().len() >= EAGER_BYTES && !self.blocked {
            return Ok(self.flush(context));
        }
        Ok(Ok(()))
    }

    /// Takes in what has arrived, delivers records up to the bound.
    pub fn serve(&mut self, context: &mut Context, ring: &mut [u8]) -> Result<(), Loss> {
        let mut readable = context.poll.is_readable(self.token);
        if context.poll.is_writable(self.token) {
            self.blocked = false;
        }
        if !readable && !self.more {
            return Ok(());
        }
        let (mut records, mut delivered, mut read) = (0, 0, 0);
        loop {
            self.more = false;
            while let Some(bytes) =
                self.reader
                    .take_with(ring, self.inbox.arrived(), &mut context.pool)?
            {
                records += 1;
                delivered += bytes.len();
                context.deliver(self.peer, self.lane, bytes);
                if records == DELIVER_RECORDS_MAX || delivered >= DELIVER_BYTES_MAX {
                    self.more = true;
                    break;
                }
            }
            if self.more || !readable || read >= READ_BYTES_MAX {
                break;
            }
            (read, readable) = match self.read(ring, &mut context.scratch)? {
                Received::Some(count) => (read + count, true),
                Received::All(count) => (read + count, false),
            };
        }
        if let Some(head) = self.reader.credit() {
            self.outbox.credit(head);
        }
        if let Some(head) = self.inbox.take_credit() {
            self.writer.credit(head)?;
            if self
                .refused
                .is_some_and(|bytes| bytes <= self.writer.free())
            {
                self.refused = None;
                context.events.push(FabricEvent::Room {
                    peer: self.peer,
                    lane: self.lane,
                });
            }
        }
        Ok(())
    }

    /// One read from the connection, into the ring directly or by way of `scratch`.
    fn read(&mut self, ring: &mut [u8], scratch: &mut [u8]) -> Result<Received, Loss> {
        let window = self.inbox.window(ring);
        let direct = window.len() >= DIRECT_BYTES_MIN;
        let into = if direct { window } else { &mut *scratch };
        let asked = into.len();
        let count = match self.socket.read(into) {
            Ok(0) => return Err(Loss::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::All(0));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(Received::Some(0));
            }
            Err(error) => return Err(error.into()),
        };
        if direct {
            self.inbox.filled(count);
        } else {
            self.inbox
                .feed(&scratch[..count], ring, self.reader.head())?;
        }
        // A short read has emptied the socket; asking again would only cost a system call.
        Ok(if count < asked {
            Received::All(count)
        } else {
            Received::Some(count)
        })
    }

    /// Hands the queued bytes to the kernel until it takes no more.
    pub fn flush(&mut self, context: &Context) -> Result<(), Loss> {
        while !self.blocked && !self.outbox.unsent().is_empty() {
            match self.socket.write(self.outbox.unsent()) {
                Ok(count) => self.outbox.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let interest = if self.blocked {
            Interest::ReadWrite
        } else {
            Interest::Read
        };
        if interest != self.interest {
            context.poll.change(&self.socket, self.token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Asks the kernel whether the peer's host still answers.
    pub fn check(&mut self, now: Instant, silent_after: Duration) -> Result<(), Loss> {
        let silent = self
            .silence
            .observe(now, socket::acknowledged(&self.socket)?);
        if silent >= silent_after {
            Err(Loss::Silent(silent))
        } else {
            Ok(())
        }
    }

    /// Whether `progress` would get on without the kernel's saying so.
    pub fn wants_progress(&self) -> bool {
        self.more || (!self.blocked && !self.outbox.unsent().is_empty())
    }
}

#[cfg(test)]
impl LaneLink {
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn is_blocked(&self) -> bool {
        self.blocked
    }
}

/// How much one read brought.
enum Received {
    /// There may be more.
    Some(usize),
    /// That was all there is for now.
    All(usize),
}
