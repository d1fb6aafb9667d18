//! One TCP segment, its numbers and stamps moved by distances.
//!
//! The checksum is mended, not made anew (RFC 1624): one that was wrong stays wrong, as it must.

use crate::options;
use crate::packet::{self, ETHERNET_BYTES, Route};
use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use plover_types::Frame;
use std::ops::Range;

/// Places within a TCP header.
const SEQ: usize = 4;
const ACK: usize = 8;
const CHECKSUM: usize = 16;
const OPTIONS: usize = 20;

/// Of the data of the option that carries timestamps (RFC 7323 §3.2).
const STAMPS_BYTES: usize = 8;

/// What is looked at of a segment before it is renumbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub route: Route,
    pub seq: u32,
    pub ack: Option<u32>,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    /// The value of its timestamp.
    pub stamp: Option<u32>,
    /// It carries a signature over its numbers.
    pub signed: bool,
    /// Where its header begins in the frame, and its bytes.
    header: (usize, usize),
}

impl Head {
    /// The head of a whole TCP segment; nothing of any other frame.
    pub fn of(frame: &Frame) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(&frame.0).ok()?;
        if packet.vlan.is_some() {
            return None;
        }
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
            return None;
        };
        let net = packet.net.as_ref()?;
        let (source, destination) = packet::addresses(net);
        let ip_bytes = match net {
            NetSlice::Ipv4(ip) => ip.header().slice().len(),
            NetSlice::Ipv6(ip) => ip.header().slice().len() + ip.extensions().slice().len(),
        };
        let begin = ETHERNET_BYTES + ip_bytes;
        let header = (begin, tcp.header_slice().len());
        // Where anything else lies between the two headers (IPsec), this is not the place.
        (frame.0.get(begin..begin + header.1)? == tcp.header_slice()).then(|| Self {
            route: Route {
                protocol: 6,
                source: (source, tcp.source_port()),
                destination: (destination, tcp.destination_port()),
            },
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            stamp: stamp(tcp),
            signed: options::walk(tcp.options())
                .any(|(kind, _)| options::SIGNATURES.contains(&kind)),
            header,
        })
    }

    /// Moves the numbers of what the guest sends, its own, and its `clock`.
    pub fn move_own(&self, frame: &mut Frame, by: u32, clock: u32) {
        self.rewrite(frame, |header| {
            add(header, SEQ..SEQ + 4, by);
            if let Some(place) = stamps(&header[OPTIONS..]) {
                let at = place.start + OPTIONS;
                add(header, at..at + 4, clock);
            }
        });
    }

    /// Moves the numbers of what the guest is sent, those that are its own, acknowledged, and the
    /// echo of its `clock`. An echo of zero is none, to most.
    pub fn move_acknowledged(&self, frame: &mut Frame, by: u32, clock: u32) {
        if self.ack.is_none() {
            return;
        }
        self.rewrite(frame, |header| {
            add(header, ACK..ACK + 4, by);
            if let Some(place) = stamps(&header[OPTIONS..]) {
                let echo = place.start + 4 + OPTIONS..place.end + OPTIONS;
                if header.get(echo.clone()).is_some_and(|echo| echo != [0; 4]) {
                    add(header, echo, clock);
                }
            }
            let found: Vec<_> = options::walk(&header[OPTIONS..]).collect();
            for (_, place) in found.into_iter().filter(|(kind, _)| *kind == options::SACK) {
                let place = place.start + OPTIONS..place.end + OPTIONS;
                let edges = place.clone().step_by(4);
                for edge in edges.filter(|edge| edge + 4 <= place.end) {
                    add(header, edge..edge + 4, by);
                }
            }
        });
    }

    fn rewrite(&self, frame: &mut Frame, change: impl FnOnce(&mut [u8])) {
        let (begin, bytes) = self.header;
        let Some(header) = frame.0.get_mut(begin..begin + bytes) else {
            return;
        };
        let old = sum(header);
        change(header);
        let new = sum(header);
        let check = u16::from_be_bytes([header[CHECKSUM], header[CHECKSUM + 1]]);
        // RFC 1624, equation 3, with all of the header for `m`.
        let mended = !fold(u32::from(!check) + u32::from(!old) + u32::from(new));
        header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&mended.to_be_bytes());
    }
}

/// Where in a header's options its two timestamps are: the sender's, and the one that it echoes.
fn stamps(options: &[u8]) -> Option<Range<usize>> {
    let stamps = |(kind, place): &(u8, Range<usize>)| {
        *kind == options::TIMESTAMPS && place.len() == STAMPS_BYTES
    };
    options::walk(options).find(stamps).map(|(_, place)| place)
}

fn stamp(tcp: &TcpSlice<'_>) -> Option<u32> {
    let bytes = tcp.options();
    let value = bytes.get(stamps(bytes)?)?.first_chunk()?;
    Some(u32::from_be_bytes(*value))
}

/// Adds to the number at this place, if it is one.
fn add(header: &mut [u8], place: Range<usize>, by: u32) {
    if let Some(bytes) = header.get_mut(place) {
        if let Ok(number) = <[u8; 4]>::try_from(&*bytes) {
            let moved = u32::from_be_bytes(number).wrapping_add(by);
            bytes.copy_from_slice(&moved.to_be_bytes());
        }
    }
}

/// The one's complement sum of a header's words, its checksum counted as nothing.
fn sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).enumerate();
    let counted = words.filter(|(word, _)| word * 2 != CHECKSUM);
    fold(
        counted
            .map(|(_, word)| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum(),
    )
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
