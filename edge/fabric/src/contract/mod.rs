//! One suite of tests for every fabric.
//!
//! What the layers above rely on is written here once, as tests, and run on each
//! implementation: give [`crate::fabric_contract!`] a [`Maker`] and it makes one `#[test]` of
//! each function of this module. The group has three replicas, 0 to 2. Small rings (some
//! hundred KiB) keep it quick: the tests read their sizes off `record_bytes_max`.
//!
//! The tests sleep on `wait_fd` and `timeout` as a real caller does, so a lost wake-up shows as
//! a test that runs into its deadline. The deadline is generous and nothing else is timed.

mod group;
mod nine;

pub use nine::everyone_reaches_everyone;

use crate::{Fabric, FabricEvent, Lane, WriteError};
use group::{DEADLINE, Group, R, Stream, record, sleep};
use plover_types::{Awaited, ReplicaId, ReplicaSet, SplitMix64};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Opens the fabrics of one group of three.
pub trait Maker {
    /// What is tested.
    type Fabric: Fabric;
    /// Opens replica `me`; called again after the first one was dropped, for a restart.
    fn open(&mut self, me: ReplicaId) -> Self::Fabric;
}

/// Makes a module of tests that run the contract on what `$maker` opens. `$maker` is evaluated
/// anew for each test.
#[macro_export]
macro_rules! fabric_contract {
    ($module:ident, $maker:expr) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;
            $crate::fabric_contract!(@tests $maker;
                order_and_content_are_kept
                a_full_ring_says_full_then_room_and_loses_nothing
                too_large_is_refused_and_the_largest_is_not
                nobody_there_is_down
                a_restarted_peer_goes_down_and_up
                nothing_crosses_sessions
                wait_fd_wakes
                wait_wakes_for_records_and_for_what_is_attached
                who_is_not_waited_for_is_heard_all_the_same
                what_one_call_leaves_is_announced
                a_quiet_fabric_lets_its_caller_sleep
                a_bulk_flood_does_not_stop_the_log
            );
        }
    };
    (@tests $maker:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::contract::$name($maker);
            }
        )*
    };
}

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
        group.turn(&[R[0]]);
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

/// The bound is exact and known beforehand, whatever the link's state.
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
    group.stop(R[1]);
    group.wait("the link goes down", |g| {
        g.node_ref(R[0]).saw(&FabricEvent::Down(R[1]))
    });
    let max = group.fabric(R[0]).record_bytes_max(Lane::Log);
    let refused = group
        .fabric(R[0])
        .write(R[1], Lane::Log, &record(1, max + 1));
    assert_eq!(
        refused,
        Err(WriteError::TooLarge {
            bytes: max + 1,
            max
        })
    );
}

/// A write to a replica that does not run, or is no member, says so.
pub fn nobody_there_is_down<M: Maker>(mut maker: M) {
    let mut fabric = maker.open(R[0]);
    fabric.progress(&mut Vec::new());
    for nobody in [R[1], R[0], ReplicaId(9)] {
        assert_eq!(
            fabric.write(nobody, Lane::Log, b"x"),
            Err(WriteError::Down(nobody))
        );
    }
}

/// A restart shows as `Down`, then `Up`, at both neighbours; records flow afterwards.
pub fn a_restarted_peer_goes_down_and_up<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    // Each in turn, since a fabric may treat the two ends of a link differently.
    for id in R {
        let others = R.into_iter().filter(|&other| other != id);
        group.stop(id);
        for other in others.clone() {
            group.wait("a stopped peer is down", |g| {
                g.node_ref(other).saw(&FabricEvent::Down(id))
            });
            let write = group.fabric(other).write(id, Lane::Log, b"lost");
            assert_eq!(write, Err(WriteError::Down(id)));
        }
        group.start(id);
        for other in others.clone() {
            group.wait("a started peer is up", |g| {
                g.node_ref(other).saw(&FabricEvent::Up(id))
                    && g.node_ref(id).saw(&FabricEvent::Up(other))
            });
            // Exactly one down, then one up: a link that flaps would show here.
            let links = group.node(other).events.iter();
            let links: Vec<_> = links
                .filter(|e| matches!(e, FabricEvent::Up(_) | FabricEvent::Down(_)))
                .collect();
            assert_eq!(links, [&FabricEvent::Down(id), &FabricEvent::Up(id)]);
        }
        group.forget();
        let streams = others.flat_map(|other| {
            let records = |seed| (seed..seed + 20).map(|n| record(n, 500)).collect();
            [
                Stream::new(id, other, Lane::Log, records(0)),
                Stream::new(other, id, Lane::Bulk, records(50)),
            ]
        });
        let streams = streams.collect();
        group.exchange(streams);
        group.forget();
    }
}

