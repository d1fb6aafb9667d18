//! The guest's outputs, as frames: a stream of words to each client.
//!
//! They are real TCP segments, because outputs are compared as TCP. Three fields carry data for the
//! simulator where the comparison does not look:
//!
//! * Behind the segment, where Ethernet pads a frame: the name of the history that explains it.
//! * In the window: the place of its words. Places count from the first word of the connection.
//! * In the timestamp: the clock of the connection. It stands still, so that any difference shows.
//!
//! Every other segment leaves its checksum to others, as a guest's with offloads does. Which ones depends on the guest's
//! own sequence numbers, so the two guests seldom do it alike.

use etherparse::{
    Ipv4HeaderSlice, NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TcpSlice,
    TransportSlice,
};
use plover_types::{Frame, Offload};

/// Bytes of a word, the unit in which streams are checked.
pub const WORD_BYTES: usize = 4;

/// Where a frame's TCP header begins, and the place of the checksum in it.
const TCP_AT: u8 = 34;
const CHECKSUM: u8 = 16;

/// The sum that stands in place of a checksum until it is complete.
const PARTIAL: u16 = 0xabcd;

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
        leave_checksum(bytes, self.seq % 2 == 1)
    }

    /// The segment in a frame, as a client or an invariant reads it.
    pub fn decode(frame: &Frame) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame.ethernet()).ok()?;
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
            (packet.net, packet.transport)
        else {
            return None;
        };
        assert_checksum(frame, ip.header(), &tcp);
        let (clock, _) = stamps(&tcp)?;
        let history = *frame.ethernet().last_chunk()?;
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

/// The segment in `bytes`, with its checksum left to others if it `leaves` it.
pub fn leave_checksum(mut bytes: Vec<u8>, leaves: bool) -> Frame {
    if !leaves {
        return Frame(bytes);
    }
    let at = usize::from(TCP_AT + CHECKSUM);
    bytes[at..at + 2].copy_from_slice(&PARTIAL.to_be_bytes());
    Frame::new(Offload([1, 0, 0, 0, 0, 0, TCP_AT, 0, CHECKSUM, 0]), &bytes)
}

/// A checksum that is complete is right, and one that is not is as it was: otherwise the receiver would drop the segment.
fn assert_checksum(frame: &Frame, ip: Ipv4HeaderSlice<'_>, tcp: &TcpSlice<'_>) {
    let expected = match frame.offload().checksum_from() {
        Some(_) => PARTIAL,
        None => tcp
            .calc_checksum_ipv4(ip.source(), ip.destination())
            .expect("a short segment"),
    };
    assert_eq!(tcp.checksum(), expected, "the checksum of {frame:?}");
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
        for seq in [u32::MAX, u32::MAX - 1] {
            let spoken = Spoken {
                seq,
                ..spoken.clone()
            };
            assert_eq!(Spoken::decode(&spoken.encode()), Some(spoken));
        }
        assert_eq!(
            spoken.placed().collect::<Vec<_>>(),
            [(40, 1), (44, u32::MAX)]
        );
        assert_eq!(Spoken::decode(&Frame(vec![1, 2, 3])), None);
    }
}
