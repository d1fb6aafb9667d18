//! The words of programs in the guest about their replies.

use crate::SyncNo;
use std::net::IpAddr;

/// The bytes that a word is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A datagram.
    Datagram {
        /// [`fnv1a`] of its payload.
        hash: u64,
    },
    /// Bytes of a TCP connection.
    Stream {
        /// How many bytes the program has sent on the connection before these.
        at: u64,
    },
}

/// A program in the guest says this of bytes that it is about to send (docs/decisions/0065, and 0081 for TCP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The cut as of which they are *clean*: they say only what the guest's state at that cut says, too. `None` for a
    /// datagram that is not.
    pub clean_as_of: Option<SyncNo>,
    /// The guest's address, if the program knows it, and its port.
    pub guest: (Option<IpAddr>, u16),
    /// The client's address and port.
    pub client: (IpAddr, u16),
    /// The number of the IP protocol.
    pub protocol: u8,
    /// How many bytes they are; of a datagram, its payload.
    pub bytes: u32,
    /// Which bytes.
    pub about: About,
}

/// The 64-bit FNV-1a hash, which a guest's program computes as easily. It tells datagrams of one program apart, and guards
/// nothing.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the hash's authors.
    #[test]
    fn the_hash_is_fnv1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
