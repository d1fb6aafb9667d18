//! Frames that a guest answers.

use super::{CLIENT_IP, CLIENT_MAC, GUEST_IP, GUEST_MAC};
use etherparse::PacketBuilder;
use plover_types::Frame;

/// Asks for the guest's address, which also tells the guest ours. The guest answers.
pub fn arp_request() -> Frame {
    arp(1)
}

/// Confirms our address as an answer to the guest does. The guest asks every half minute or so, and
/// without an answer it drops its frames to us.
pub fn arp_reply() -> Frame {
    arp(2)
}

fn arp(operation: u8) -> Frame {
    let mut frame = if operation == 1 {
        vec![0xff; 6]
    } else {
        GUEST_MAC.0.to_vec()
    };
    frame.extend(CLIENT_MAC.0);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(CLIENT_MAC.0);
    frame.extend(CLIENT_IP);
    frame.extend(GUEST_MAC.0);
    frame.extend(GUEST_IP);
    frame.resize(60, 0);
    Frame(frame)
}

/// An echo request of `bytes` of data.
pub fn ping(number: u16, bytes: usize) -> Frame {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC.0, GUEST_MAC.0)
        .ipv4(CLIENT_IP, GUEST_IP, 64)
        .icmpv4_echo_request(0x706c, number)
        .write(&mut frame, &vec![number as u8; bytes])
        .unwrap();
    Frame(frame)
}

/// The number of the ping that `frame` answers, if it answers one.
pub fn pong(frame: &Frame) -> Option<u16> {
    let bytes = &frame.0;
    let reply = bytes.len() >= 42 && bytes[12..14] == [8, 0] && bytes[23] == 1 && bytes[34] == 0;
    reply.then(|| u16::from_be_bytes([bytes[40], bytes[41]]))
}
