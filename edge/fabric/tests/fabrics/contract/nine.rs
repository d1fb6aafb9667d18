//! A large group: every replica reaches every other one.

use super::group::{DEADLINE, sleep, summary};
use plover_fabric::{Fabric, FabricEvent, Lane};
use plover_types::ReplicaId;
use std::time::{Duration, Instant};

/// How often each writes to each.
const LAPS: u32 = 20;

/// `fabrics` are those of replicas 0 and up, all of one group: all links come up, and what each
/// writes to each on both lanes arrives once and in order, lap after lap, between which all may sleep.
pub fn everyone_reaches_everyone<F: Fabric>(mut fabrics: Vec<F>) {
    let count = fabrics.len();
    let ids: Vec<_> = (0..count as u8).map(ReplicaId).collect();
    let mut events = vec![Vec::new(); count];
    turn_until(&mut fabrics, &mut events, |events| {
        let ups = |events: &Vec<FabricEvent>| {
            let ups = events.iter().filter(|it| matches!(it, FabricEvent::Up(_)));
            ups.count()
        };
        events.iter().all(|events| ups(events) == count - 1)
    });
    for lap in 0..LAPS {
        events.iter_mut().for_each(Vec::clear);
        for (from, fabric) in fabrics.iter_mut().enumerate() {
            for &to in ids.iter().filter(|to| usize::from(to.0) != from) {
                for lane in Lane::ALL {
                    let record = [lap as u8, from as u8, to.0];
                    fabric.write(to, lane, &record).expect("up, and room");
                }
            }
            fabric.flush();
        }
        turn_until(&mut fabrics, &mut events, |events| {
            let is_whole = |events: &Vec<FabricEvent>| events.len() >= 2 * (count - 1);
            events.iter().all(is_whole)
        });
        for (to, events) in events.iter().enumerate() {
            for &sender in ids.iter().filter(|id| usize::from(id.0) != to) {
                for on in Lane::ALL {
                    let told = events.iter().filter_map(|event| match event {
                        FabricEvent::Record { from, lane, bytes } => {
                            (*from == sender && *lane == on).then_some(bytes.as_slice())
                        }
                        other => panic!("replica {to}: {other:?}"),
                    });
                    let told = told.collect::<Vec<_>>();
                    let record = [lap as u8, sender.0, to as u8];
                    assert_eq!(told, [record], "{sender} to {to} on {on}");
                }
            }
        }
    }
}

/// As a caller each: all sleep until one of them has something to do.
fn turn_until<F: Fabric>(
    fabrics: &mut [F],
    events: &mut [Vec<FabricEvent>],
    done: impl Fn(&[Vec<FabricEvent>]) -> bool,
) {
    let start = Instant::now();
    loop {
        for (fabric, events) in fabrics.iter_mut().zip(events.iter_mut()) {
            fabric.progress(events);
        }
        if done(events) {
            return;
        }
        let late = start.elapsed() > 2 * DEADLINE;
        assert!(
            !late,
            "{:?}",
            events.iter().map(|it| summary(it)).collect::<Vec<_>>()
        );
        let spans = fabrics.iter().filter_map(Fabric::timeout);
        let span = spans.min().unwrap_or(DEADLINE).min(Duration::from_secs(1));
        sleep(fabrics.iter(), span);
    }
}
