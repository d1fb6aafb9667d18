//! What of a frame counts when the outputs of two guests are compared.
//!
//! | frame | compared | passed over |
//! |---|---|---|
//! | TCP | payload and FIN by their place in the stream, RST with its numbers; the acknowledgement number as a bound | segmentation, window, options (timestamps, SACK), PSH, ECN, checksum, IP header but the addresses |
//! | TCP with SYN or URG | nothing: it waits for a sync | |
//! | UDP, ICMP, ICMPv6 | ports or type, and all that follows | IP header but the addresses |
//! | any other: ARP, fragments, VLAN tags, other protocols | the whole frame | |
//!
//! A SYN carries the initial sequence number, which each guest draws by itself; until a sync has
//! made the two equal, nothing on that connection can match. Urgent data is out of the stream's
//! order, and next to nobody uses it.

use core::net::IpAddr;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use plover_types::Frame;
use std::fmt;

/// The bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;

/// Where a packet of the guest goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Route {
    pub protocol: u8,
    pub source: (IpAddr, u16),
    pub destination: (IpAddr, u16),
}

/// What is compared with each other, in its own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FlowKey {
    Ip(Route),
    /// By the Ethernet header: addresses and type.
    Link([u8; ETHERNET_BYTES]),
}

/// One frame of a guest, as the comparing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    Segment(Route, Segment<'a>),
    Datagram(FlowKey, &'a [u8]),
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub seq: u32,
    /// If the ACK flag is set.
    pub ack: Option<u32>,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub urgent: bool,
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Any bytes are some packet: what cannot be read as IP is compared whole.
    pub fn of(frame: &'a Frame) -> Self {
        Self::of_ip(&frame.0).unwrap_or_else(|| {
            let mut header = [0; ETHERNET_BYTES];
            let bytes = frame.0.len().min(ETHERNET_BYTES);
            header[..bytes].copy_from_slice(&frame.0[..bytes]);
            Self::Datagram(FlowKey::Link(header), &frame.0)
        })
    }

    fn of_ip(bytes: &'a [u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(bytes).ok()?;
        if packet.vlan.is_some() {
            return None;
        }
        let (source, destination) = match packet.net? {
            NetSlice::Ipv4(ip) => (
                IpAddr::from(ip.header().source_addr()),
                IpAddr::from(ip.header().destination_addr()),
            ),
            NetSlice::Ipv6(ip) => (
                IpAddr::from(ip.header().source_addr()),
                IpAddr::from(ip.header().destination_addr()),
            ),
        };
        let route = |protocol, from_port, to_port| Route {
            protocol,
            source: (source, from_port),
            destination: (destination, to_port),
        };
        Some(match packet.transport? {
            TransportSlice::Tcp(tcp) => Self::Segment(
                route(6, tcp.source_port(), tcp.destination_port()),
                Segment {
                    seq: tcp.sequence_number(),
                    ack: tcp.ack().then(|| tcp.acknowledgment_number()),
                    syn: tcp.syn(),
                    fin: tcp.fin(),
                    rst: tcp.rst(),
                    urgent: tcp.urg(),
                    payload: tcp.payload(),
                },
            ),
            TransportSlice::Udp(udp) => {
                let route = route(17, udp.source_port(), udp.destination_port());
                Self::Datagram(FlowKey::Ip(route), udp.payload())
            }
            TransportSlice::Icmpv4(icmp) => {
                Self::Datagram(FlowKey::Ip(route(1, 0, 0)), icmp.slice())
            }
            TransportSlice::Icmpv6(icmp) => {
                Self::Datagram(FlowKey::Ip(route(58, 0, 0)), icmp.slice())
            }
        })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            1 => "ICMP",
            6 => "TCP",
            17 => "UDP",
            58 => "ICMPv6",
            _ => "IP",
        };
        let (from, to) = (self.source, self.destination);
        if from.1 == 0 && to.1 == 0 {
            return write!(f, "{protocol} {} to {}", from.0, to.0);
        }
        write!(f, "{protocol} {}:{} to {}:{}", from.0, from.1, to.0, to.1)
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(route) => route.fmt(f),
            Self::Link(header) => write!(
                f,
                "Ethernet type {:#06x}",
                u16::from_be_bytes([header[12], header[13]])
            ),
        }
    }
}
