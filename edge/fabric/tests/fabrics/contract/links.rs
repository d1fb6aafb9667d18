//! Links that come, go and are refused.

use super::group::{DEADLINE, Group, R, Stream, record};
use super::{How, Maker};
use plover_fabric::{Fabric, FabricEvent, Lane, PeerError, WriteError};
use plover_types::{ReplicaId, ReplicaSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

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

/// A caller that finds out that a peer sends nonsense cuts its link, from either end. It is no ban.
pub fn a_peer_that_is_cut_comes_back_after_a_while<M: Maker>(maker: M) {
    let mut group = Group::new(maker);
    for (cuts, other) in [(R[0], R[2]), (R[2], R[0])] {
        group.fabric(cuts).cut(ReplicaId(9), "nobody");
        group.fabric(cuts).cut(other, "nonsense");
        group.fabric(cuts).cut(other, "again");
        let write = group.fabric(cuts).write(other, Lane::Log, b"x");
        assert_eq!(write, Err(WriteError::Down(other)));
        for (here, there) in [(cuts, other), (other, cuts)] {
            group.wait("the link is down", |g| {
                g.node_ref(here).saw(&FabricEvent::Down(there))
            });
        }
        assert_eq!(group.fabric(cuts).stats().damaged, 1);
        for (here, there) in [(cuts, other), (other, cuts)] {
            group.wait("and up again", |g| {
                g.node_ref(here).saw(&FabricEvent::Up(there))
            });
        }
        group.forget();
    }
    let records = (0..20).map(|n| record(n, 500)).collect();
    group.exchange(vec![Stream::new(R[0], R[2], Lane::Log, records)]);
}

/// Records in flight to a replica that is restarted never reach its next run, and what it wrote
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
            group.turn(Some(writer));
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

/// Drives fabrics until `done`, by what they have reported.
pub fn drive<F: Fabric>(
    fabrics: &mut [F],
    mut done: impl FnMut(&[F], &[Vec<FabricEvent>]) -> bool,
) {
    let mut events = vec![Vec::new(); fabrics.len()];
    let start = Instant::now();
    while !done(fabrics, &events) {
        assert!(start.elapsed() < DEADLINE, "reported: {events:?}");
        for (fabric, events) in fabrics.iter_mut().zip(&mut events) {
            fabric.progress(events);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Both sides refuse each other, say why, and no link comes up.
fn is_refused<M: Maker>(mut maker: M, how: How, words: &str) {
    let mut fabrics = [maker.open(R[0]), maker.open_with(R[1], how)];
    drive(&mut fabrics, |fabrics, events| {
        assert!(events.iter().all(Vec::is_empty), "{events:?}");
        let says = |why: Option<String>| why.is_some_and(|why| why.contains(words));
        says(fabrics[0].refusal(R[1])) && says(fabrics[1].refusal(R[0]))
    });
    assert!(fabrics.iter().all(|fabric| fabric.stats().rejected > 0));
}

/// Replicas with rings of different sizes refuse each other.
pub fn other_rings_are_refused<M: Maker>(maker: M) {
    let how = How {
        bulk_ring_bytes: 2 * How::default().bulk_ring_bytes,
        ..How::default()
    };
    is_refused(maker, how, "ring sizes differ");
}

/// A replica refuses one that it does not know.
pub fn a_replica_that_is_no_member_is_refused<M: Maker>(maker: M) {
    let how = How {
        members: ReplicaSet::of([R[2]]),
        ..How::default()
    };
    is_refused(maker, how, "not the replica expected");
}

/// A replica that is added while others run comes up, and one that is removed is gone.
pub fn peers_come_and_go<M: Maker>(mut maker: M) {
    let alone = How {
        members: ReplicaSet::of([]),
        ..How::default()
    };
    let mut fabrics = [maker.open_with(R[0], alone), maker.open(R[1])];
    let address = maker.address(R[1]);
    let set = fabrics[0].set_peer(R[1], Some(&address));
    set.expect("an address");
    drive(&mut fabrics, |_, events| both_up(events));
    let again = fabrics[0].set_peer(R[1], Some(&address));
    again.expect("the same");
    assert_eq!(fabrics[0].write(R[1], Lane::Log, b"still linked"), Ok(()));
    fabrics[0].set_peer(R[1], None).expect("it goes");
    let write = fabrics[0].write(R[1], Lane::Log, b"record");
    assert_eq!(write, Err(WriteError::Down(R[1])));
    let down = FabricEvent::Down(R[0]);
    drive(&mut fabrics, |_, events| events[1].contains(&down));
    let wrong = fabrics[0].set_peer(ReplicaId(9), Some("nowhere"));
    assert!(matches!(wrong, Ok(()) | Err(PeerError(_))));
}

/// Whether the links of the two replicas have come up.
pub fn both_up(events: &[Vec<FabricEvent>]) -> bool {
    events[0].contains(&FabricEvent::Up(R[1])) && events[1].contains(&FabricEvent::Up(R[0]))
}

/// A second process of a replica gets no link while the first one lives, and both sides say why. When the first one has
/// ended, the second is as good as a restarted one.
pub fn a_second_process_is_refused_while_the_first_lives<M: Maker>(mut maker: M) {
    let mut fabrics = vec![maker.open(R[0]), maker.open(R[1])];
    drive(&mut fabrics, |_, events| both_up(events));
    fabrics.push(maker.open_second(R[0]));
    drive(&mut fabrics, |fabrics, events| {
        assert!(events.iter().all(Vec::is_empty), "{events:?}");
        fabrics[2].twin().is_some()
    });
    let (by, why) = fabrics[2].twin().expect("refused");
    assert_eq!(by, R[1]);
    assert!(
        why.contains("linked to another process of this replica"),
        "{why}"
    );
    assert_eq!(fabrics[2].refusal(R[1]), Some(why));
    assert!(fabrics[1].stats().rejected > 0);
    assert!(fabrics[0].twin().is_none() && fabrics[1].twin().is_none());
    assert_eq!(fabrics[0].write(R[1], Lane::Log, b"the first"), Ok(()));
    fabrics[0].flush();
    let is_first = |event: &FabricEvent| matches!(event, FabricEvent::Record { bytes, .. } if bytes == b"the first");
    drive(&mut fabrics, |_, events| events[1].iter().any(is_first));
    drop(fabrics.remove(0));
    let links = [FabricEvent::Down(R[0]), FabricEvent::Up(R[0])];
    drive(&mut fabrics, |_, events| {
        assert!(links.starts_with(&events[0]), "{events:?}");
        events[0] == links && events[1].contains(&FabricEvent::Up(R[1]))
    });
}

/// A process whose place another one has taken gets no link any more. Where it was linked, it is not told to give up.
pub fn a_process_that_was_replaced_does_not_come_back<M: Maker>(mut maker: M) {
    let mut first = maker.open(R[0]);
    let mut fabrics = [maker.open(R[1]), maker.open_second(R[0])];
    let mut events = [Vec::new(), Vec::new()];
    let start = Instant::now();
    while !both_up(&events) {
        assert!(start.elapsed() < DEADLINE, "reported: {events:?}");
        first.progress(&mut events[0]);
        fabrics[0].progress(&mut events[1]);
        std::thread::sleep(Duration::from_micros(200));
    }
    // The first one stands still while the second comes.
    fabrics[0].cut(R[0], "nonsense");
    let up = FabricEvent::Up(R[0]);
    drive(&mut fabrics, |_, events| events[0].contains(&up));
    let mut came = Vec::new();
    let mut refused = false;
    drive(&mut fabrics, |_, events| {
        assert!(events.iter().all(Vec::is_empty), "{events:?}");
        first.progress(&mut came);
        let why = first.refusal(R[1]);
        refused |= why.is_some_and(|why| why.contains("another process of this replica has been"));
        refused
    });
    assert_eq!(came, [FabricEvent::Down(R[1])]);
    assert_eq!(first.twin(), None);
}

/// Connections that send something else are turned away, and replicas still find each other. `connect`
/// makes one to replica 1, on which such a number of bytes can be sent.
pub fn strangers_do_no_harm<M: Maker>(mut maker: M, connect: impl Fn(&M) -> OwnedFd) {
    let mut b = maker.open(R[1]);
    let noisy: Vec<_> = (0..50u8)
        .map(|n| {
            let stranger = connect(&maker);
            // Some say nothing, some too little or too much, some as much as a greeting has.
            let noise = vec![n; [0, 1, 128, 4000][usize::from(n % 4)]];
            if !noise.is_empty() {
                rustix::io::write(&stranger, &noise).expect("room");
            }
            b.progress(&mut Vec::new());
            stranger
        })
        .collect();
    let mut fabrics = [maker.open(R[0]), b];
    let (mut are_up, mut rejected) = (false, 0);
    drive(&mut fabrics, |fabrics, events| {
        are_up |= both_up(events);
        rejected = fabrics[1].stats().rejected;
        are_up && rejected >= 50
    });
    for stranger in &noisy {
        // At most an alert of TLS, then an end, or a reset where the noise was not even read. One that is still
        // open makes this wait for ever.
        let mut heard = 0;
        while let Ok(count @ 1..) = rustix::io::read(stranger, &mut [0; 64]) {
            heard += count;
        }
        assert!(heard <= 7, "{heard} bytes");
    }
    let links = fabrics.each_mut().map(|it| {
        let mut events = Vec::new();
        it.progress(&mut events);
        events
    });
    assert!(links.iter().all(Vec::is_empty), "{links:?}");
}