/// What was in flight to a replica's last life never reaches the next one, and what it wrote
/// before never comes after its `Down`.
pub fn nothing_crosses_sessions<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    for (writer, restarted) in [(R[0], R[2]), (R[2], R[0]), (R[1], R[0]), (R[1], R[2])] {
        for lane in Lane::ALL {
            // The restarted one never looks at these.
            for n in 0..50 {
                group
                    .fabric(writer)
                    .write(restarted, lane, &record(n, 700))
                    .expect("room");
                // Some of these the writer has read when the link ends, some it has not.
                group
                    .fabric(restarted)
                    .write(writer, lane, &record(n, 300))
                    .expect("room");
            }
            group.fabric(restarted).flush();
            group.turn(&[writer]);
        }
        group.stop(restarted);
        group.wait("down", |g| {
            g.node_ref(writer).saw(&FabricEvent::Down(restarted))
        });
        group.start(restarted);
        group.wait("both are up", |g| {
            g.node_ref(writer).saw(&FabricEvent::Up(restarted))
                && R.iter().filter(|&&id| id != restarted).all(|&id| {
                    g.node_ref(restarted).saw(&FabricEvent::Up(id))
                        && g.node_ref(id).saw(&FabricEvent::Up(restarted))
                })
        });
        let events = &group.node(writer).events;
        let down = events
            .iter()
            .position(|e| *e == FabricEvent::Down(restarted))
            .expect("seen");
        for event in &events[down..] {
            assert!(
                !matches!(event, FabricEvent::Record { from, .. } if *from == restarted),
                "a record after the down of its writer"
            );
        }
        group.forget();
        let fresh = |seed| (seed..seed + 5).map(|n| record(n, 700)).collect();
        let streams = vec![
            Stream::new(writer, restarted, Lane::Log, fresh(1000)),
            Stream::new(writer, restarted, Lane::Bulk, fresh(2000)),
            Stream::new(restarted, writer, Lane::Log, fresh(3000)),
        ];
        // Compares all that arrives, so an old record would be seen.
        group.exchange(streams);
        group.forget();
    }
}

/// A sleeper is woken by the descriptor alone, for each record anew.
pub fn wait_fd_wakes<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    for n in 0..20 {
        for lane in Lane::ALL {
            group
                .fabric(R[0])
                .write(R[1], lane, &record(n, 100))
                .expect("room");
            group.fabric(R[0]).flush();
            let start = Instant::now();
            while group.node_ref(R[1]).records(R[0], lane).count() == n as usize {
                assert!(
                    start.elapsed() < DEADLINE,
                    "not woken for record {n} on {lane}"
                );
                let node = group.node(R[1]);
                // Asked as any sleeper has to, but its timers are not what wakes this one.
                let now = node.fabric.timeout() == Some(Duration::ZERO);
                if now || sleep([&node.fabric].into_iter(), DEADLINE) {
                    node.fabric.progress(&mut node.events);
                }
            }
        }
    }
}

/// The fabric's own wait ends for records, and for a descriptor of the caller's if it takes one.
pub fn wait_wakes_for_records_and_for_what_is_attached<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let attached = match group.fabric(R[1]).attach(read.as_fd()) {
        Ok(attached) => Some(attached),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
            None
        }
    };
    for n in 0..20 {
        let start = Instant::now();
        group
            .fabric(R[0])
            .write(R[1], Lane::Log, &record(n, 100))
            .expect("room");
        group.fabric(R[0]).flush();
        while group.node_ref(R[1]).records(R[0], Lane::Log).count() == n as usize {
            assert!(start.elapsed() < DEADLINE, "not woken for record {n}");
            let node = group.node(R[1]);
            if node.fabric.timeout() != Some(Duration::ZERO) {
                node.fabric.wait(Some(DEADLINE));
            }
            node.fabric.progress(&mut node.events);
        }
        let Some(attached) = attached else {
            continue;
        };
        rustix::io::write(&write, b"x").expect("room in the pipe");
        while !group.fabric(R[1]).is_readable(attached) {
            assert!(start.elapsed() < DEADLINE, "not woken for the pipe");
            let node = group.node(R[1]);
            node.fabric.progress(&mut node.events);
            let timeout = node.fabric.timeout().unwrap_or(DEADLINE);
            node.fabric.wait(Some(timeout.min(DEADLINE)));
        }
        rustix::io::read(&read, &mut [0; 1]).expect("it is readable");
    }
}

/// A sleep that is to end for one peer ends for it, one that is to end for two once both have written,
/// and what others wrote meanwhile is there then. The next sleep ends for everyone again.
pub fn who_is_not_waited_for_is_heard_all_the_same<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    for n in 0..20 {
        let awaited = |from: &[ReplicaId]| {
            let count = from.len();
            let from = ReplicaSet::of(from.iter().copied());
            Some(Awaited { from, count })
        };
        for (awaited, writers) in [
            (awaited(&[R[2]]), [R[0], R[2]]),
            (None, [R[2], R[0]]),
            (awaited(&[R[0], R[2]]), [R[2], R[0]]),
        ] {
            let heard =
                |group: &Group<M>, from| group.node_ref(R[1]).records(from, Lane::Log).count();
            let before = writers.map(|writer| heard(&group, writer));
            // Asleep, as far as the writers can tell.
            let sleeper = group.fabric(R[1]);
            sleeper.wake_for(awaited);
            let mut timeout = sleeper.timeout();
            for writer in writers {
                let fabric = group.fabric(writer);
                fabric
                    .write(R[1], Lane::Log, &record(n, 100))
                    .expect("room");
                fabric.flush();
            }
            let start = Instant::now();
            while writers.map(|writer| heard(&group, writer)) != before.map(|count| count + 1) {
                assert!(start.elapsed() < DEADLINE, "not woken for record {n}");
                let node = group.node(R[1]);
                if timeout != Some(Duration::ZERO) {
                    node.fabric
                        .wait(Some(timeout.unwrap_or(DEADLINE).min(DEADLINE)));
                }
                node.fabric.progress(&mut node.events);
                timeout = node.fabric.timeout();
            }
        }
    }
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

/// With nothing to do the descriptor is not readable and the timeout is not zero.
pub fn a_quiet_fabric_lets_its_caller_sleep<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let records = (0..50).map(|n| record(n, 1000)).collect();
    group.exchange(vec![Stream::new(R[0], R[1], Lane::Bulk, records)]);
    group.wait("quiet", |group| {
        let fabrics = || R.iter().map(|&id| &group.node_ref(id).fabric);
        let none_due = fabrics().all(|fabric| fabric.timeout() != Some(Duration::ZERO));
        none_due && !sleep(fabrics(), Duration::ZERO)
    });
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
