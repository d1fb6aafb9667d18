//! Requests of clients, as frames: TCP segments that acknowledge the replies received so far.

use crate::spoken::{CLIENTS, GUEST, leave_checksum, port, stamps};
use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TcpSlice, TransportSlice};
use plover_types::{Frame, wire};
use serde::{Deserialize, Serialize};

/// A client's request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The client.
    pub client: u8,
    /// Counts its requests; a repeated request keeps its number.
    pub request: u32,
    /// The frame's number: every frame has another.
    pub number: u64,
    /// The connection that carries it.
    pub connection: u8,
    /// The name of the newest history whose words it acknowledges.
    pub heard: Option<u64>,
}

/// The acknowledgement in a client's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The sequence number that it expects next.
    pub ack: u32,
    /// The timestamp that it echoes.
    pub clock: u32,
}

impl Request {
    /// The frame that the client sends. The first segment of a connection acknowledges nothing.
    pub fn to_frame(self, answered: Option<Answered>) -> Frame {
        let builder = PacketBuilder::ethernet2([4, 0, 0, 0, 0, self.client], [2; 6])
            .ipv4(CLIENTS, GUEST, 64)
            .tcp(port(self.client, self.connection), 80, 0, 1000);
        let builder = match answered {
            Some(answered) => builder.ack(answered.ack),
            None => builder.syn(),
        };
        let echo = answered.map_or(0, |answered| answered.clock);
        let mut bytes = Vec::new();
        builder
            .options(&[TcpOptionElement::Timestamp(0, echo)])
            .map(|builder| builder.write(&mut bytes, &wire::encode(&self)))
            .expect("one option fits")
            .expect("a vector takes it");
        // Some clients are virtual machines of the same host.
        leave_checksum(bytes, self.client % 2 == 1)
    }

    /// The request in a frame, if it is a client's.
    pub fn of(frame: &Frame) -> Option<Self> {
        wire::decode(segment(frame)?.payload()).ok()
    }

    /// The acknowledgement in a frame.
    pub fn answers(frame: &Frame) -> Option<Answered> {
        let tcp = segment(frame)?;
        Some(Answered {
            ack: tcp.acknowledgment_number(),
            clock: stamps(&tcp)?.1,
        })
    }
}

fn segment(frame: &Frame) -> Option<TcpSlice<'_>> {
    match SlicedPacket::from_ethernet(frame.ethernet())
        .ok()?
        .transport?
    {
        TransportSlice::Tcp(tcp) => Some(tcp),
        _ => None,
    }
}
