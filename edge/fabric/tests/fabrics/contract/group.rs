//! Replicas under test, driven as a real caller drives them.

use super::Maker;
use plover_fabric::{Fabric, FabricEvent, Lane, WriteError};
use plover_types::{ReplicaId, SplitMix64};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

pub(super) const R: [ReplicaId; 3] = [ReplicaId(0), ReplicaId(1), ReplicaId(2)];
/// Far beyond what any step takes on a loaded machine.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// The replicas of a group and what they have reported.
pub(super) struct Group<M: Maker> {
    maker: M,
    nodes: Vec<Option<Node<M::Fabric>>>,
}

pub(super) struct Node<F> {
    pub fabric: F,
    pub events: Vec<FabricEvent>,
}

/// Records from one replica to another on one lane.
pub(super) struct Stream {
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub lane: Lane,
    pub records: Vec<Vec<u8>>,
    pub written: usize,
    /// Refused, waiting for `Room`.
    pub full: bool,
}

impl Stream {
    pub fn new(from: ReplicaId, to: ReplicaId, lane: Lane, records: Vec<Vec<u8>>) -> Self {
        Self {
            from,
            to,
            lane,
            records,
            written: 0,
            full: false,
        }
    }
}

/// A record that no other call gives.
pub(super) fn record(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut record = Vec::with_capacity(bytes + 8);
    while record.len() < bytes {
        record.extend(random.next_u64().to_le_bytes());
    }
    record.truncate(bytes);
    record
}

pub(super) fn summary(events: &[FabricEvent]) -> Vec<String> {
    let one = |event: &FabricEvent| match event {
        FabricEvent::Record { from, lane, bytes } => {
            format!("{} bytes from {from} on {lane}", bytes.len())
        }
        other => format!("{other:?}"),
    };
    events.iter().map(one).collect()
}

/// Sleeps until one of the fabrics is readable, at most `timeout`; says whether one is.
pub(super) fn sleep<'f, F: Fabric + 'f>(
    fabrics: impl Iterator<Item = &'f F>,
    timeout: Duration,
) -> bool {
    let fabrics: Vec<&F> = fabrics.collect();
    let mut fds: Vec<PollFd<'_>> = fabrics
        .iter()
        .map(|fabric| {
            // SAFETY: the fabric is borrowed for as long as the descriptor is used, and keeps
            // its `wait_fd` open.
            let fd = unsafe { BorrowedFd::borrow_raw(fabric.wait_fd()) };
            PollFd::from_borrowed_fd(fd, PollFlags::IN)
        })
        .collect();
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => ready > 0,
        Err(rustix::io::Errno::INTR) => false,
        Err(error) => panic!("poll: {error}"),
    }
}

impl<M: Maker> Group<M> {
    /// Three replicas, all links up.
    pub fn new(maker: M) -> Self {
        Self::of(3, maker)
    }

    /// Replicas 0 and up, all links up.
    pub fn of(count: u8, maker: M) -> Self {
        let nodes = (0..count).map(|_| None).collect();
        let mut group = Self { maker, nodes };
        let ids: Vec<_> = (0..count).map(ReplicaId).collect();
        ids.iter().for_each(|&id| group.start(id));
        group.wait("all links come up", |group| {
            ids.iter().all(|&id| {
                let mut others = ids.iter().filter(|&&other| other != id);
                others.all(|&other| group.node_ref(id).saw(&FabricEvent::Up(other)))
            })
        });
        group.forget();
        group
    }

    pub fn node(&mut self, id: ReplicaId) -> &mut Node<M::Fabric> {
        self.nodes[usize::from(id.0)].as_mut().expect("running")
    }

    pub fn node_ref(&self, id: ReplicaId) -> &Node<M::Fabric> {
        self.nodes[usize::from(id.0)].as_ref().expect("running")
    }

    pub fn fabric(&mut self, id: ReplicaId) -> &mut M::Fabric {
        &mut self.node(id).fabric
    }

    pub fn stop(&mut self, id: ReplicaId) {
        self.nodes[usize::from(id.0)] = None;
    }

    pub fn start(&mut self, id: ReplicaId) {
        let fabric = self.maker.open(id);
        self.nodes[usize::from(id.0)] = Some(Node {
            fabric,
            events: Vec::new(),
        });
    }

