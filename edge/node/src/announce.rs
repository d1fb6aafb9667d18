//! Tells the network where the guest's address is now.

use plover_types::{Frame, Mac};
use std::net::Ipv4Addr;

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_RARP: [u8; 2] = [0x80, 0x35];
const ARP_REQUEST: u8 = 1;
const RARP_REQUEST: u8 = 3;

/// Ethernet and IPv4, with the lengths of their addresses: the head of an ARP packet.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Addresses that are remembered at most, the newest ones.
const ADDRESSES_MAX: usize = 8;

/// The guest's addresses, as far as its own frames tell.
#[derive(Debug)]
pub struct Announcement {
    mac: Mac,
    addresses: Vec<Ipv4Addr>,
}

impl Announcement {
    /// Of one address, which is at `mac` now.
    pub fn of(mac: Mac, address: Ipv4Addr) -> Self {
        Self {
            mac,
            addresses: vec![address],
        }
    }

    pub(crate) fn new(mac: Mac) -> Self {
        Self {
            mac,
            addresses: Vec::new(),
        }
    }

    /// Learns the guest's IPv4 addresses from the ARP packets that it sends. (Of other packets it may be only
    /// a router.)
    pub(crate) fn learn(&mut self, sent: &[Frame]) {
        for frame in sent {
            let Some(address) = self.sender(frame) else {
                continue;
            };
            if self.addresses.last() != Some(&address) {
                self.addresses.retain(|known| *known != address);
                self.addresses.push(address);
                let oldest = self.addresses.len().saturating_sub(ADDRESSES_MAX);
                self.addresses.drain(..oldest);
            }
        }
    }

    /// The IPv4 address of the guest's that an ARP packet of its tells.
    fn sender(&self, frame: &Frame) -> Option<Ipv4Addr> {
        let bytes = frame.ethernet();
        let is_arp = bytes.get(12..14)? == ETHERTYPE_ARP && bytes.get(14..20)? == ETHERNET_IPV4;
        let address = <[u8; 4]>::try_from(bytes.get(28..32)?).ok()?;
        let is_own = is_arp && bytes[22..28] == self.mac.0 && address != [0; 4];
        is_own.then(|| address.into())
    }

    /// Broadcasts from the guest's MAC, from which bridges and switches learn its port: a RARP request, which
    /// needs no IP address (QEMU's `announce-self` does the same after a migration), and an ARP request
    /// of each address for itself (gratuitous ARP, RFC 5227 §3) for switches and routers that look at ARP alone.
    pub fn frames(&self) -> Vec<Frame> {
        let rarp = self.frame(ETHERTYPE_RARP, RARP_REQUEST, [0; 4], self.mac.0);
        let arp = self.addresses.iter();
        let arp = arp.map(|own| self.frame(ETHERTYPE_ARP, ARP_REQUEST, own.octets(), [0; 6]));
        std::iter::once(rarp).chain(arp).collect()
    }

    /// From the guest, for `target`; both have the same IPv4 address.
    fn frame(&self, ethertype: [u8; 2], operation: u8, ip: [u8; 4], target: [u8; 6]) -> Frame {
        let mut bytes = Vec::with_capacity(60);
        bytes.extend_from_slice(&[0xff; 6]);
        bytes.extend_from_slice(&self.mac.0);
        bytes.extend_from_slice(&ethertype);
        bytes.extend_from_slice(&ETHERNET_IPV4);
        bytes.extend_from_slice(&[0, operation]);
        bytes.extend_from_slice(&self.mac.0);
        bytes.extend_from_slice(&ip);
        bytes.extend_from_slice(&target);
        bytes.extend_from_slice(&ip);
        bytes.resize(60, 0);
        Frame(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);

    /// An ARP reply, as a guest sends it.
    fn reply(mac: Mac, ip: [u8; 4]) -> Frame {
        let mut frame = Announcement::new(mac).frame(ETHERTYPE_ARP, 2, ip, [9; 6]);
        frame.0[..6].copy_from_slice(&[9; 6]);
        frame
    }

    #[test]
    fn the_announcement_is_a_broadcast_rarp_from_the_guest() {
        let frames = Announcement::new(MAC).frames();
        let [Frame(bytes)] = &frames[..] else {
            panic!("{frames:?}")
        };
        assert_eq!(bytes.len(), 60, "the shortest Ethernet frame");
        let parsed = etherparse::Ethernet2Header::from_slice(bytes).unwrap().0;
        assert_eq!(parsed.source, MAC.0);
        assert_eq!(parsed.destination, [0xff; 6]);
        assert_eq!(parsed.ether_type.0.to_be_bytes(), ETHERTYPE_RARP);
    }

    #[test]
    fn each_address_that_the_guest_has_told_is_asked_for_by_itself() {
        let mut announcement = Announcement::new(MAC);
        let router = Frame([&[9; 12][..], &[8, 0, 0x45, 0], &[7; 44]].concat());
        let other = reply(Mac([4; 6]), [10, 0, 0, 9]);
        let asks_first = reply(MAC, [0; 4]);
        announcement.learn(&[router, other, asks_first, Frame(vec![0; 20])]);
        assert_eq!(announcement.frames().len(), 1, "none of these tells one");
        let (first, second) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        announcement.learn(&[reply(MAC, first), reply(MAC, second), reply(MAC, first)]);
        let frames = announcement.frames();
        assert_eq!(frames.len(), 3);
        for (frame, ip) in frames[1..].iter().zip([second, first]) {
            assert_eq!(frame.0[..6], [0xff; 6]);
            assert_eq!(frame.0[28..32], ip, "its sender");
            assert_eq!(frame.0[38..42], ip, "its target");
        }
        for last in 0..20 {
            announcement.learn(&[reply(MAC, [10, 0, 1, last])]);
        }
        assert_eq!(announcement.frames().len(), 1 + ADDRESSES_MAX);
    }
}
