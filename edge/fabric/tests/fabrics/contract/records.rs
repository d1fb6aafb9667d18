//! What arrives, and what a full ring does.

use super::Maker;
use super::group::{DEADLINE, Group, R, Stream, record, sleep};
use plover_fabric::{Fabric, FabricEvent, Lane, WriteError};
use plover_types::{ReplicaId, SplitMix64};
use std::time::{Duration, Instant};

/// Records of a lane arrive whole, once and in order, of every size, on all links at once, lap
/// after lap of the ring.
pub fn order_and_content_are_kept<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let mut random = SplitMix64::new(1);
    let mut streams = Vec::new();
    for from in R {
        for to in R.into_iter().filter(|&to| to != from) {
            for lane in Lane::ALL {
                let max = group.fabric(from).record_bytes_max(lane);
                let mut sizes: Vec<usize> = (0..40).collect();
                for power in 6.. {
                    let size = 1usize << power;
                    if size >= max {
                        break;
                    }
                    sizes.extend([size - 1, size, size + 1]);
                }
                sizes.extend([max, max, 0, max - 1, 1, max]);
                sizes.extend((0..300).map(|_| random.range(0, max as u64 / 16) as usize));
                let make = |size| record(random.next_u64(), size);
                let records = sizes.into_iter().map(make).collect();
                streams.push(Stream::new(from, to, lane, records));
            }
        }
    }
    group.exchange(streams);
}

/// A ring whose owner does not read fills up, refuses, and goes on where it stopped when it is
/// read.
pub fn a_full_ring_says_full_then_room_and_loses_nothing<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    for lane in Lane::ALL {
        let max = group.fabric(R[0]).record_bytes_max(lane);
        // Ten times what a ring can hold.
        let records = (0..).map(|n| record(n, max / 50)).take(1000).collect();
        let mut stream = Stream::new(R[0], R[1], lane, records);
        group.write(&mut stream);
        group.turn(Some(R[0]));
        assert!(
            stream.full,
            "a ring that nobody reads takes {} records",
            stream.written
        );
        let again = group
            .fabric(R[0])
            .write(R[1], lane, &stream.records[stream.written]);
        assert_eq!(again, Err(WriteError::Full(R[1])));
        group.exchange(vec![stream]);
        group.forget();
    }
}

/// The bound is exact and known beforehand.
pub fn too_large_is_refused_and_the_largest_is_not<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let mut streams = Vec::new();
    for lane in Lane::ALL {
        let max = group.fabric(R[0]).record_bytes_max(lane);
        let refused = group.fabric(R[0]).write(R[1], lane, &record(1, max + 1));
        assert_eq!(
            refused,
            Err(WriteError::TooLarge {
                bytes: max + 1,
                max
            })
        );
        streams.push(Stream::new(R[0], R[1], lane, vec![record(2, max)]));
    }
    group.exchange(streams);
}

/// A burst that is more than one call delivers comes out whole though nothing more arrives:
/// as long as something is left, the descriptor is readable or the timeout zero.
pub fn what_one_call_leaves_is_announced<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let mut written = 0;
    while written < 5000 && group.fabric(R[0]).write(R[1], Lane::Bulk, b"").is_ok() {
        written += 1;
    }
    let start = Instant::now();
    while group.node_ref(R[1]).records(R[0], Lane::Bulk).count() < written {
        assert!(start.elapsed() < DEADLINE, "records lie there unannounced");
        let node = group.node(R[0]);
        node.fabric.progress(&mut node.events);
        let node = group.node(R[1]);
        let now = node.fabric.timeout() == Some(Duration::ZERO);
        if now || sleep([&node.fabric].into_iter(), Duration::from_millis(10)) {
            node.fabric.progress(&mut node.events);
        }
    }
}

/// While bulk data fills its ring and goes on coming, a record on the log lane gets through.
pub fn a_bulk_flood_does_not_stop_the_log<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let max = group.fabric(R[0]).record_bytes_max(Lane::Bulk);
    // Forty rings' worth.
    let records = (0..800).map(|n| record(n, max / 10)).collect();
    let mut flood = Stream::new(R[0], R[1], Lane::Bulk, records);
    group.write(&mut flood);
    assert!(flood.full, "no flood");
    let urgent = record(9999, 50);
    group
        .fabric(R[0])
        .write(R[1], Lane::Log, &urgent)
        .expect("the log lane has room");
    group.fabric(R[0]).flush();
    let records = flood.records.len();
    group.exchange(vec![flood]);
    let events = &group.node(R[1]).events;
    let before = events
        .iter()
        .take_while(|e| {
            !matches!(
                e,
                FabricEvent::Record {
                    lane: Lane::Log,
                    ..
                }
            )
        })
        .count();
    assert!(
        before < records / 2,
        "the urgent record came after {before} of {records}"
    );
    assert_eq!(
        group.node_ref(R[1]).records(R[0], Lane::Log).next(),
        Some(&urgent[..])
    );
}

/// In a group of `count` replicas, what each writes to each on both lanes arrives once and in order,
/// lap after lap, between which all may sleep.
pub fn everyone_reaches_everyone<M: Maker>(count: u8, maker: M) {
    let mut group = Group::of(count, maker);
    for lap in 0..20 {
        let mut streams = Vec::new();
        for from in (0..count).map(ReplicaId) {
            for to in (0..count).map(ReplicaId).filter(|to| *to != from) {
                let records = vec![vec![lap, from.0, to.0]];
                let stream = |lane| Stream::new(from, to, lane, records.clone());
                streams.extend(Lane::ALL.map(stream));
            }
        }
        group.exchange(streams);
        group.forget();
    }
}
