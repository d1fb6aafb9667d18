//! Remote clients: connections that are read, answered and written without ever blocking.
//!
//! ```text
//!   socket ─► input ─► frame ─► (server) ─► output ─► socket
//!                ▲                             │
//!                └─ not read while the output is long, or the log refuses ◄┘
//! ```
//!
//! A client that does not read its answers is not read either, so its requests wait in its own
//! kernel; each connection holds at most [`INPUT_BYTES_MAX`] and a little over
//! [`OUTPUT_BYTES_MAX`].

use crate::address::{Address, Listener};
use crate::wire::{self, FrameError, Reply};
use plover_types::Index;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, acceptfrom_with, recv, send, sockopt};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use tracing::debug;

/// Unread input that a connection may hold before its socket is left alone, except that one
/// frame always fits.
const INPUT_BYTES_MAX: usize = 256 << 10;
/// Unsent output at which a connection's requests wait.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Connections at a time. Whoever comes after that is turned away.
const CONNECTIONS_MAX: usize = 4096;
/// One read takes in up to this much.
const READ_BYTES: usize = 64 << 10;
const LISTENER: u64 = u64::MAX;

/// Names a connection, also after its place has been given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    place: u32,
    generation: u32,
}

impl ConnectionId {
    pub fn place(self) -> u32 {
        self.place
    }
}

/// A client that follows the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// The next entry to send.
    pub next: Index,
    pub follow: bool,
}

/// A remote client.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    /// Up to where `input` has been dealt with.
    taken: usize,
    output: Vec<u8>,
    /// Up to where `output` has been sent.
    sent: usize,
    interest: EventFlags,
    pub tail: Option<Tail>,
    /// Nothing more will come from it, or make sense.
    closing: bool,
    broken: bool,
}

impl Connection {
    /// The next whole frame; [`Self::done`] says that it has been dealt with.
    pub fn frame(&self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.input[self.taken..];
        if self.output.len() - self.sent > OUTPUT_BYTES_MAX {
            return Ok(None);
        }
        Ok(wire::whole_frame(rest)?.map(|bytes| &rest[..bytes]))
    }

