//! Any fabric with faults: drops, delays and cuts, per peer and direction, by command and from
//! a seed.
//!
//! ```text
//!   write ─► cut? drop? ─► held until due ─► inner fabric ═══► inner fabric ─► cut? drop? ─► held ─► Record
//!            └──── Direction::Out of the writer ────┘          └── Direction::In of the reader ──┘
//! ```
//!
//! Faults hit whole records: damage inside of one is the ring's business and tested there. A
//! cut is silent, as on a real network: writes are taken and lost, no `Down` comes. Delayed
//! records keep the order of their lane. What is held when the link goes down is lost with it.

use crate::{Attached, Fabric, FabricEvent, FabricStats, Lane, PeerError, WriteError};
use plover_types::{Awaited, ReplicaId, SplitMix64};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// Which way records go, seen from the replica that has the faulty fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the peer.
    Out,
    /// From the peer.
    In,
}

/// What goes wrong in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Of a thousand records, how many vanish.
    pub drop_per_mille: u16,
    /// Every record is held at least so long...
    pub delay_min: Duration,
    /// ...and at most so long (or until those before it are through).
    pub delay_max: Duration,
    /// All records vanish.
    pub cut: bool,
}

/// What a faulty fabric has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Records that vanished.
    pub dropped: u64,
    /// Records that were held for a while.
    pub delayed: u64,
}

/// A fabric with faults. Without any it behaves as the one inside.
#[derive(Debug)]
pub struct Faulty<F> {
    inner: F,
    random: SplitMix64,
    links: BTreeMap<ReplicaId, Link>,
    stats: FaultStats,
    /// What the inner fabric reported, before the faults.
    reported: Vec<FabricEvent>,
}

#[derive(Debug, Default)]
struct Link {
    up: bool,
    faults_out: Faults,
    faults_in: Faults,
    lanes: [HeldLane; 2],
}

#[derive(Debug, Default)]
struct HeldLane {
    leaving: Held,
    arriving: Held,
    /// The caller was refused because too much is held here.
    refused: bool,
    /// The caller was refused by the inner fabric.
    refused_inside: bool,
    /// The inner fabric refused what is due to leave, and will report room.
    stuck: bool,
}

/// Records in order, each with the moment it goes on.
#[derive(Debug, Default)]
struct Held {
    records: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

impl Held {
    fn push(&mut self, due: Instant, record: Vec<u8>) {
        let due = self.records.back().map_or(due, |(last, _)| due.max(*last));
        self.bytes += record.len();
        self.records.push_back((due, record));
    }

    fn due(&self) -> Option<Instant> {
        self.records.front().map(|(due, _)| *due)
    }

    fn pop_due(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.due()? > now {
            return None;
        }
        let (_, record) = self.records.pop_front()?;
        self.bytes -= record.len();
        Some(record)
    }

    /// Puts back what was popped last.
    fn unpop(&mut self, now: Instant, record: Vec<u8>) {
        self.bytes += record.len();
        self.records.push_front((now, record));
    }
}

/// What becomes of one record.
enum Fate {
    Passes,
    Vanishes,
    Waits(Instant),
}

impl<F: Fabric> Faulty<F> {
    /// `inner` without faults so far; `seed` decides all that chance will decide. Wrap a fabric
    /// before its first `progress`, since it is by the `Up` events that links are known.
    pub fn new(inner: F, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self {
            inner,
            random,
            links: BTreeMap::new(),
            stats: FaultStats::default(),
            reported: vec![],
        }
    }

    /// Sets the faults of one direction of one link, in place of those before.
    pub fn set(&mut self, peer: ReplicaId, direction: Direction, faults: Faults) {
        *self.faults_mut(peer, direction) = faults;
    }

    /// Cuts one direction of the link to `peer`; its other faults stay for when it is healed.
    pub fn cut(&mut self, peer: ReplicaId, direction: Direction) {
        self.faults_mut(peer, direction).cut = true;
    }

    /// Takes back both directions' cuts.
    pub fn heal(&mut self, peer: ReplicaId) {
        for direction in [Direction::Out, Direction::In] {
            self.faults_mut(peer, direction).cut = false;
        }
    }

    /// What the faults did.
    pub fn faults(&self) -> FaultStats {
        self.stats
    }

    /// The fabric inside.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    fn faults_mut(&mut self, peer: ReplicaId, direction: Direction) -> &mut Faults {
        let link = self.links.entry(peer).or_default();
        match direction {
            Direction::Out => &mut link.faults_out,
            Direction::In => &mut link.faults_in,
        }
    }

    /// Sends off what is due on one lane.
    fn pump_out(
        &mut self,
        peer: ReplicaId,
        lane: Lane,
        now: Instant,
        events: &mut Vec<FabricEvent>,
    ) {
        let Some(link) = self.links.get_mut(&peer) else {
            return;
        };
        let held = &mut link.lanes[lane.index()];
        while !held.stuck {
            let Some(record) = held.leaving.pop_due(now) else {
                break;
            };
            if link.faults_out.cut {
                self.stats.dropped += 1;
                self.inner.recycle(record);
                continue;
            }
            match self.inner.write(peer, lane, &record) {
                Ok(()) | Err(WriteError::Down(_)) => self.inner.recycle(record),
                Err(WriteError::Full(_)) => {
                    held.leaving.unpop(now, record);
                    held.stuck = true;
                }
                Err(error @ WriteError::TooLarge { .. }) => panic!("checked on entry: {error}"),
            }
        }
        if held.refused && held.leaving.bytes <= self.inner.record_bytes_max(lane) {
            held.refused = false;
            events.push(FabricEvent::Room { peer, lane });
        }
    }

