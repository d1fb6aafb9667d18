//! The guest's outputs, as frames: a stream of words to each client.
//!
//! They are real TCP segments, because outputs are compared as TCP. Three fields carry data for the
//! simulator where the comparison does not look:
//!
//! * Behind the segment, where Ethernet pads a frame: the name of the history that explains it.
//! * In the window: the place of its words. Places count from the first word of the connection.
//! * In the timestamp: the clock of the connection. It stands still, so that any difference shows.

use etherparse::{
    NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TcpSlice, TransportSlice,
};
use plover_types::Frame;

/// Bytes of a word, the unit in which streams are checked.
pub const WORD_BYTES: usize = 4;

/// The port of client 0's first connection; those of its next ones lie 256 apart.
const PORT: u16 = 1000;

/// Connections that a client opens one after the other, at most.
pub const CONNECTIONS_MAX: u8 = 250;

/// The addresses of the guest and of all its clients.
pub const GUEST: [u8; 4] = [10, 0, 0, 2];
/// See [`GUEST`].
pub const CLIENTS: [u8; 4] = [10, 0, 0, 1];

/// The port from which a client opens a connection.
pub fn port(client: u8, connection: u8) -> u16 {
    PORT + u16::from(connection) * 256 + u16::from(client)
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// The client of the stream.
    pub client: u8,
    /// The client's connection that carries it.
    pub connection: u8,
    /// It opens the connection.
    pub opens: bool,
    /// It resets the connection, which the guest does not know.
    pub resets: bool,
    /// The sequence number that carries it.
    pub seq: u32,
    /// The connection's clock.
    pub clock: u32,
    /// The place of its first byte, and of the next word's: modulo 2^18.
    pub place: u32,
    /// How many of the client's frames the guest reports to have consumed.
    pub heard: u32,
    /// The words.
    pub words: Vec<u32>,
    /// The name of the guest's history when it was sent.
    pub history: u64,
}

impl Spoken {
    /// The frame that the guest sends.
    pub fn encode(&self) -> Frame {
        let stamp = TcpOptionElement::Timestamp(self.clock, 0);
        let data: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [1; 6])
            .ipv4(GUEST, CLIENTS, 64)
            .tcp(
                80,
                port(self.client, self.connection),
                self.seq,
                (self.place / WORD_BYTES as u32) as u16,
            )
            .ack(self.heard);
        let builder = if self.opens { builder.syn() } else { builder };
        let builder = if self.resets { builder.rst() } else { builder };
        builder
            .options(&[stamp])
            .map(|builder| builder.write(&mut bytes, &data))
            .expect("one option fits")
            .expect("a vector takes it");
        bytes.extend(self.history.to_le_bytes());
        Frame(bytes)
    }

    /// The segment in a frame, as a client or an invariant reads it.
    pub fn decode(frame: &Frame) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(&frame.0).ok()?;
        let (Some(NetSlice::Ipv4(_)), Some(TransportSlice::Tcp(tcp))) =
            (packet.net, packet.transport)
        else {
            return None;
        };
        let (clock, _) = stamps(&tcp)?;
        let history = *frame.0.last_chunk()?;
        let word = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        let port = tcp.destination_port().checked_sub(PORT)?;
        Some(Self {
            client: port as u8,
            connection: (port >> 8) as u8,
            opens: tcp.syn(),
            resets: tcp.rst(),
            seq: tcp.sequence_number(),
            clock,
            place: u32::from(tcp.window_size()) * WORD_BYTES as u32,
            heard: tcp.acknowledgment_number(),
            words: tcp
                .payload()
                .chunks(WORD_BYTES)
                .map(word)
                .collect::<Option<_>>()?,
            history: u64::from_le_bytes(history),
        })
    }

    /// The sequence number of the next byte after it.
    pub fn end(&self) -> u32 {
        let bytes = self.words.len() * WORD_BYTES;
        self.seq.wrapping_add(bytes as u32 + u32::from(self.opens))
    }

    /// A number that is the same for all segments of a connection: its first sequence number.
    pub fn opened_at(&self) -> u32 {
        let first = self.seq.wrapping_sub(u32::from(!self.opens));
        first.wrapping_sub(self.place)
    }

    /// Its words, each with its place.
    pub fn placed(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let places = (self.place..).step_by(WORD_BYTES);
        places.zip(self.words.iter().copied())
    }
}

/// The timestamps of a segment: the sender's, and the one that it echoes.
pub fn stamps(tcp: &TcpSlice<'_>) -> Option<(u32, u32)> {
    tcp.options_iterator().find_map(|option| match option {
        Ok(TcpOptionElement::Timestamp(own, echo)) => Some((own, echo)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_say_what_was_meant() {
        let spoken = Spoken {
            client: 3,
            connection: CONNECTIONS_MAX,
            opens: true,
            resets: false,
            seq: u32::MAX,
            clock: 0x1234_5678,
            place: 40,
            heard: 7,
            words: vec![1, u32::MAX],
            history: 0x0123_4567_89ab_cdef,
        };
        assert_eq!(Spoken::decode(&spoken.encode()), Some(spoken.clone()));
        assert_eq!(
            spoken.placed().collect::<Vec<_>>(),
            [(40, 1), (44, u32::MAX)]
        );
        assert_eq!(Spoken::decode(&Frame(vec![1, 2, 3])), None);
    }
}
