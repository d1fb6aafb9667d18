//! Clean replies (docs/decisions/0065): datagrams in which a guest says only what it would have said at its last cut, and
//! a stream of such words ([`crate::listener`]).
//!
//! Each names the history that explains it: of a clean one the guest's history at the cut, of any other its history now.
//! So `external_consistency` finds a clean one that leaves before another replica holds that cut, and one that
//! is not clean and is taken for one that is.

use crate::listener;
use crate::spoken::{CLIENTS, GUEST, Spoken, port};
use crate::streams::Stream;
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use plover_types::{About, Frame, Reply, SyncNo, fnv1a};
use serde::{Deserialize, Serialize};

/// The guest's port, and its client's.
const PORTS: (u16, u16) = (53, 5000);

/// The client in whose name the checks look at datagrams: none that has a stream.
const CLIENT: u8 = 251;

/// How often a guest of this seed sends such a datagram at a tick, and words of a clean stream; never in most seeds.
pub fn chances_of(seed: u64) -> (f64, f64) {
    let mut rng = Stream::Clean.of(seed);
    match rng.chance(0.15) {
        true => (rng.pick(&[0.1, 0.5]), rng.pick(&[0.0, 0.3, 0.8])),
        false => (0.0, 0.0),
    }
}

/// The guest's word about so many bytes of the stream to [`listener::CLIENT`].
pub fn word_of_stream(connection: u8, at: u32, bytes: u32, cut: u64) -> Reply {
    Reply {
        clean_as_of: Some(SyncNo(cut)),
        guest: (Some(std::net::IpAddr::from(GUEST)), 80),
        client: (
            std::net::IpAddr::from(CLIENTS),
            port(listener::CLIENT, connection),
        ),
        protocol: 6,
        bytes,
        about: About::Stream { at: at.into() },
    }
}

/// The guest as it was at its last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The cut's number.
    pub cut: u64,
    /// Where the guest stood.
    pub history: u64,
    /// How many datagrams it has sent since.
    pub sent: u64,
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The cut before it.
    pub cut: u64,
    /// Its number since that cut, or any number if it is not clean.
    pub number: u64,
    /// The history that explains it.
    pub history: u64,
}

impl Datagram {
    fn payload(&self) -> [u8; 16] {
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&self.cut.to_le_bytes());
        payload[8..].copy_from_slice(&self.number.to_le_bytes());
        payload
    }

    /// The frame that the guest sends. The history stands behind the packet, where two guests' frames are not compared.
    pub fn encode(&self) -> Frame {
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([2; 6], [1; 6])
            .ipv4(GUEST, CLIENTS, 64)
            .udp(PORTS.0, PORTS.1)
            .write(&mut bytes, &self.payload())
            .expect("a vector takes it");
        bytes.extend(self.history.to_le_bytes());
        Frame(bytes)
    }

    /// The datagram in a frame, if it is one.
    pub fn decode(frame: &Frame) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame.ethernet()).ok()?;
        let Some(TransportSlice::Udp(udp)) = packet.transport else {
            return None;
        };
        let number = |at: usize| {
            let bytes = udp.payload().get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        Some(Self {
            cut: number(0)?,
            number: number(8)?,
            history: u64::from_le_bytes(*frame.ethernet().last_chunk()?),
        })
    }

    /// The guest's word about it.
    pub fn word(&self, is_clean: bool) -> Reply {
        let payload = self.payload();
        Reply {
            clean_as_of: is_clean.then_some(SyncNo(self.cut)),
            guest: (None, PORTS.0),
            client: (std::net::IpAddr::from(CLIENTS), PORTS.1),
            protocol: 17,
            bytes: payload.len() as u32,
            about: About::Datagram {
                hash: fnv1a(&payload),
            },
        }
    }

    /// Its form for the checks: without words of a stream, so that only its history explains it.
    pub fn as_spoken(&self) -> Spoken {
        Spoken {
            client: CLIENT,
            connection: 0,
            opens: false,
            resets: false,
            seq: 0,
            clock: 0,
            place: 0,
            heard: 0,
            words: Vec::new(),
            history: self.history,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_say_what_was_meant() {
        let sent = Datagram {
            cut: 3,
            number: u64::MAX,
            history: 0x0123_4567_89ab_cdef,
        };
        assert_eq!(Datagram::decode(&sent.encode()), Some(sent));
        assert_eq!(Datagram::decode(&Frame(vec![0; 60])), None);
    }
}
