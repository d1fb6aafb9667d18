//! Frames that a guest answers.

use super::{CLIENT_IP, CLIENT_MAC, GUEST_IP, GUEST_MAC};
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
    let mut icmp = vec![8, 0, 0, 0, 0x70, 0x6c];
    icmp.extend(number.to_be_bytes());
    icmp.resize(8 + bytes, number as u8);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0];
    ip.extend(((20 + icmp.len()) as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 1, 0, 0]);
    ip.extend(CLIENT_IP);
    ip.extend(GUEST_IP);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let mut frame = GUEST_MAC.0.to_vec();
    frame.extend(CLIENT_MAC.0);
    frame.extend([0x08, 0x00]);
    frame.extend(ip);
    frame.extend(icmp);
    Frame(frame)
}

/// The number of the ping that `frame` answers, if it answers one.
pub fn pong(frame: &Frame) -> Option<u16> {
    let bytes = &frame.0;
    let reply = bytes.len() >= 42 && bytes[12..14] == [8, 0] && bytes[23] == 1 && bytes[34] == 0;
    reply.then(|| u16::from_be_bytes([bytes[40], bytes[41]]))
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (!(folded as u16)).to_be_bytes()
}
