//! Which connection a frame belongs to, for inputs that are ordered by connection only.
//!
//! Total order makes both guests do the same work; order by connection leaves open which of two
//! clients is served first, as when each connection is forwarded to the secondary by itself
//! (COLO §3; PLOVER §6.3, Plan1). Here all frames come through one log, in the order in which the
//! leader's guest got them. So the freedom is taken on the secondary: what its guest is given at
//! one time, a log entry's frames or all that waited behind its gate, it gets one connection after
//! the other (docs/decisions/0010).

use core::net::IpAddr;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use plover_types::Frame;

/// What tells one connection's frames from another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Connection {
    /// Frames that are not IP keep the order in which one station sent those of one kind.
    Other {
        station: [u8; 6],
        ethertype: [u8; 2],
    },
    /// TCP and UDP by both ports; what has none (ICMP, fragments) by protocol.
    Ip {
        from: IpAddr,
        protocol: u8,
        ports: Option<(u16, u16)>,
    },
}

/// Puts the frames of each connection next to each other, in their order.
pub(crate) fn by_connection(frames: &mut [Frame]) {
    if frames.len() > 1 {
        frames.sort_by_cached_key(|frame| Connection::of(&frame.0));
    }
}

impl Connection {
    fn of(frame: &[u8]) -> Self {
        Self::of_ip(frame).unwrap_or_else(|| {
            let part = |from: usize, to: usize| frame.get(from..to).unwrap_or_default();
            Self::Other {
                station: part(6, 12).try_into().unwrap_or_default(),
                ethertype: part(12, 14).try_into().unwrap_or_default(),
            }
        })
    }

    fn of_ip(frame: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let (from, protocol) = match packet.net? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                (IpAddr::V4(header.source_addr()), header.protocol().0)
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                (IpAddr::V6(header.source_addr()), ip.payload().ip_number.0)
            }
        };
        let ports = match packet.transport {
            Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
            Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
            _ => None,
        };
        Some(Self::Ip {
            from,
            protocol,
            ports,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    fn tcp(client: u8, port: u16, payload: &[u8]) -> Frame {
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, client], [2; 6])
            .ipv4([10, 0, 0, client], [10, 0, 0, 100], 64)
            .tcp(port, 6379, 1, 1000);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, payload).unwrap();
        Frame(bytes)
    }

    #[test]
    fn one_connection_after_the_other_each_in_its_order() {
        let mut frames = vec![
            tcp(1, 700, b"a1"),
            tcp(1, 300, b"b1"),
            tcp(1, 700, b"a2"),
            tcp(1, 300, b"b2"),
        ];
        let [a1, b1, a2, b2] = [0, 1, 2, 3].map(|place: usize| frames[place].clone());
        by_connection(&mut frames);
        assert_eq!(frames, [b1, b2, a1, a2]);
    }

    #[test]
    fn addresses_tell_connections_apart_too() {
        assert_ne!(
            Connection::of(&tcp(1, 700, b"").0),
            Connection::of(&tcp(2, 700, b"").0)
        );
        assert_eq!(
            Connection::of(&tcp(1, 700, b"x").0),
            Connection::of(&tcp(1, 700, b"").0)
        );
    }

    proptest! {
        /// Whatever clients send: nothing panics, nothing is lost.
        #[test]
        fn noise_is_kept(noise: Vec<Vec<u8>>) {
            let mut frames: Vec<_> = noise.iter().cloned().map(Frame).collect();
            by_connection(&mut frames);
            let mut before = noise;
            let mut after: Vec<_> = frames.into_iter().map(|frame| frame.0).collect();
            before.sort();
            after.sort();
            prop_assert_eq!(before, after);
        }
    }
}
