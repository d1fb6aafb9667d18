//! Inputs that are ordered by connection only.
//!
//! Total order makes both guests do the same work. Order by connection leaves open which of two
//! clients is served first, as when each connection is forwarded to the secondary by itself
//! (COLO §3; PLOVER §6.3, Plan1). Here all frames come through one log, in the order in which the
//! leader's guest got them, so the secondary takes that freedom: it gives its guest the frames of one
//! log entry, or all that waited behind its gate, one connection after the other
//! (docs/decisions/0010).

use crate::packet::Packet;
use plover_types::Frame;

/// Puts the frames of each connection next to each other, in their order.
pub fn by_connection(frames: &mut [Frame]) {
    if frames.len() > 1 {
        frames.sort_by_cached_key(|frame| Packet::of(frame).key());
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
            tcp(2, 300, b"c1"),
            tcp(1, 300, b"b1"),
            tcp(1, 700, b"a2"),
            tcp(1, 300, b"b2"),
        ];
        let [a1, c1, b1, a2, b2] = [0, 1, 2, 3, 4].map(|place: usize| frames[place].clone());
        by_connection(&mut frames);
        assert_eq!(frames, [b1, b2, a1, a2, c1]);
    }

    proptest! {
        /// Noise does not panic, and no frame is lost.
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
