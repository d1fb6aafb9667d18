//! Tells the network where the guest's address is now.

use plover_types::{Frame, Mac};

const ETHERTYPE_RARP: u16 = 0x8035;
const RARP_REQUEST: u16 = 3;

/// A broadcast RARP request from the guest's MAC. Bridges and switches learn its port from it. It needs
/// no IP address, which only the guest knows (QEMU's `announce-self` does the same after a migration).
pub(crate) fn frame(mac: Mac) -> Frame {
    let mut bytes = Vec::with_capacity(60);
    bytes.extend_from_slice(&[0xff; 6]);
    bytes.extend_from_slice(&mac.0);
    bytes.extend_from_slice(&ETHERTYPE_RARP.to_be_bytes());
    bytes.extend_from_slice(&[0, 1, 8, 0, 6, 4]);
    bytes.extend_from_slice(&RARP_REQUEST.to_be_bytes());
    bytes.extend_from_slice(&mac.0);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&mac.0);
    bytes.extend_from_slice(&[0; 4]);
    bytes.resize(60, 0);
    Frame(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_is_a_broadcast_rarp_from_the_guest() {
        let mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
        let bytes = frame(mac).0;
        assert_eq!(bytes.len(), 60, "the shortest Ethernet frame");
        let parsed = etherparse::Ethernet2Header::from_slice(&bytes).unwrap().0;
        assert_eq!(parsed.source, mac.0);
        assert_eq!(parsed.destination, [0xff; 6]);
        assert_eq!(parsed.ether_type.0, ETHERTYPE_RARP);
    }
}
