//! Segments of TCP that are made here: such as either end of a connection might send, without data of a stream.

use crate::packet::{ETHERNET_BYTES, Route};
use core::net::IpAddr;
use etherparse::{PacketBuilder, TcpOptionElement};
use plover_types::Frame;

/// Bytes of the two addresses of an Ethernet header.
pub const MACS_BYTES: usize = 12;

/// How many routers a packet may pass.
const HOPS: u8 = 64;

/// A timestamp that is old, or out of any window.
const OLD_STAMP: TcpOptionElement = TcpOptionElement::Timestamp(1, 0);

/// The window of a segment whose receiver is to answer it and nothing else.
const WINDOW: u16 = 1024;

/// The Ethernet addresses of a frame, the receiver's first.
pub fn macs_of(frame: &Frame) -> Option<[u8; MACS_BYTES]> {
    frame.ethernet().first_chunk().copied()
}

/// The addresses of a frame that goes the other way.
pub fn macs_back(macs: [u8; MACS_BYTES]) -> [u8; MACS_BYTES] {
    let mut back = macs;
    back.rotate_left(MACS_BYTES / 2);
    back
}

/// A question for the number that a receiver expects next, to which it has acknowledged all bytes before `acked`: a byte
/// before that one, and an acknowledgement of all bytes before `ack`.
///
/// A receiver drops the old byte, and answers with the number that it expects (RFC 9293 §3.10.7.4), as it answers a keep-alive.
///
/// Returns `None` if the route is none of TCP.
pub fn question(route: Route, macs: [u8; MACS_BYTES], acked: u32, ack: u32) -> Option<Frame> {
    make(route, macs, acked.wrapping_sub(2), Some(ack), &[0])
}

/// A reset. A receiver takes it only if `seq` is the number that it expects (RFC 5961 §3.2).
///
/// Returns `None` if the route is none of TCP.
pub fn reset(route: Route, macs: [u8; MACS_BYTES], seq: u32) -> Option<Frame> {
    make(route, macs, seq, None, &[])
}

fn make(
    route: Route,
    macs: [u8; MACS_BYTES],
    seq: u32,
    ack: Option<u32>,
    data: &[u8],
) -> Option<Frame> {
    let (to, from) = macs.split_at(MACS_BYTES / 2);
    let ethernet = PacketBuilder::ethernet2(from.try_into().ok()?, to.try_into().ok()?);
    let (source, destination) = (route.source, route.destination);
    let ip = match (source.0, destination.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), HOPS),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), HOPS),
        _ => return None,
    };
    if !route.is_tcp() {
        return None;
    }
    let window = if ack.is_some() { WINDOW } else { 0 };
    let segment = ip.tcp(source.1, destination.1, seq, window);
    let segment = match ack {
        // Where timestamps are in use, a receiver may drop a segment without one, and answers one with data whose own
        // is old (RFC 7323 §3.2, §5.3). Where they are not, it passes over it.
        Some(ack) => segment.ack(ack).options(&[OLD_STAMP]).ok()?,
        None => segment.rst(),
    };
    let mut bytes = Vec::with_capacity(ETHERNET_BYTES + segment.size(data.len()));
    segment.write(&mut bytes, data).ok()?;
    Some(Frame(bytes).on_nic(route.nic()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, Segment};
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    const MACS: [u8; MACS_BYTES] = [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4];

    fn routes() -> [Route; 2] {
        ["10.0.0.2", "fd00::2"].map(|address| Route {
            protocol: 0x46,
            source: (address.parse().unwrap(), 80),
            destination: (address.replace('2', "9").parse().unwrap(), 4000),
        })
    }

    /// Everything is read back that was put in, and the checksums are right.
    #[test]
    fn made_segments_say_what_was_meant() {
        for route in routes() {
            let frames = [
                (question(route, MACS, 9, 9), Some(9), false, &[0][..]),
                (reset(route, MACS, 7), None, true, &[]),
            ];
            for (frame, ack, rst, payload) in frames {
                let frame = frame.unwrap();
                assert_eq!((macs_of(&frame), frame.nic()), (Some(MACS), 1));
                let expected = Segment {
                    seq: 7,
                    ack,
                    syn: None,
                    fin: false,
                    rst,
                    special: false,
                    payload,
                };
                assert_eq!(Packet::of(&frame), Packet::Segment(route, expected));
                let packet = SlicedPacket::from_ethernet(frame.ethernet()).unwrap();
                let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
                    panic!("{frame:?}");
                };
                let sum = match packet.net.unwrap() {
                    NetSlice::Ipv4(ip) => {
                        let ip = ip.header();
                        tcp.calc_checksum_ipv4(ip.source(), ip.destination())
                    }
                    NetSlice::Ipv6(ip) => {
                        let ip = ip.header();
                        tcp.calc_checksum_ipv6(ip.source(), ip.destination())
                    }
                };
                assert_eq!(sum, Ok(tcp.checksum()));
            }
        }
        assert_eq!(macs_back(MACS), [4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn only_tcp_has_segments() {
        let udp = Route {
            protocol: 17,
            ..routes()[0]
        };
        assert_eq!(reset(udp, MACS, 7), None);
    }
}
