//! What clients ask the guest, as frames: TCP segments that acknowledge what the client has got.

use crate::spoken::{CLIENTS, GUEST, port};
use etherparse::{PacketBuilder, SlicedPacket, TcpSlice, TransportSlice};
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

impl Request {
    /// As a client sends it, with what it acknowledges.
    pub fn to_frame(self, ack: Option<u32>) -> Frame {
        let builder = PacketBuilder::ethernet2([4, 0, 0, 0, 0, self.client], [2; 6])
            .ipv4(CLIENTS, GUEST, 64)
            .tcp(port(self.client, self.connection), 80, 0, 1000);
        let builder = match ack {
            Some(ack) => builder.ack(ack),
            None => builder.syn(),
        };
        let mut bytes = Vec::new();
        builder
            .write(&mut bytes, &wire::encode(&self))
            .expect("a vector takes it");
        Frame(bytes)
    }

    /// What a frame asks, if it is a client's.
    pub fn of(frame: &[u8]) -> Option<Self> {
        wire::decode(segment(frame)?.payload()).ok()
    }

    /// What a frame acknowledges.
    pub fn acknowledges(frame: &[u8]) -> Option<u32> {
        segment(frame).map(|tcp| tcp.acknowledgment_number())
    }
}

fn segment(frame: &[u8]) -> Option<TcpSlice<'_>> {
    match SlicedPacket::from_ethernet(frame).ok()?.transport? {
        TransportSlice::Tcp(tcp) => Some(tcp),
        _ => None,
    }
}
