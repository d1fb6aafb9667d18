//! What clients ask the guest, as frames: TCP segments that acknowledge what the client has got.

use crate::spoken::{CLIENTS, GUEST, port, stamps};
use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TcpSlice, TransportSlice};
use plover_types::{Frame, wire};
use serde::{Deserialize, Serialize};

/// What a client asks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Which client.
    pub client: u8,
    /// Its how-manieth request; repeated ones keep the number.
    pub request: u32,
    /// The frame's number: every frame has another.
    pub number: u64,
    /// On which of its connections.
    pub connection: u8,
    /// The name of the newest history whose words it acknowledges.
    pub heard: Option<u64>,
}

/// What a client answers in a segment of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The number of what comes next.
    pub ack: u32,
    /// The clock that it echoes.
    pub clock: u32,
}

impl Request {
    /// As a client sends it; the first segment of a connection answers nothing.
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
        Frame(bytes)
    }

    /// What a frame asks, if it is a client's.
    pub fn of(frame: &[u8]) -> Option<Self> {
        wire::decode(segment(frame)?.payload()).ok()
    }

    /// What a frame answers.
    pub fn answers(frame: &[u8]) -> Option<Answered> {
        let tcp = segment(frame)?;
        Some(Answered {
            ack: tcp.acknowledgment_number(),
            clock: stamps(&tcp)?.1,
        })
    }
}

fn segment(frame: &[u8]) -> Option<TcpSlice<'_>> {
    match SlicedPacket::from_ethernet(frame).ok()?.transport? {
        TransportSlice::Tcp(tcp) => Some(tcp),
        _ => None,
    }
}
