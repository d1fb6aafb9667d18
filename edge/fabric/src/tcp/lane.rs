//! One lane of a link that is up: a connection, the ring it writes and the ring it fills.

use super::stream::{Inbox, Outbox};
use crate::context::{Context, Loss, No, Share};
use crate::door::Connection;
use crate::hello::{Refusal, Session};
use crate::line::Line;
use crate::poll::{Interest, Token};
use crate::ring::{RingReader, RingWriter};
use crate::socket::{self, Silence};
use crate::{Keys, Lane};
use plover_types::ReplicaId;
use std::io;
use std::time::Instant;

/// One `progress` call reads at most so much from one connection.
const READ_BYTES_MAX: usize = 2 << 20;
/// Writes from this size up are read straight into the ring. For smaller ones, one system call
/// that takes in many frames is worth the extra copy.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// This much queued is handed to the kernel without waiting for the turn's end, so that a long
/// turn's bulk data is under way while the rest is made.
const EAGER_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct LaneLink {
    peer: ReplicaId,
    lane: Lane,
    pub line: Line,
    token: Token,
    interest: Interest,
    writer: RingWriter,
    reader: RingReader,
    outbox: Outbox,
    inbox: Inbox,
    /// The inbound ring. The kernel backs it with memory as it is first filled.
    ring: Vec<u8>,
    /// The kernel takes no more; epoll will say when it does.
    pub blocked: bool,
    /// Delivery stopped at its bound: the ring may hold more records.
    more: bool,
    silence: Silence,
}

impl LaneLink {
    pub fn new(
        context: &Context,
        peer: ReplicaId,
        lane: Lane,
        session: Session,
        connection: Connection<Line>,
    ) -> io::Result<Self> {
        let capacity = context.capacity(lane);
        let Connection {
            socket: line,
            token,
        } = connection;
        context.poll.change(&line, token, Interest::Read)?;
        Ok(Self {
            peer,
            lane,
            line,
            token,
            interest: Interest::Read,
            writer: RingWriter::new(capacity, session.salt(context.me, lane)),
            reader: RingReader::new(capacity, session.salt(peer, lane)),
            outbox: Outbox::default(),
            inbox: Inbox::new(capacity),
            ring: vec![0; capacity.bytes()],
            blocked: false,
            more: false,
            silence: Silence::default(),
        })
    }

    /// Queues one record; `false` if the peer's ring has no room for it.
    pub fn write(&mut self, context: &Context, record: &[u8]) -> Result<bool, Loss> {
        let outbox = &mut self.outbox;
        if !self
            .writer
            .put(record, |offset, run| outbox.write(offset, run))
        {
            return Ok(false);
        }
        if self.outbox.unsent().len() >= EAGER_BYTES && !self.blocked {
            self.flush(context)?;
        }
        Ok(true)
    }

    /// Takes in what has arrived, delivers records up to the bound.
    pub fn serve(&mut self, context: &mut Context, scratch: &mut [u8]) -> Result<(), Loss> {
        let mut readable = context.poll.is_readable(self.token) || self.line.holds_input();
        if context.poll.is_writable(self.token) {
            self.blocked = false;
        }
        if !readable && !self.more {
            return Ok(());
        }
        let (mut share, mut read) = (Share::default(), 0);
        loop {
            let (reader, arrived) = (&mut self.reader, self.inbox.arrived());
            let ring = &self.ring[..];
            self.more = context.deliver(self.peer, self.lane, &mut share, |pool| {
                Ok(reader.take(ring, arrived, pool)?)
            })?;
            if self.more || !readable || read >= READ_BYTES_MAX {
                break;
            }
            (read, readable) = match self.read(scratch)? {
                Received::Some(count) => (read + count, true),
                Received::All(count) => (read + count, false),
            };
        }
        if let Some(head) = self.reader.credit() {
            self.outbox.credit(head);
        }
        if let Some(head) = self.inbox.take_credit() {
            self.writer.credit(head)?;
            context.report_room(self.peer, self.lane, &mut self.writer);
        }
        Ok(())
    }

    /// One read from the connection, into the ring directly or by way of `scratch`.
    fn read(&mut self, scratch: &mut [u8]) -> Result<Received, Loss> {
        if let Line {
            socket,
            tls: Some(tls),
        } = &mut self.line
        {
            let (inbox, ring, head) = (&mut self.inbox, &mut self.ring, self.reader.head());
            let (count, is_all) =
                tls.receive(socket, &mut |bytes| inbox.feed(bytes, ring, head))?;
            return Ok(if is_all {
                Received::All(count)
            } else {
                Received::Some(count)
            });
        }
        let window = self.inbox.window(&mut self.ring);
        let direct = window.len() >= DIRECT_BYTES_MIN;
        let into = if direct { window } else { &mut *scratch };
        let asked = into.len();
        let Some(count) = self.line.read(into)? else {
            return Ok(Received::All(0));
        };
        if direct {
            self.inbox.filled(count);
        } else {
            let head = self.reader.head();
            self.inbox.feed(&scratch[..count], &mut self.ring, head)?;
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
        while !self.blocked && (self.line.holds_output() || !self.outbox.unsent().is_empty()) {
            match self.line.write(self.outbox.unsent())? {
                Some(count) => self.outbox.advance(count),
                None => self.blocked = true,
            }
        }
        let interest = if self.blocked {
            Interest::ReadWrite
        } else {
            Interest::Read
        };
        if interest != self.interest {
            context.poll.change(&self.line, self.token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Asks the kernel whether the peer's host still answers, and whether its key is still trusted.
    pub fn check(&mut self, keys: Option<&Keys>, now: Instant) -> Result<(), Loss> {
        if let (Some(keys), Some(key)) = (keys, self.line.peer_key()) {
            if !keys.trusts(self.peer, key) {
                let words = format!("its key {key} is trusted no more");
                return Err(Loss::Refused(No::because(Refusal::Identity, words)));
            }
        }
        self.silence.check(&self.line.socket, now)
    }

    /// Sends the peer's writer its credit once more, which changes nothing, so that the peer's host has something to
    /// acknowledge.
    pub fn challenge(&mut self, context: &Context) -> Result<(), Loss> {
        self.outbox.credit(self.reader.head());
        self.flush(context)
    }

    /// Whether the peer's host has acknowledged something since then.
    pub fn has_answered(&self, challenged: Instant, now: Instant) -> io::Result<bool> {
        let is_sent = self.outbox.unsent().is_empty() && !self.line.holds_output();
        socket::has_answered(&self.line.socket, is_sent, challenged, now)
    }

    /// Whether `progress` would get on without the kernel's saying so.
    pub fn wants_progress(&self) -> bool {
        let has_output = self.line.holds_output() || !self.outbox.unsent().is_empty();
        self.more || self.line.holds_input() || (!self.blocked && has_output)
    }
}

/// How much one read brought.
enum Received {
    /// There may be more.
    Some(usize),
    /// That was all there is for now.
    All(usize),
}
