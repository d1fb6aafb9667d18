//! The header of one TCP segment, and moving its numbers by a distance.
//!
//! The checksum is updated by the difference (RFC 1624), not computed anew: a checksum that was wrong
//! stays wrong, so that the receiver still notices. A checksum that is left to the frame's receiver
//! ([`plover_types::Offload`]) stays as it is: what it holds so far does not depend on the header.

use crate::options;
use crate::packet::{self, ETHERNET_BYTES, Route};
use etherparse::{NetSlice, TcpSlice, TransportSlice};
use plover_types::Frame;
use std::ops::Range;

/// Places within a TCP header.
const SEQ: usize = 4;
const ACK: usize = 8;
const CHECKSUM: usize = 16;
const OPTIONS: usize = 20;

/// Bytes of the timestamps option after its kind and length (RFC 7323 §3.2).
const STAMPS_BYTES: usize = 8;

/// The parts of a TCP header that sequence-number translation reads, and the header's place in its
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHead {
    /// The connection, in this segment's direction.
    pub route: Route,
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgement number, if the ACK flag is set.
    pub ack: Option<u32>,
    /// The SYN flag.
    pub syn: bool,
    /// The FIN flag.
    pub fin: bool,
    /// The RST flag.
    pub rst: bool,
    /// The sender's timestamp, if the segment has one.
    pub stamp: Option<u32>,
    /// The segment carries a signature over its numbers.
    pub signed: bool,
    /// Where the header begins in the frame, and its length in bytes.
    header: (usize, usize),
}

impl TcpHead {
    /// The header of a whole TCP segment; `None` for any other frame.
    pub fn of(frame: &Frame) -> Option<Self> {
        let (route, net, TransportSlice::Tcp(tcp)) = packet::parse(frame.ethernet(), frame.nic())?
        else {
            return None;
        };
        let ip_bytes = match net {
            NetSlice::Ipv4(ip) => ip.header().slice().len(),
            NetSlice::Ipv6(ip) => ip.header().slice().len() + ip.extensions().slice().len(),
        };
        let begin = ETHERNET_BYTES + ip_bytes;
        let header = (begin, tcp.header_slice().len());
        // Where anything else lies between the two headers (IPsec), this is not the place.
        (frame.ethernet().get(begin..begin + header.1)? == tcp.header_slice()).then(|| Self {
            route,
            seq: tcp.sequence_number(),
            ack: packet::acknowledged(&tcp),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            stamp: stamp(&tcp),
            signed: options::walk(tcp.options())
                .any(|(kind, _)| options::SIGNATURES.contains(&kind)),
            header,
        })
    }

    /// Adds `by` to the sequence number and `clock` to the sender's timestamp.
    pub fn move_sent(&self, frame: &mut Frame, by: u32, clock: u32) {
        self.rewrite(frame, |header| {
            add(header, SEQ..SEQ + 4, by);
            if let Some(place) = stamps(&header[OPTIONS..]) {
                let at = place.start + OPTIONS;
                add(header, at..at + 4, clock);
            }
        });
    }

    /// Adds `by` to the acknowledgement number and to the edges of selective acknowledgements, and
    /// `clock` to the echoed timestamp. An echo of 0 stays: most hosts send it for "no echo".
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
        let is_partial = frame.offload().checksum_from() == Some(begin);
        let Some(header) = frame.ethernet_mut().get_mut(begin..begin + bytes) else {
            return;
        };
        let old = sum(header);
        change(header);
        if is_partial {
            return;
        }
        let new = sum(header);
        let check = u16::from_be_bytes([header[CHECKSUM], header[CHECKSUM + 1]]);
        // RFC 1624, equation 3, with all of the header for `m`.
        let mended = !fold(u32::from(!check) + u32::from(!old) + u32::from(new));
        header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&mended.to_be_bytes());
    }
}

/// Where the two timestamps lie within the options: the sender's, then the echoed one.
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

/// Adds `by` to the 32-bit number at `place`; does nothing if `place` is not four bytes of the header.
fn add(header: &mut [u8], place: Range<usize>, by: u32) {
    if let Some(bytes) = header.get_mut(place) {
        if let Ok(number) = <[u8; 4]>::try_from(&*bytes) {
            let moved = u32::from_be_bytes(number).wrapping_add(by);
            bytes.copy_from_slice(&moved.to_be_bytes());
        }
    }
}

/// The one's complement sum of a header's words, with the checksum left out.
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
