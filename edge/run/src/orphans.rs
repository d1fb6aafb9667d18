//! The clients of leaders before: they are made to notice that their connections are over.
//!
//! A host that dies says nothing to its clients. One that waits for an answer repeats its request after ever longer pauses, and
//! one that waits for nothing never learns of it. So the next leader sends on each connection that the log had open an
//! acknowledgement that fits nothing. The client answers with the numbers that it is at (RFC 5961, section 5), and the
//! kernel of this host, which knows no such connection, resets it.

use plover_program::{Client, ConnectionId};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// More connections are left to themselves.
const ORPHANS_MAX: usize = 65_536;

/// A connection that is over for so long is forgotten: its leader has told the client, or there is none for long.
const REMEMBERED: Duration = Duration::from_secs(3);

const IP_HEAD: usize = 20;
const TCP_HEAD: usize = 20;
const TCP_ACK: u8 = 16;
const TTL: u8 = 64;

/// The clients of the connections that the log has open, and of those that it has ended lately. Their leader may have died before it told
/// them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    open: BTreeMap<ConnectionId, Client>,
    ended: VecDeque<(Instant, Client)>,
}

impl Known {
    /// The program is given a client's connection.
    pub fn opens(&mut self, id: ConnectionId, client: Client) {
        self.open.insert(id, client);
    }

    /// The log has ended the connection.
    pub fn ends(&mut self, now: Instant, id: ConnectionId) {
        let is_old = |it: &(Instant, Client)| now > it.0 + REMEMBERED;
        while self.ended.front().is_some_and(is_old) || self.ended.len() >= ORPHANS_MAX {
            self.ended.pop_front();
        }
        self.ended
            .extend(self.open.remove(&id).map(|client| (now, client)));
    }

    /// The program has ended, and is given its connections anew.
    pub fn forget_open(&mut self) {
        self.open.clear();
    }

    /// Those to tell, who are known no more.
    pub fn take(&mut self, now: Instant) -> Vec<Client> {
        let ended = self.ended.drain(..);
        let ended = ended.filter(|it| now <= it.0 + REMEMBERED);
        ended.map(|it| it.1).collect()
    }
}

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

    #[test]
    fn what_ended_lately_is_remembered() {
        let id = |index| {
            let (view, index) = (plover_types::View(16), plover_types::Index(index));
            ConnectionId(plover_types::Viewstamp { view, index })
        };
        let client = |port| Client { ip: [1; 4], port };
        let (mut known, start) = (Known::default(), Instant::now());
        for index in 1..=3 {
            known.opens(id(index), client(index as u16));
        }
        let later = start + REMEMBERED + Duration::from_secs(1);
        known.ends(start, id(1));
        known.ends(later, id(2));
        known.ends(later, id(2));
        assert_eq!(known.take(later), [client(2)]);
        assert_eq!(known.take(later), [], "told once");
        known.forget_open();
        known.ends(later, id(3));
        assert_eq!(known.take(later), []);
    }

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
