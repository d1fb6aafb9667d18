//! What ends a sleep.

use super::Maker;
use super::group::{DEADLINE, Group, R, Stream, record, sleep};
use plover_fabric::{Fabric, Lane};
use plover_types::{Awaited, ReplicaId, ReplicaSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A sleeper is woken for each record anew, by the descriptor alone and by the fabric's own wait. That
/// also ends for a descriptor of the caller's.
pub fn a_sleeper_is_woken_for_records_and_for_what_is_attached<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let attached = group.fabric(R[1]).attach(read.as_fd());
    let attached = attached.expect("it watches pipes");
    for n in 0..40 {
        let (start, waits) = (Instant::now(), n % 2 == 0);
        for lane in Lane::ALL {
            let fabric = group.fabric(R[0]);
            fabric.write(R[1], lane, &record(n, 100)).expect("room");
            fabric.flush();
            while group.node_ref(R[1]).records(R[0], lane).count() == n as usize {
                assert!(start.elapsed() < DEADLINE, "not woken for {n} on {lane}");
                let patience = group.patience(R[1]);
                let node = group.node(R[1]);
                if waits {
                    node.fabric.wait(Some(patience));
                } else {
                    sleep([&node.fabric].into_iter(), patience);
                }
                node.fabric.progress(&mut node.events);
            }
        }
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

/// A sleep that one peer is to end ends when it writes, one that two are to end when both have
/// written; records of others are found then. Any peer ends the next sleep.
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
