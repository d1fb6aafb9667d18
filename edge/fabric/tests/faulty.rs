//! The faults do what they say.

mod common;

use common::TcpMaker;
use plover_fabric::contract::Maker;
use plover_fabric::faulty::{Direction, Faults, Faulty};
use plover_fabric::{Fabric, FabricEvent, Lane, TcpFabric, WriteError};
use plover_types::ReplicaId;
use std::thread;
use std::time::{Duration, Instant};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);

struct Pair {
    a: Faulty<TcpFabric>,
    b: Faulty<TcpFabric>,
    at_a: Vec<FabricEvent>,
    at_b: Vec<FabricEvent>,
}

impl Pair {
    fn new(seed: u64) -> Self {
        Self::with(&mut TcpMaker::new(), seed)
    }

    fn with(maker: &mut TcpMaker, seed: u64) -> Self {
        let a = Faulty::new(maker.open(R0), seed);
        let b = Faulty::new(maker.open(R1), seed + 1);
        let mut pair = Self {
            a,
            b,
            at_a: vec![],
            at_b: vec![],
        };
        pair.until(|pair| pair.at_a == [FabricEvent::Up(R1)] && pair.at_b == [FabricEvent::Up(R0)]);
        pair.at_a.clear();
        pair.at_b.clear();
        pair
    }

    fn turn(&mut self) {
        self.a.progress(&mut self.at_a);
        self.b.progress(&mut self.at_b);
        thread::sleep(Duration::from_micros(200));
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{:?} {:?}",
                self.at_a,
                self.at_b
            );
            self.turn();
        }
    }

    /// Sends numbered records from `a` to `b` and waits until each has come or was counted as
    /// dropped; returns those that came.
    fn send(&mut self, count: u8) -> Vec<u8> {
        for n in 0..count {
            self.a.write(R1, Lane::Log, &[n; 10]).unwrap();
        }
        let dropped_or_in = |p: &Self| {
            let faults = p.a.faults().dropped + p.b.faults().dropped;
            faults + numbers(&p.at_b).len() as u64 >= u64::from(count)
        };
        self.until(dropped_or_in);
        numbers(&self.at_b)
    }
}

fn numbers(events: &[FabricEvent]) -> Vec<u8> {
    let number = |event: &FabricEvent| match event {
        FabricEvent::Record { bytes, .. } => Some(bytes[0]),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn drops_are_whole_records_and_the_seed_decides_which() {
    let faults = Faults {
        drop_per_mille: 400,
        ..Faults::default()
    };
    let run = |seed, direction| {
        let mut pair = Pair::new(seed);
        match direction {
            Direction::Out => pair.a.set(R1, direction, faults),
            Direction::In => pair.b.set(R0, direction, faults),
        }
        let came = pair.send(200);
        assert!(came.is_sorted(), "{came:?}");
        assert!((1..200).contains(&came.len()), "{} of 200 came", came.len());
        came
    };
    for direction in [Direction::Out, Direction::In] {
        assert_eq!(run(1, direction), run(1, direction));
        assert_ne!(run(1, direction), run(5, direction));
    }
}

#[test]
fn delays_keep_order_and_lose_nothing() {
    for direction in [Direction::Out, Direction::In] {
        let mut pair = Pair::new(3);
        let faults = Faults {
            delay_min: Duration::from_millis(1),
            delay_max: Duration::from_millis(20),
            ..Faults::default()
        };
        match direction {
            Direction::Out => pair.a.set(R1, direction, faults),
            Direction::In => pair.b.set(R0, direction, faults),
        }
        assert_eq!(pair.send(100), (0..100).collect::<Vec<_>>());
        assert_eq!(pair.a.faults().delayed + pair.b.faults().delayed, 100);
    }
}

#[test]
fn a_cut_is_silent_has_one_direction_and_heals() {
    let mut pair = Pair::new(4);
    pair.a.cut(R1, Direction::Out);
    assert!(pair.send(10).is_empty(), "cut");
    pair.b.write(R0, Lane::Log, &[77]).unwrap();
    pair.until(|pair| numbers(&pair.at_a) == [77]);
    pair.a.heal(R1);
    pair.a.write(R1, Lane::Log, &[99]).unwrap();
    pair.until(|pair| numbers(&pair.at_b) == [99]);
    assert_eq!(pair.at_a.len() + pair.at_b.len(), 2, "no link event");
}

#[test]
fn what_is_held_is_bounded_and_room_is_reported() {
    let mut pair = Pair::new(5);
    let delay = Duration::from_millis(200);
    pair.a.set(
        R1,
        Direction::Out,
        Faults {
            delay_min: delay,
            delay_max: delay,
            ..Faults::default()
        },
    );
    let record = vec![1; pair.a.record_bytes_max(Lane::Log)];
    // Nothing leaves between these: only `progress` sends off what is due.
    assert_eq!(pair.a.write(R1, Lane::Log, &record), Ok(()));
    assert_eq!(pair.a.write(R1, Lane::Log, &record), Ok(()));
    assert_eq!(
        pair.a.write(R1, Lane::Log, &record),
        Err(WriteError::Full(R1))
    );
    let room = FabricEvent::Room {
        peer: R1,
        lane: Lane::Log,
    };
    pair.until(|pair| pair.at_a.contains(&room));
    assert_eq!(pair.a.write(R1, Lane::Log, &record), Ok(()));
    pair.until(|pair| numbers(&pair.at_b).len() == 3);
}

#[test]
fn what_is_held_is_lost_with_the_link() {
    let mut maker = TcpMaker::new();
    let mut pair = Pair::with(&mut maker, 6);
    let hour = Duration::from_secs(3600);
    pair.a.set(
        R1,
        Direction::Out,
        Faults {
            delay_min: hour,
            delay_max: hour,
            ..Faults::default()
        },
    );
    pair.a.write(R1, Lane::Log, &[1]).unwrap();
    pair.b = Faulty::new(TcpFabric::new(maker.config(ReplicaId(2))).unwrap(), 0);
    pair.until(|pair| pair.at_a.contains(&FabricEvent::Down(R1)));
    pair.b = Faulty::new(maker.open(R1), 7);
    pair.until(|pair| pair.at_a.contains(&FabricEvent::Up(R1)));
    pair.a.set(R1, Direction::Out, Faults::default());
    pair.a.write(R1, Lane::Log, &[2]).unwrap();
    pair.until(|pair| !numbers(&pair.at_b).is_empty());
    assert_eq!(numbers(&pair.at_b), [2]);
}