    /// How long replica `id` may sleep now: where the descriptor wakes it, timers are ignored, so that a
    /// lost wake-up shows.
    pub fn patience(&self, id: ReplicaId) -> Duration {
        match self.node_ref(id).fabric.timeout() {
            Some(timeout) if timeout.is_zero() || !self.maker.wakes() => timeout,
            _ => DEADLINE,
        }
    }

    /// Forgets what was reported.
    pub fn forget(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            node.events.clear();
        }
    }

    /// One turn of all replicas, or of `only` one: sleep, progress.
    pub fn turn(&mut self, only: Option<ReplicaId>) {
        let chosen = |id: usize| only.is_none_or(|only| usize::from(only.0) == id);
        let nodes = self.nodes.iter_mut().enumerate();
        let nodes = nodes.filter(|(id, _)| chosen(*id));
        let mut nodes: Vec<_> = nodes.filter_map(|(_, node)| node.as_mut()).collect();
        let fabrics = || nodes.iter().map(|node| &node.fabric);
        let timeout = fabrics().filter_map(Fabric::timeout).min();
        let timeout = timeout.unwrap_or(DEADLINE).min(Duration::from_secs(1));
        sleep(fabrics(), timeout);
        for node in &mut nodes {
            node.fabric.progress(&mut node.events);
        }
    }

    /// Turns of all until `done`.
    pub fn wait(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let reported: Vec<_> = self
                .nodes
                .iter()
                .map(|node| node.as_ref().map(|node| summary(&node.events)))
                .collect();
            assert!(
                start.elapsed() < DEADLINE,
                "waited for: {what}; reported: {reported:#?}"
            );
            self.turn(None);
        }
    }

    /// Writes as much of `stream` as goes.
    pub fn write(&mut self, stream: &mut Stream) {
        while !stream.full && stream.written < stream.records.len() {
            let record = &stream.records[stream.written];
            match self
                .fabric(stream.from)
                .write(stream.to, stream.lane, record)
            {
                Ok(()) => stream.written += 1,
                Err(WriteError::Full(peer)) => {
                    assert_eq!(peer, stream.to);
                    stream.full = true;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.fabric(stream.from).flush();
    }

    /// Writes all of the streams, waiting for `Room` where a ring is full, until every record
    /// has arrived; then compares.
    pub fn exchange(&mut self, mut streams: Vec<Stream>) {
        let start = Instant::now();
        loop {
            for stream in &mut streams {
                self.write(stream);
            }
            let complete = |s: &Stream| {
                let arrived = self.node_ref(s.to).records(s.from, s.lane).count();
                assert!(arrived <= s.records.len(), "more arrived than were written");
                arrived == s.records.len()
            };
            if streams.iter().all(complete) {
                break;
            }
            let late = start.elapsed() > DEADLINE;
            let written: Vec<_> = streams.iter().map(|s| (s.written, s.full)).collect();
            assert!(
                !late,
                "records or room do not come; written and refused: {written:?}"
            );
            self.turn(None);
            for stream in &mut streams {
                let room = FabricEvent::Room {
                    peer: stream.to,
                    lane: stream.lane,
                };
                let events = &mut self.node(stream.from).events;
                let before = events.len();
                events.retain(|event| *event != room);
                stream.full &= events.len() == before;
            }
        }
        for s in &streams {
            let arrived = self.node_ref(s.to).records(s.from, s.lane);
            for (n, (arrived, written)) in arrived.zip(&s.records).enumerate() {
                let what = format!("record {n} from {} to {} on {}", s.from, s.to, s.lane);
                assert_eq!(arrived.len(), written.len(), "{what}");
                assert!(arrived == written, "{what}: other bytes");
            }
        }
    }
}

impl<F> Node<F> {
    pub fn saw(&self, event: &FabricEvent) -> bool {
        self.events.contains(event)
    }

    pub fn records(&self, from: ReplicaId, lane: Lane) -> impl Iterator<Item = &[u8]> {
        self.events.iter().filter_map(move |event| match event {
            FabricEvent::Record {
                from: f,
                lane: l,
                bytes,
            } if (*f, *l) == (from, lane) => Some(bytes.as_slice()),
            _ => None,
        })
    }
}