    /// Hands on what has arrived and is due.
    fn pump_in(
        &mut self,
        from: ReplicaId,
        lane: Lane,
        now: Instant,
        events: &mut Vec<FabricEvent>,
    ) {
        let Some(link) = self.links.get_mut(&from) else {
            return;
        };
        while let Some(bytes) = link.lanes[lane.index()].arriving.pop_due(now) {
            if link.faults_in.cut {
                self.stats.dropped += 1;
                self.inner.recycle(bytes);
            } else {
                events.push(FabricEvent::Record { from, lane, bytes });
            }
        }
    }

    /// Applies the faults to one event of the inner fabric.
    fn sift(&mut self, event: FabricEvent, now: Instant, events: &mut Vec<FabricEvent>) {
        match event {
            FabricEvent::Up(peer) | FabricEvent::Down(peer) => {
                let link = self.links.entry(peer).or_default();
                link.up = matches!(event, FabricEvent::Up(_));
                link.lanes = Default::default();
                events.push(event);
            }
            FabricEvent::Room { peer, lane } => {
                let link = self.links.entry(peer).or_default();
                let held = &mut link.lanes[lane.index()];
                held.stuck = false;
                if std::mem::take(&mut held.refused_inside) {
                    events.push(FabricEvent::Room { peer, lane });
                }
            }
            FabricEvent::Record { from, lane, bytes } => {
                let link = self.links.entry(from).or_default();
                let held = &mut link.lanes[lane.index()].arriving;
                match fate(&mut self.random, &link.faults_in, held, now) {
                    Fate::Passes => events.push(FabricEvent::Record { from, lane, bytes }),
                    Fate::Vanishes => {
                        self.stats.dropped += 1;
                        self.inner.recycle(bytes);
                    }
                    Fate::Waits(due) => {
                        self.stats.delayed += 1;
                        held.push(due, bytes);
                    }
                }
            }
        }
    }
}

fn fate(random: &mut SplitMix64, faults: &Faults, held: &Held, now: Instant) -> Fate {
    if faults.cut || random.range(0, 999) < u64::from(faults.drop_per_mille) {
        return Fate::Vanishes;
    }
    let low = faults.delay_min.as_micros() as u64;
    let high = (faults.delay_max.as_micros() as u64).max(low);
    let delay = random.range(low, high);
    if delay == 0 && held.records.is_empty() {
        Fate::Passes
    } else {
        Fate::Waits(now + Duration::from_micros(delay))
    }
}

impl<F: Fabric> Fabric for Faulty<F> {
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError> {
        let max = self.inner.record_bytes_max(lane);
        let link = match self.links.get_mut(&to) {
            Some(link) if link.up && record.len() <= max => link,
            // The inner fabric has the right error for it.
            _ => return self.inner.write(to, lane, record),
        };
        let now = Instant::now();
        let held = &mut link.lanes[lane.index()];
        match fate(&mut self.random, &link.faults_out, &held.leaving, now) {
            Fate::Passes => {
                let written = self.inner.write(to, lane, record);
                held.refused_inside |= matches!(written, Err(WriteError::Full(_)));
                written
            }
            Fate::Vanishes => {
                self.stats.dropped += 1;
                Ok(())
            }
            Fate::Waits(due) => {
                // As much as a ring: two of the largest records.
                if held.leaving.bytes + record.len() > 2 * max {
                    held.refused = true;
                    return Err(WriteError::Full(to));
                }
                self.stats.delayed += 1;
                held.leaving.push(due, record.to_vec());
                Ok(())
            }
        }
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        let mut reported = std::mem::take(&mut self.reported);
        self.inner.progress(&mut reported);
        let now = Instant::now();
        for event in reported.drain(..) {
            self.sift(event, now, events);
        }
        self.reported = reported;
        let peers: Vec<_> = self.links.keys().copied().collect();
        for lane in Lane::ALL {
            for &peer in &peers {
                self.pump_out(peer, lane, now, events);
                self.pump_in(peer, lane, now, events);
            }
        }
        self.inner.flush();
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.inner.recycle(bytes);
    }

    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        self.inner.set_peer(peer, address)?;
        // What was held for the old link is lost with it; the faults stay.
        if let Some(link) = self.links.get_mut(&peer) {
            link.up = false;
            link.lanes = Default::default();
        }
        Ok(())
    }

    fn wait_fd(&self) -> RawFd {
        self.inner.wait_fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.inner.wait(timeout);
    }

    fn attach(&mut self, fd: BorrowedFd<'_>) -> io::Result<Attached> {
        self.inner.attach(fd)
    }

    fn is_readable(&self, attached: Attached) -> bool {
        self.inner.is_readable(attached)
    }

    fn wake_for(&mut self, awaited: Option<Awaited>) {
        self.inner.wake_for(awaited);
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let lanes = self.links.values().flat_map(|link| &link.lanes);
        let due = lanes.flat_map(|held| {
            let leaving = if held.stuck { None } else { held.leaving.due() };
            leaving.into_iter().chain(held.arriving.due())
        });
        let ours = due.min().map(|due| due.saturating_duration_since(now));
        ours.into_iter().chain(self.inner.timeout()).min()
    }

    fn record_bytes_max(&self, lane: Lane) -> usize {
        self.inner.record_bytes_max(lane)
    }

    fn stats(&self) -> FabricStats {
        self.inner.stats()
    }

    fn refusal(&self, peer: ReplicaId) -> Option<String> {
        self.inner.refusal(peer)
    }
}
