//! A remote client's connection: what it has sent, what it is to get, and what its socket is watched for.
//!
//! A client that does not read its answers is not read either, so its requests wait in its own
//! kernel. A connection holds at most [`INPUT_BYTES_MAX`] and a little over twice [`OUTPUT_BYTES_MAX`].

use crate::framed::{Framed, Took, Way};
use crate::wire::{self, FrameError, Reply};
use plover_fabric::keys::PublicKey;
use plover_types::Index;
use rustix::event::epoll::EventFlags;
use std::io;

/// Unread input at which a connection's socket is left alone, except that one frame always fits.
const INPUT_BYTES_MAX: usize = 256 << 10;
/// Unsent output at which a connection's requests wait.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// A client that reads the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// The next entry to send.
    pub next: Index,
    /// Whether the client wants future entries as well.
    pub follow: bool,
}

/// A remote client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub framed: Framed,
    /// The key that the client has shown, on a connection under TLS.
    pub key: Option<PublicKey>,
    pub interest: EventFlags,
    pub tail: Option<Tail>,
    /// The connection closes once its output is sent: the client has ended it, or has sent something
    /// that is no request.
    closing: bool,
    pub broken: bool,
}

impl Connection {
    pub fn new(way: Way, key: Option<PublicKey>) -> Self {
        Self {
            framed: Framed::new(way),
            key,
            interest: EventFlags::IN,
            tail: None,
            closing: false,
            broken: false,
        }
    }

    /// The next whole frame, unless the client has to read answers first; [`Self::done`] says that
    /// it has been dealt with.
    pub fn frame(&self) -> Result<Option<&[u8]>, FrameError> {
        if self.is_full() {
            return Ok(None);
        }
        if wire::is_client_hello(self.framed.unread()) {
            return Err(FrameError::Tls);
        }
        self.framed.frame()
    }

    /// The frame of `bytes` has been dealt with.
    pub fn done(&mut self, bytes: usize) {
        self.framed.done(bytes);
    }

    /// Queues a reply.
    pub fn reply(&mut self, reply: &Reply<'_>) {
        self.framed.put(reply);
    }

    /// Whether its client has to read answers before it gets more.
    pub fn is_full(&self) -> bool {
        self.framed.unsent() > OUTPUT_BYTES_MAX
    }

    /// Sends what waits, then closes.
    pub fn close(&mut self) {
        self.closing = true;
    }

    pub fn read(&mut self) {
        while !self.closing && self.has_room() {
            match self.framed.read() {
                Ok(Took::End) => self.closing = true,
                Ok(Took::All) => return,
                Ok(Took::Some) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// Whether more may be read. One whole frame fits, however long it says it is.
    fn has_room(&self) -> bool {
        let unread = self.framed.unread();
        let first = unread.first_chunk::<4>();
        let frame = first.map_or(0, |length| u32::from_le_bytes(*length) as usize + 8);
        unread.len() < INPUT_BYTES_MAX.max(frame.min(wire::FRAME_BYTES_MAX + 8))
    }

    /// Sends as much as the socket takes.
    pub fn write(&mut self) {
        self.broken |= self.framed.write().is_err();
    }

    pub fn is_over(&self) -> bool {
        self.broken || (self.closing && self.framed.is_sent())
    }

    pub fn wanted(&self) -> EventFlags {
        let mut wanted = EventFlags::empty();
        wanted.set(
            EventFlags::IN,
            self.has_room() && !self.closing && !self.is_full(),
        );
        wanted.set(EventFlags::OUT, !self.framed.is_sent());
        wanted
    }
}