    /// The frame of `bytes` has been dealt with.
    pub fn done(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Queues a reply.
    pub fn reply(&mut self, reply: &Reply<'_>) {
        wire::put(reply, &mut self.output);
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Sends what waits, then closes.
    pub fn close(&mut self) {
        self.closing = true;
    }

    fn read(&mut self) {
        while !self.closing && self.input.len() - self.taken < self.input_bytes_max() {
            self.input.reserve(READ_BYTES);
            let room = self.input.capacity() - self.input.len();
            let buffer = spare_capacity(&mut self.input);
            let result = recv(&self.socket, buffer, RecvFlags::empty());
            match result {
                Ok((_, 0)) => self.closing = true,
                Ok((_, count)) if count < room => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.broken = true,
            }
            if self.broken {
                return;
            }
        }
    }

    /// Room for one whole frame, however long it says it is.
    fn input_bytes_max(&self) -> usize {
        let rest = &self.input[self.taken..];
        let first = rest.first_chunk::<4>();
        let frame = first.map_or(0, |length| u32::from_le_bytes(*length) as usize + 8);
        INPUT_BYTES_MAX.max(frame.min(wire::FRAME_BYTES_MAX + 8))
    }

    /// Sends as much as the socket takes.
    pub fn write(&mut self) {
        while self.sent < self.output.len() && !self.broken {
            match send(&self.socket, &self.output[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.broken = true,
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Gives back the room of frames that have been dealt with.
    fn tidy(&mut self) {
        self.input.drain(..self.taken);
        self.taken = 0;
    }

    fn is_over(&self) -> bool {
        self.broken || (self.closing && self.unsent() == 0)
    }

    fn wanted(&self) -> EventFlags {
        let room = self.input.len() - self.taken < self.input_bytes_max();
        let mut wanted = EventFlags::empty();
        if room && !self.closing && self.unsent() <= OUTPUT_BYTES_MAX {
            wanted |= EventFlags::IN;
        }
        if self.unsent() > 0 {
            wanted |= EventFlags::OUT;
        }
        wanted
    }
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    connection: Option<Connection>,
}

/// All remote clients.
#[derive(Debug)]
pub(crate) struct Door {
    listener: Listener,
    pub epoll: OwnedFd,
    places: Vec<Place>,
    /// Places whose connections may have frames or want to send.
    pub busy: Vec<u32>,
    count: usize,
    pub rejected: u64,
}

impl Door {
    pub fn open(listener: Listener) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener.socket, data, EventFlags::IN)?;
        Ok(Self {
            listener,
            epoll,
            places: Vec::new(),
            busy: Vec::new(),
            count: 0,
            rejected: 0,
        })
    }

    pub fn address(&self) -> &Address {
        &self.listener.address
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Reads what has come in; connections with something to do are `busy` afterwards.
    pub fn progress(&mut self) {
        let mut events = [MaybeUninit::uninit(); 64];
        let none = rustix::time::Timespec::default();
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&none)) else {
            return;
        };
        for event in events {
            let data = event.data.u64();
            if data == LISTENER {
                self.accept();
                continue;
            }
            let place = data as u32;
            if let Some(connection) = &mut self.places[place as usize].connection {
                let flags = event.flags;
                if flags.intersects(EventFlags::ERR | EventFlags::HUP)
                    && !flags.contains(EventFlags::IN)
                {
                    connection.broken = true;
                }
                if flags.contains(EventFlags::IN) {
                    connection.read();
                }
                self.busy.push(place);
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for _ in 0..64 {
            let socket = match acceptfrom_with(&self.listener.socket, flags) {
                Ok((socket, _)) => socket,
                Err(Errno::AGAIN) => return,
                Err(error) => return debug!(%error, "accept failed"),
            };
            if self.count == CONNECTIONS_MAX {
                self.rejected += 1;
                continue;
            }
            if matches!(self.listener.address, Address::Tcp(_)) {
                // Failing costs latency only.
                let _ = sockopt::set_tcp_nodelay(&socket, true);
            }
            if let Err(error) = self.welcome(socket) {
                debug!(%error, "a connection failed at once");
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd) -> Result<(), Errno> {
        let free = self.places.iter().position(|it| it.connection.is_none());
        let place = free.unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        let data = EventData::new_u64(place as u64);
        epoll::add(&self.epoll, &socket, data, EventFlags::IN)?;
        self.places[place].generation += 1;
        self.places[place].connection = Some(Connection {
            socket,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            sent: 0,
            interest: EventFlags::IN,
            tail: None,
            closing: false,
            broken: false,
        });
        self.count += 1;
        Ok(())
    }

    /// Takes the connection at `place` out, so that the server can work on it and on itself;
    /// [`Self::put_back`] follows.
    pub fn take_out(&mut self, place: u32) -> Option<(ConnectionId, Connection)> {
        let it = &mut self.places[place as usize];
        let id = ConnectionId {
            place,
            generation: it.generation,
        };
        it.connection.take().map(|connection| (id, connection))
    }

    /// Puts a connection back, and sends what it has to send. It stays `busy` if there are
    /// frames that it could not take on yet.
    pub fn put_back(&mut self, id: ConnectionId, mut connection: Connection) {
        connection.tidy();
        connection.write();
        if connection.is_over() {
            self.count -= 1;
            // Closing the socket takes it out of the epoll set.
            return;
        }
        let wanted = connection.wanted();
        if wanted != connection.interest {
            let data = EventData::new_u64(u64::from(id.place));
            match epoll::modify(&self.epoll, &connection.socket, data, wanted) {
                Ok(()) => connection.interest = wanted,
                Err(error) => debug!(%error, "a connection cannot be watched"),
            }
        }
        self.places[id.place as usize].connection = Some(connection);
    }

    /// Answers a request of a connection, if it is still there; sent at the end of the turn.
    pub fn reply(&mut self, id: ConnectionId, reply: &Reply<'_>) {
        let place = &mut self.places[id.place as usize];
        if let Some(connection) = &mut place.connection {
            if place.generation == id.generation {
                connection.reply(reply);
                self.busy.push(id.place);
            }
        }
    }

    /// The places of connections that follow the log.
    pub fn tails(&self, places: &mut Vec<u32>) {
        let follows = |place: &Place| {
            place
                .connection
                .as_ref()
                .is_some_and(|it| it.tail.is_some())
        };
        let found = self.places.iter().enumerate().filter(|(_, it)| follows(it));
        places.extend(found.map(|(place, _)| place as u32));
    }

    /// Sends what all of them have to send, as far as that goes.
    pub fn flush(&mut self) {
        while let Some(place) = self.busy.pop() {
            if let Some((id, connection)) = self.take_out(place) {
                self.put_back(id, connection);
            }
        }
    }
}
