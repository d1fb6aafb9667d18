//! A peer that is another process: killed, restarted, stopped.
//!
//! The peer is the test binary itself, started with one test ([`other_process`]) and told by a
//! variable what to be.

use plover_fabric::{BoxedFabric, FabricEvent, Lane, WriteError};
use plover_types::ReplicaId;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
/// Tells a process started by a test what to be.
const OTHER: &str = "PLOVER_TEST_OTHER";

/// How to start the peer, and what it is.
#[derive(Clone, Copy)]
pub struct Process {
    /// The test that calls [`other_process`].
    pub test: &'static str,
    /// Opens the fabric of a replica of a group of two; the text says which group.
    pub open: fn(&str, ReplicaId) -> BoxedFabric,
}

/// The process at the other end: answers every record, and ends when replica 0 does. Does
/// nothing when it runs as a test.
pub fn other_process(process: Process) {
    let Ok(which) = std::env::var(OTHER) else {
        return;
    };
    let mut fabric = (process.open)(&which, R1);
    let mut events = Vec::new();
    loop {
        fabric.progress(&mut events);
        for event in events.drain(..) {
            match event {
                // A full ring of answers is not what is tested.
                FabricEvent::Record { from, lane, bytes } => {
                    let _ = fabric.write(from, lane, &bytes[..8]);
                }
                FabricEvent::Down(_) => return,
                _ => {}
            }
        }
        fabric.flush();
        thread::sleep(Duration::from_micros(100));
    }
}

struct Pair {
    fabric: BoxedFabric,
    events: Vec<FabricEvent>,
    which: String,
    other: Child,
}

impl Pair {
    fn new(process: Process, which: &str) -> Self {
        let mut pair = Self {
            fabric: (process.open)(which, R0),
            events: Vec::new(),
            which: which.to_owned(),
            other: start_other(process, which),
        };
        pair.until(|pair| pair.events == [FabricEvent::Up(R1)]);
        pair
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let late = start.elapsed() > Duration::from_secs(60);
            assert!(!late, "{}: reported: {:?}", self.which, self.events);
            self.fabric.progress(&mut self.events);
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// A question is answered on both lanes.
    fn answers(&mut self) {
        let before = self.fabric.stats();
        for lane in Lane::ALL {
            self.fabric.write(R1, lane, b"question").unwrap();
        }
        self.fabric.flush();
        self.until(|pair| {
            let now = pair.fabric.stats();
            now.log.bytes_in > before.log.bytes_in && now.bulk.bytes_in > before.bulk.bytes_in
        });
        let is_record = |event: &FabricEvent| matches!(event, FabricEvent::Record { .. });
        self.events.retain(|event| !is_record(event));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.other), signal).unwrap();
    }

    /// Ends this side; the other one ends by itself.
    fn end(mut self) {
        drop(self.fabric);
        assert!(self.other.wait().unwrap().success());
    }
}

fn start_other(process: Process, which: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", process.test])
        .env(OTHER, which)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A peer that is killed goes down, and comes up when it is restarted.
pub fn a_killed_peer_goes_down_and_comes_up_again(process: Process, which: &str) {
    let mut pair = Pair::new(process, which);
    for _ in 0..2 {
        pair.answers();
        pair.events.clear();
        pair.signal(Signal::KILL);
        pair.other.wait().unwrap();
        pair.until(|pair| pair.events == [FabricEvent::Down(R1)]);
        let write = pair.fabric.write(R1, Lane::Log, b"lost");
        assert_eq!(write, Err(WriteError::Down(R1)));
        pair.other = start_other(process, which);
        pair.until(|pair| pair.events == [FabricEvent::Down(R1), FabricEvent::Up(R1)]);
    }
    pair.answers();
    pair.end();
}

/// A stopped process is slow, not gone: its rings fill up and refuse, the other lane and this
/// side go on, and when it runs again everything arrives. `patience` is how long it is stopped.
pub fn a_stopped_peer_pushes_back_and_keeps_its_link(
    process: Process,
    which: &str,
    patience: Duration,
) {
    let mut pair = Pair::new(process, which);
    pair.answers();
    pair.events.clear();
    pair.signal(Signal::STOP);
    let pid = Pid::from_child(&pair.other);
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    let (record, mut written) = ([5; 1000], 0);
    let before = pair.fabric.stats().bulk;
    let start = Instant::now();
    let mut refused = false;
    while !refused || start.elapsed() < patience {
        match pair.fabric.write(R1, Lane::Bulk, &record) {
            Ok(()) => written += 1,
            Err(error) => {
                assert_eq!(error, WriteError::Full(R1));
                refused = true;
                thread::sleep(Duration::from_micros(500));
            }
        }
        pair.fabric.progress(&mut pair.events);
        assert!(written < 2000, "it is never refused");
    }
    assert_eq!(pair.events, []);
    assert_eq!(pair.fabric.write(R1, Lane::Log, b"a heartbeat"), Ok(()));
    pair.signal(Signal::CONT);
    let room = FabricEvent::Room {
        peer: R1,
        lane: Lane::Bulk,
    };
    pair.until(|pair| {
        let answered = pair.fabric.stats().bulk.bytes_in - before.bytes_in;
        answered == written * 8 && pair.events.contains(&room)
    });
    pair.end();
}
