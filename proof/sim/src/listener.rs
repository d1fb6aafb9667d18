//! A client that only listens, on a stream of which the guest calls most words clean (docs/decisions/0081), and segments without
//! words: those that a leader makes to end such a connection, and the answers to them.

use crate::spoken::{CLIENTS, GUEST, Spoken, port};
use etherparse::PacketBuilder;
use plover_packets::{MACS_BYTES, Packet, Route, reset};
use plover_types::Frame;

/// The client of the stream.
pub const CLIENT: u8 = 210;

/// The guest's port.
const GUEST_PORT: u16 = 80;

/// The client's frames begin with the guest's address.
const MACS: [u8; MACS_BYTES] = [2, 2, 2, 2, 2, 2, 4, 0, 0, 0, 0, CLIENT];

/// A segment without words, in either direction: at most an old byte.
#[derive(Clone, Copy, Debug)]
pub struct Bare {
    /// The client's connection.
    pub connection: u8,
    /// Its sequence number.
    pub seq: u32,
    /// Its acknowledgement number.
    pub ack: Option<u32>,
    /// It resets the connection.
    pub rst: bool,
}

impl Bare {
    /// The segment in a frame, if it is one that no guest has sent.
    pub fn of(frame: &Frame) -> Option<Self> {
        let Packet::Segment(route, segment) = Packet::of(frame) else {
            return None;
        };
        // A guest's has the name of a history behind it.
        let end = segment.payload.as_ptr_range().end;
        let is_made = end == frame.ethernet().as_ptr_range().end;
        if segment.syn.is_some() || segment.payload.len() > 1 || !is_made {
            return None;
        }
        let ports = [route.source.1, route.destination.1];
        let is_of = |connection: &u8| ports.contains(&port(CLIENT, *connection));
        Some(Self {
            connection: (0..u8::MAX).find(is_of)?,
            seq: segment.seq,
            ack: segment.ack,
            rst: segment.rst,
        })
    }
}

/// Whether TCP answers a segment without data by the number that it expects: it is an old one.
pub fn is_old(seq: u32, expected: u32) -> bool {
    seq.wrapping_sub(expected) > u32::MAX / 2
}

/// The client's end. It has said nothing, so its numbers begin and end with 0.
#[derive(Debug, Default)]
pub struct Listener {
    connection: Option<u8>,
    is_open: bool,
    /// The number that it expects next.
    next: u32,
    segments: u64,
    /// Its connection was reset since this was last asked.
    was_reset: bool,
}

impl Listener {
    /// The way from the client to the guest.
    fn route(&self) -> Option<Route> {
        let connection = self.connection?;
        Some(Route {
            protocol: 6,
            source: (CLIENTS.into(), port(CLIENT, connection)),
            destination: (GUEST.into(), GUEST_PORT),
        })
    }

    /// Takes a segment of the guest. Every fourth is answered.
    pub fn hear(&mut self, spoken: &Spoken) -> Option<Frame> {
        if spoken.opens && Some(spoken.connection) > self.connection {
            self.connection = Some(spoken.connection);
            self.is_open = true;
            self.next = spoken.end();
            return None;
        }
        if Some(spoken.connection) != self.connection {
            return None;
        }
        if spoken.resets {
            self.is_open = false;
            return None;
        }
        if self.is_open && spoken.seq == self.next {
            self.next = spoken.end();
        }
        self.segments += 1;
        match self.is_open && self.segments % 4 > 0 {
            true => None,
            false => self.answer(),
        }
    }

    /// Takes a segment of a leader's own.
    pub fn hear_bare(&mut self, bare: &Bare) -> Option<Frame> {
        if Some(bare.connection) != self.connection {
            return None;
        }
        if bare.rst {
            if self.is_open && bare.seq == self.next {
                self.is_open = false;
                self.was_reset = true;
            }
            return None;
        }
        match self.is_open && !is_old(bare.seq, self.next) {
            true => None,
            false => self.answer(),
        }
    }

    fn answer(&self) -> Option<Frame> {
        match self.is_open {
            true => self.acknowledges(),
            false => reset(self.route()?, MACS, 0),
        }
    }

    fn acknowledges(&self) -> Option<Frame> {
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([4, 0, 0, 0, 0, CLIENT], [2; 6])
            .ipv4(CLIENTS, GUEST, 64)
            .tcp(port(CLIENT, self.connection?), GUEST_PORT, 0, 1000)
            .ack(self.next)
            .write(&mut bytes, &[])
            .expect("a vector takes it");
        Some(Frame(bytes))
    }

    /// Whether its connection was reset since this was last asked.
    pub fn take_reset(&mut self) -> bool {
        std::mem::take(&mut self.was_reset)
    }
}
