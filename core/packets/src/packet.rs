//! A frame as a TCP segment or as a datagram of a flow.
//!
//! | frame | read as |
//! |---|---|
//! | TCP | a [`Segment`] of one direction of a connection |
//! | UDP, ICMP, ICMPv6 | a datagram: what follows the ports (UDP), or all after the IP header |
//! | ARP, fragments, VLAN tags, other protocols, noise | a datagram: the whole frame |

use crate::options::{self, OPTIONS_MAX};
use core::net::IpAddr;
use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use plover_types::Frame;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET_BYTES: usize = 14;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Where a packet comes from and goes to: of TCP, one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The number of the IP protocol; in its two upper bits the number of the guest's NIC, since connections of two networks
    /// may have the same addresses. (Plover reads protocols up to 63 as IP.)
    pub protocol: u8,
    /// The sender's address and port.
    pub source: (IpAddr, u16),
    /// The receiver's address and port.
    pub destination: (IpAddr, u16),
}

impl Route {
    /// The bits of `protocol` below the NIC's.
    const PROTOCOL: u8 = 0x3f;

    /// The number of the IP protocol.
    pub fn ip_protocol(self) -> u8 {
        self.protocol & Self::PROTOCOL
    }

    /// Whether it is of TCP.
    pub fn is_tcp(self) -> bool {
        self.ip_protocol() == TCP
    }

    /// The number of the guest's NIC.
    pub fn nic(self) -> u8 {
        self.protocol >> Self::PROTOCOL.count_ones()
    }

    /// The same on the NIC of this number.
    #[must_use]
    pub fn on_nic(self, nic: u8) -> Self {
        Self {
            protocol: self.ip_protocol() | (nic << Self::PROTOCOL.count_ones()),
            ..self
        }
    }

    /// The other direction.
    pub fn back(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ..self
        }
    }
}

/// The flow that a frame belongs to. Frames have an order within a flow, and none across flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowKey {
    /// Frames that are not read as IP, by their Ethernet header: addresses and type.
    Link([u8; ETHERNET_BYTES]),
    /// Packets of one route.
    Ip(Route),
}

/// Whether the sequence number `a` lies before `b`; they wrap around (RFC 9293 §3.4).
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// One frame, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A TCP segment.
    Segment(Route, Segment<'a>),
    /// Anything else, with the bytes that count.
    Datagram(FlowKey, &'a [u8]),
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgement number, if the ACK flag is set.
    pub ack: Option<u32>,
    /// The fields of the SYN, if the SYN flag is set.
    pub syn: Option<Syn>,
    /// The FIN flag.
    pub fin: bool,
    /// The RST flag.
    pub rst: bool,
    /// The URG flag, or an option of MPTCP, which can end the stream (RFC 8684 §3.3.3).
    pub special: bool,
    /// The payload.
    pub payload: &'a [u8],
}

/// The fields of a SYN. They hold for the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The initial sequence number.
    pub seq: u32,
    /// The acknowledgement number of a SYN that answers one.
    pub ack: Option<u32>,
    /// ECE and CWR: whether the ends use ECN (RFC 3168 §6.1.1).
    ecn: (bool, bool),
    /// The options, with zeroes for the values of timestamps: each guest reads them off its own clock.
    options: [u8; OPTIONS_MAX],
}

impl Syn {
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
            ack: acknowledged(tcp),
            ecn: (tcp.ece(), tcp.cwr()),
            options: agreed,
        }
    }
}

impl<'a> Packet<'a> {
    /// Reads a frame. What cannot be read as IP is a datagram of its whole frame.
    pub fn of(frame: &'a Frame) -> Self {
        let ethernet = frame.ethernet();
        Self::of_ip(ethernet, frame.nic()).unwrap_or_else(|| {
            let mut header = [0; ETHERNET_BYTES];
            let bytes = ethernet.len().min(ETHERNET_BYTES);
            header[..bytes].copy_from_slice(&ethernet[..bytes]);
            Self::Datagram(FlowKey::Link(header), ethernet)
        })
    }

    /// The flow that it belongs to.
    pub fn key(&self) -> FlowKey {
        match self {
            Self::Segment(route, _) => FlowKey::Ip(*route),
            Self::Datagram(key, _) => *key,
        }
    }

    fn of_ip(bytes: &'a [u8], nic: u8) -> Option<Self> {
        let (route, _, transport) = parse(bytes, nic)?;
        let bytes = match transport {
            TransportSlice::Tcp(tcp) => {
                let segment = Segment {
                    seq: tcp.sequence_number(),
                    ack: acknowledged(&tcp),
                    syn: tcp.syn().then(|| Syn::of(&tcp)),
                    fin: tcp.fin(),
                    rst: tcp.rst(),
                    special: tcp.urg() || has_mptcp(&tcp),
                    payload: tcp.payload(),
                };
                return Some(Self::Segment(route, segment));
            }
            TransportSlice::Udp(udp) => udp.payload(),
            TransportSlice::Icmpv4(icmp) => icmp.slice(),
            TransportSlice::Icmpv6(icmp) => icmp.slice(),
        };
        Some(Self::Datagram(FlowKey::Ip(route), bytes))
    }
}

/// A whole IP packet in a frame of a NIC's without VLAN tags: its route, its IP part and what that carries.
pub(crate) fn parse(bytes: &[u8], nic: u8) -> Option<(Route, NetSlice<'_>, TransportSlice<'_>)> {
    let packet = SlicedPacket::from_ethernet(bytes).ok()?;
    if packet.vlan.is_some() {
        return None;
    }
    let (net, transport) = (packet.net?, packet.transport?);
    let (source, destination): (IpAddr, IpAddr) = match &net {
        NetSlice::Ipv4(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        NetSlice::Ipv6(ip) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
    };
    let (protocol, from_port, to_port) = match &transport {
        TransportSlice::Tcp(tcp) => (TCP, tcp.source_port(), tcp.destination_port()),
        TransportSlice::Udp(udp) => (UDP, udp.source_port(), udp.destination_port()),
        TransportSlice::Icmpv4(_) => (ICMP, 0, 0),
        TransportSlice::Icmpv6(_) => (ICMPV6, 0, 0),
    };
    let route = Route {
        protocol,
        source: (source, from_port),
        destination: (destination, to_port),
    };
    Some((route.on_nic(nic), net, transport))
}

/// The acknowledgement number, if the ACK flag is set.
pub(crate) fn acknowledged(tcp: &TcpSlice<'_>) -> Option<u32> {
    tcp.ack().then(|| tcp.acknowledgment_number())
}

fn has_mptcp(tcp: &TcpSlice<'_>) -> bool {
    options::walk(tcp.options()).any(|(kind, _)| kind == options::MPTCP)
}

/// How many payload bytes a TCP segment or a UDP datagram has; 0 for any other frame.
pub fn payload_bytes(frame: &Frame) -> u64 {
    match Packet::of(frame) {
        Packet::Segment(_, segment) => segment.payload.len() as u64,
        Packet::Datagram(FlowKey::Ip(route), bytes) if route.ip_protocol() == UDP => {
            bytes.len() as u64
        }
        Packet::Datagram(..) => 0,
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.ip_protocol() {
            ICMP => "ICMP",
            TCP => "TCP",
            UDP => "UDP",
            ICMPV6 => "ICMPv6",
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
