//! The clients of the leader before: they are made to notice that their connections are over.
//!
//! A host that dies says nothing to its clients. One that waits for an answer repeats its request after ever longer pauses, and
//! one that waits for nothing never learns of it. So the next leader sends on each connection that the log had open an
//! acknowledgement that fits nothing. The client answers with the numbers that it is at (RFC 5961, section 5), and the
//! kernel of this host, which knows no such connection, resets it.

use plover_program::Client;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// More connections are left to themselves.
pub(crate) const ORPHANS_MAX: usize = 65_536;

const IP_HEAD: usize = 20;
const TCP_HEAD: usize = 20;
const TCP_ACK: u8 = 16;
const TTL: u8 = 64;

/// Connections between `listen` and these clients.
#[derive(Debug)]
pub(crate) struct Orphans {
    listen: SocketAddrV4,
    clients: Vec<Client>,
    packets: OwnedFd,
}

impl Orphans {
    pub fn new(listen: SocketAddrV4, clients: Vec<Client>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::INET, SocketType::RAW);
        let packets = socket_with(family, kind, flags, Some(ipproto::RAW))?;
        Ok(Self {
            listen,
            clients,
            packets,
        })
    }

    /// Sends one to each. A packet that is lost is sent again with the next announcement of the address.
    pub fn tell(&self) {
        for client in &self.clients {
            let packet = acknowledgement(self.listen, *client);
            let to = SocketAddrV4::new(Ipv4Addr::from(client.ip), client.port);
            let _ = sendto(&self.packets, &packet, SendFlags::empty(), &to);
        }
    }
}

/// A TCP segment without data. The kernel fills in the IP header's length and checksum.
fn acknowledgement(from: SocketAddrV4, to: Client) -> [u8; IP_HEAD + TCP_HEAD] {
    let mut packet = [0; IP_HEAD + TCP_HEAD];
    let (ip, tcp) = packet.split_at_mut(IP_HEAD);
    ip[0] = 0x45;
    ip[8] = TTL;
    ip[9] = ipproto::TCP.as_raw().get() as u8;
    ip[12..16].copy_from_slice(&from.ip().octets());
    ip[16..20].copy_from_slice(&to.ip);
    tcp[0..2].copy_from_slice(&from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port.to_be_bytes());
    tcp[12] = (TCP_HEAD as u8 / 4) << 4;
    tcp[13] = TCP_ACK;
    // The pseudo header: addresses, protocol, length (RFC 9293, section 3.1).
    let words = ip[12..20].chunks(2).chain(tcp.chunks(2));
    let sum: u32 = words
        .map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])))
        .sum();
    let mut sum = sum + u32::from(ip[9]) + TCP_HEAD as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of all words with the checksum is what a receiver looks for.
    #[test]
    fn the_receiver_takes_the_segment_for_whole() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 100), 6379);
        let to = Client {
            ip: [10, 77, 0, 1],
            port: 58_260,
        };
        let packet = acknowledgement(from, to);
        let (ip, tcp) = packet.split_at(IP_HEAD);
        let words = ip[12..20].chunks(2).chain(tcp.chunks(2));
        let sum: u32 = words
            .map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])))
            .sum();
        let sum = sum + 6 + TCP_HEAD as u32;
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
