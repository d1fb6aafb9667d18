//! The matcher against a dumb twin that remembers every byte, on random streams; and against
//! noise.

use crate::frames::{Tcp, offloaded};
use plover_matching::Matcher;
use plover_types::{Frame, OutputNo};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One thing a guest sends.
#[derive(Clone, Debug)]
struct Sent {
    ours: bool,
    /// How far back it begins: it sends so many bytes again.
    again: usize,
    fresh: usize,
    /// How much more it acknowledges.
    acknowledges: u32,
    /// It leaves the checksum to others, and the cutting of what may be a long segment.
    offloads: bool,
}

fn sent() -> impl Strategy<Value = Sent> {
    let again = prop_oneof![4 => Just(0), 1 => 0..30usize];
    let fresh = prop_oneof![9 => 0..40usize, 1 => 1_000..60_000usize];
    let of = (any::<bool>(), again, fresh, 0..3u32, any::<bool>());
    of.prop_map(|(ours, again, fresh, acknowledges, offloads)| Sent {
        ours,
        again,
        fresh,
        acknowledges,
        offloads,
    })
}

/// A frame of ours: the places of its bytes, and its acknowledgement number.
struct OurFrame {
    from: usize,
    to: usize,
    ack: u32,
}

/// Remembers all that the other side has sent.
#[derive(Default)]
struct Twin {
    theirs: BTreeMap<usize, u8>,
    their_ack: Option<u32>,
}

impl Twin {
    fn explains(&self, frame: &OurFrame, stream: &[u8]) -> bool {
        let bytes = (frame.from..frame.to).all(|at| self.theirs.get(&at) == Some(&stream[at]));
        bytes && self.their_ack.is_some_and(|ack| ack >= frame.ack)
    }
}

const BASE: u32 = u32::MAX - 100;

/// Some of the longest segments.
const STREAM_BYTES: usize = 400_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Nothing is covered that the other side has not sent; and where the two streams agree,
    /// everything that it has sent is covered, in order.
    #[test]
    fn the_matcher_covers_the_outputs_that_its_twin_explains(
        sends in prop::collection::vec(sent(), 1..60),
        differs_at in prop::option::of(prop_oneof![0..1_500usize, 0..STREAM_BYTES]),
    ) {
        let ours: Vec<u8> = (0..STREAM_BYTES).map(|i| (i * 7 % 251) as u8).collect();
        let mut theirs = ours.clone();
        if let Some(at) = differs_at {
            theirs[at] ^= 1;
        }
        let mut matcher = Matcher::new(2 * STREAM_BYTES);
        matcher.begin(false);
        let mut twin = Twin::default();
        let mut frames = Vec::new();
        let mut covered = 0;
        // The place and acknowledgement number each side has reached; both start equal, with an
        // empty segment that tells the matcher where.
        let mut reached = [(0usize, 50u32); 2];
        matcher.ours(OutputNo(0), &Tcp::at(BASE).ack(50).frame());
        frames.push(OurFrame { from: 0, to: 0, ack: 50 });
        for send in sends {
            let (next, ack) = &mut reached[usize::from(send.ours)];
            let from = next.saturating_sub(send.again);
            let to = (*next + send.fresh).min(STREAM_BYTES);
            *next = to;
            *ack += send.acknowledges;
            let stream = if send.ours { &ours } else { &theirs };
            let segment = Tcp::at(BASE.wrapping_add(from as u32))
                .ack(*ack)
                .data(&stream[from..to]);
            let frame = match send.offloads {
                true => offloaded(&segment, 1448),
                false => segment.frame(),
            };
            if send.ours {
                let no = OutputNo(frames.len() as u64);
                frames.push(OurFrame { from, to, ack: *ack });
                matcher.ours(no, &frame);
            } else {
                let places = (from..to).zip(stream[from..to].iter().copied());
                twin.theirs.extend(places);
                twin.their_ack = Some(*ack);
                matcher.theirs(&frame);
            }
            for no in matcher.take_covered() {
                prop_assert_eq!(no.0, covered, "in order");
                let frame = &frames[no.0 as usize];
                prop_assert!(twin.explains(frame, &ours), "{} to {}", frame.from, frame.to);
                covered += 1;
            }
            if differs_at.is_none() {
                let waits = frames.get(covered as usize);
                prop_assert!(waits.is_none_or(|frame| !twin.explains(frame, &ours)));
            }
        }
        if differs_at.is_none() {
            prop_assert_eq!(matcher.difference(), None);
        }
    }

    /// No bytes of either side can make it panic, and what only one side has sent is never
    /// covered.
    #[test]
    fn noise_is_harmless(
        frames in prop::collection::vec((any::<bool>(), noisy()), 0..60),
        followed in any::<bool>(),
    ) {
        let mut matcher = Matcher::new(2_000);
        for round in 0..2 {
            matcher.begin(followed);
            let mut said = 0;
            for (i, (ours, frame)) in frames.iter().enumerate() {
                if *ours {
                    matcher.ours(OutputNo(i as u64), frame);
                } else {
                    said += 1;
                    matcher.theirs(frame);
                }
                for no in matcher.take_covered() {
                    prop_assert!(frames[no.0 as usize].0, "round {}", round);
                }
                prop_assert!(matcher.done() <= said);
            }
        }
    }
}

/// Frames that are almost right.
fn noisy() -> impl Strategy<Value = Frame> {
    let segment = (
        any::<u32>(),
        prop::option::of(any::<u32>()),
        any::<[bool; 3]>(),
    );
    let rightish = (segment, prop::collection::vec(any::<u8>(), 0..20)).prop_map(
        |((seq, ack, [syn, fin, rst]), data)| {
            let mut tcp = Tcp::at(seq % 8).data(&data);
            if let Some(ack) = ack {
                tcp = tcp.ack(ack);
            }
            if syn {
                tcp = tcp.syn();
            }
            if fin {
                tcp = tcp.fin();
            }
            if rst {
                tcp = tcp.rst();
            }
            tcp.frame()
        },
    );
    let broken = (rightish.clone(), 0..80usize, any::<u8>(), 0..80usize).prop_map(
        |(mut frame, at, byte, length)| {
            if let Some(place) = frame.0.get_mut(at) {
                *place = byte;
            }
            frame.0.truncate(length.max(at));
            frame
        },
    );
    let noise = prop::collection::vec(any::<u8>(), 0..100).prop_map(Frame);
    prop_oneof![4 => rightish, 2 => broken, 1 => noise]
}
