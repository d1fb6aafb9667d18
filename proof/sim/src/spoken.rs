//! What the guest sends, as frames: a stream of words to each client.
//!
//! Real TCP segments, since that is what outputs are compared by. The name of the history that
//! explains a segment travels in its timestamps, which the comparing passes over and which differ
//! between any two guests; so do these.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use plover_types::Frame;

/// Bytes of a word: the unit in which streams are looked at.
pub const WORD_BYTES: usize = 4;

/// The port of the stream to client 0.
const PORT: u16 = 1000;

const GUEST: [u8; 4] = [10, 0, 0, 2];
const CLIENTS: [u8; 4] = [10, 0, 0, 1];

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// Whose stream.
    pub client: u8,
    /// The place of its first byte, and of the next word's.
    pub place: u32,
    /// How many of the client's frames the guest has consumed, it says.
    pub heard: u32,
    /// The words.
    pub words: Vec<u32>,
    /// The name of the guest's history when it was sent.
    pub history: u64,
}

impl Spoken {
    /// As the guest sends it.
    pub fn encode(&self) -> Frame {
        let stamp = TcpOptionElement::Timestamp((self.history >> 32) as u32, self.history as u32);
        let data: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([2; 6], [1; 6])
            .ipv4(GUEST, CLIENTS, 64)
            .tcp(80, PORT + u16::from(self.client), self.place, 1000)
            .ack(self.heard)
            .options(&[stamp])
            .map(|builder| builder.write(&mut bytes, &data))
            .expect("one option fits")
            .expect("a vector takes it");
        Frame(bytes)
    }

    /// As a client or an invariant reads it.
    pub fn decode(frame: &Frame) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(&frame.0).ok()?;
        let (Some(NetSlice::Ipv4(_)), Some(TransportSlice::Tcp(tcp))) =
            (packet.net, packet.transport)
        else {
            return None;
        };
        let stamp = tcp.options_iterator().find_map(|option| match option {
            Ok(TcpOptionElement::Timestamp(high, low)) => Some((high, low)),
            _ => None,
        });
        let (high, low) = stamp?;
        let word = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        Some(Self {
            client: u8::try_from(tcp.destination_port().checked_sub(PORT)?).ok()?,
            place: tcp.sequence_number(),
            heard: tcp.acknowledgment_number(),
            words: tcp
                .payload()
                .chunks(WORD_BYTES)
                .map(word)
                .collect::<Option<_>>()?,
            history: u64::from(high) << 32 | u64::from(low),
        })
    }

    /// Its words, each with its place.
    pub fn placed(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let places = (self.place..).step_by(WORD_BYTES);
        places.zip(self.words.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_say_what_was_meant() {
        let spoken = Spoken {
            client: 3,
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
