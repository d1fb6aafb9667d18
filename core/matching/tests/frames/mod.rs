//! Frames as a guest at 10.0.0.2 sends them.

use etherparse::{PacketBuilder, TcpOptionElement};
use plover_types::{Frame, Offload};

const GUEST: [u8; 4] = [10, 0, 0, 2];
const CLIENT: [u8; 4] = [10, 0, 0, 9];
const MACS: ([u8; 6], [u8; 6]) = ([0x52, 0x54, 0, 0, 0, 2], [0x52, 0x54, 0, 0, 0, 9]);

/// A TCP segment under construction.
#[derive(Clone, Debug)]
pub struct Tcp {
    seq: u32,
    ack: Option<u32>,
    flags: (bool, bool, bool),
    port: u16,
    window: u16,
    stamp: Option<(u32, u32)>,
    sack: Option<(u32, u32)>,
    options: Vec<TcpOptionElement>,
    inward: bool,
    v6: bool,
    data: Vec<u8>,
}

impl Tcp {
    pub fn at(seq: u32) -> Self {
        Self {
            seq,
            ack: None,
            flags: (false, false, false),
            port: 4000,
            window: 1000,
            stamp: None,
            sack: None,
            options: Vec::new(),
            inward: false,
            v6: false,
            data: Vec::new(),
        }
    }

    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    pub fn ack(mut self, ack: u32) -> Self {
        self.ack = Some(ack);
        self
    }

    pub fn syn(mut self) -> Self {
        self.flags.0 = true;
        self
    }

    pub fn fin(mut self) -> Self {
        self.flags.1 = true;
        self
    }

    pub fn rst(mut self) -> Self {
        self.flags.2 = true;
        self
    }

    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    pub fn stamp(mut self, value: u32, echo: u32) -> Self {
        self.stamp = Some((value, echo));
        self
    }

    /// The client has got these as well, out of order.
    pub fn sack(mut self, from: u32, to: u32) -> Self {
        self.sack = Some((from, to));
        self
    }

    pub fn option(mut self, option: TcpOptionElement) -> Self {
        self.options.push(option);
        self
    }

    /// The other direction.
    pub fn inward(mut self) -> Self {
        self.inward = true;
        self
    }

    pub fn v6(mut self) -> Self {
        self.v6 = true;
        self
    }

    pub fn frame(&self) -> Frame {
        let swap = self.inward;
        let of = |guest, client| {
            if swap {
                (client, guest)
            } else {
                (guest, client)
            }
        };
        let (from, to) = of(GUEST, CLIENT);
        let ethernet = PacketBuilder::ethernet2(MACS.0, MACS.1);
        let ip = if self.v6 {
            let wide = |ip: [u8; 4]| u128::from(u32::from_be_bytes(ip)).to_be_bytes();
            ethernet.ipv6(wide(from), wide(to), 64)
        } else {
            ethernet.ipv4(from, to, 64)
        };
        let ports = if swap {
            (self.port, 80)
        } else {
            (80, self.port)
        };
        let mut builder = ip.tcp(ports.0, ports.1, self.seq, self.window);
        if let Some(ack) = self.ack {
            builder = builder.ack(ack);
        }
        if self.flags.0 {
            builder = builder.syn();
        }
        if self.flags.1 {
            builder = builder.fin();
        }
        if self.flags.2 {
            builder = builder.rst();
        }
        let mut options = self.options.clone();
        options.extend(self.stamp.map(|(v, e)| TcpOptionElement::Timestamp(v, e)));
        let none = [None; 3];
        options.extend(
            self.sack
                .map(|edges| TcpOptionElement::SelectiveAcknowledgement(edges, none)),
        );
        builder = builder.options(&options).expect("the options fit");
        let mut bytes = Vec::new();
        builder
            .write(&mut bytes, &self.data)
            .expect("a vector takes it");
        Frame(bytes)
    }
}

pub fn udp(port: u16, data: &[u8]) -> Frame {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MACS.0, MACS.1)
        .ipv4(GUEST, CLIENT, 64)
        .udp(53, port)
        .write(&mut bytes, data)
        .expect("a vector takes it");
    Frame(bytes)
}

pub fn icmp(sequence: u16, data: &[u8]) -> Frame {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MACS.0, MACS.1)
        .ipv4(GUEST, CLIENT, 64)
        .icmpv4_echo_reply(1, sequence)
        .write(&mut bytes, data)
        .expect("a vector takes it");
    Frame(bytes)
}

pub fn arp(target: u8) -> Frame {
    let mut bytes = Vec::new();
    bytes.extend(MACS.1);
    bytes.extend(MACS.0);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2, target]);
    bytes.resize(60, 0);
    Frame(bytes)
}

/// The same frame as a guest with offloads sends it: whoever sends it on is to complete its checksum, and to cut it into
/// segments of `mss` bytes.
pub fn offloaded(tcp: &Tcp, mss: u16) -> Frame {
    let mut frame = tcp.frame();
    let ethernet = &mut frame.0;
    let (kind, tcp_at) = if ethernet[12..14] == [0x86, 0xdd] {
        (4, 54)
    } else {
        (1, 34)
    };
    // The field has the sum of the addresses and the length; any number will do here.
    ethernet[tcp_at + 16..tcp_at + 18].copy_from_slice(&[0xab, 0xcd]);
    let mut offload = [0; 10];
    offload[..2].copy_from_slice(&[1, kind]);
    offload[4..6].copy_from_slice(&mss.to_le_bytes());
    offload[6..8].copy_from_slice(&(tcp_at as u16).to_le_bytes());
    offload[8] = 16;
    Frame::new(Offload(offload), &frame.0)
}
