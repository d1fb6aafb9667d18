//! What of a frame counts when the outputs of two guests are compared.
//!
//! | frame | compared | passed over |
//! |---|---|---|
//! | TCP | payload and FIN by their place in the stream, RST with its numbers; the acknowledgement number as a bound | segmentation, window, options (timestamps, SACK), PSH, ECN, checksum, IP header but the addresses |
//! | TCP with SYN | its number and what it acknowledges, its options and ECN flags | timestamps, window |
//! | TCP with URG, or SYN with payload | nothing: it waits for a sync | |
//! | UDP, ICMP, ICMPv6 | ports or type, and all that follows | IP header but the addresses |
//! | any other: ARP, fragments, VLAN tags, other protocols | the whole frame | |
//!
//! A SYN carries the initial sequence number, which each guest draws by itself. The secondary
//! renumbers its guest's to the leader's before anybody compares (see [`crate::Numbers`]); what
//! else a SYN agrees on for the life of the connection must be the same on both sides. Urgent data
//! is out of the stream's order, and next to nobody uses it.

use crate::options::{self, OPTIONS_MAX};
use core::net::IpAddr;
use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use plover_types::Frame;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The bytes of an Ethernet header.
pub(crate) const ETHERNET_BYTES: usize = 14;

/// Where a packet goes: of TCP, one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The IP protocol's number.
    pub protocol: u8,
    /// From this address and port.
    pub source: (IpAddr, u16),
    /// To this one.
    pub destination: (IpAddr, u16),
}

impl Route {
    /// The other direction.
    pub(crate) fn back(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ..self
        }
    }
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

/// Source and destination.
pub(crate) fn addresses(net: &NetSlice<'_>) -> (IpAddr, IpAddr) {
    match net {
        NetSlice::Ipv4(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        NetSlice::Ipv6(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
    }
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub seq: u32,
    /// If the ACK flag is set.
    pub ack: Option<u32>,
    /// If the SYN flag is set.
    pub opening: Option<Opening>,
    pub fin: bool,
    pub rst: bool,
    pub urgent: bool,
    pub payload: &'a [u8],
}

/// What a SYN agrees on for the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub seq: u32,
    pub ack: Option<u32>,
    /// ECE and CWR: whether the ends use ECN (RFC 3168 §6.1.1).
    ecn: (bool, bool),
    /// The options, the values of timestamps left out: each guest reads them off its clock.
    options: [u8; OPTIONS_MAX],
}

impl Opening {
    fn of(tcp: &TcpSlice<'_>) -> Self {
        let mut agreed = [0; OPTIONS_MAX];
        let bytes = tcp.options();
        agreed[..bytes.len()].copy_from_slice(bytes);
        for (kind, place) in options::walk(bytes) {
            if kind == options::TIMESTAMPS {
                agreed[place].fill(0);
            }
        }
        Self {
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            ecn: (tcp.ece(), tcp.cwr()),
            options: agreed,
        }
    }
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
        let (source, destination) = addresses(&packet.net?);
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
                    opening: tcp.syn().then(|| Opening::of(&tcp)),
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

/// How many bytes of a TCP stream, or of a UDP datagram, a frame has; none of any other.
pub fn payload_bytes(frame: &Frame) -> u64 {
    match Packet::of(frame) {
        Packet::Segment(_, segment) => segment.payload.len() as u64,
        Packet::Datagram(FlowKey::Ip(Route { protocol: 17, .. }), bytes) => bytes.len() as u64,
        Packet::Datagram(..) => 0,
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
