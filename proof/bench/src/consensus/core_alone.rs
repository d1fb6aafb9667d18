//! The consensus core without a fabric: three of them in one thread, messages handed over.
//!
//! The rest is what the protocol itself computes: encoding, checking, counting. Also measures whether it
//! allocates.

use crate::counting::allocations;
use anyhow::{Context, Result, ensure};
use apus::{Apus, Command, Config, Durability, EntryKind, Event, Start};
use plover_types::wire::WIRE_VERSION;
use plover_types::{Micros, ReplicaId, ReplicaSet};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Instant;

const REPLICAS: u8 = 3;
const PAYLOAD_BYTES: usize = 256;
const BATCHES: u64 = 20_000;

/// The cost of an entry on all three replicas together.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CoreAlone {
    /// Entries proposed before each flush.
    pub batch: u64,
    /// CPU time, nanoseconds.
    pub nanos_per_entry: f64,
    /// Requests to the allocator.
    pub allocations_per_entry: f64,
}

/// Three cores and the messages on their way between them.
struct Group {
    cores: Vec<Apus>,
    now: Micros,
    wire: VecDeque<(usize, usize, Vec<u8>)>,
    /// The commands that a core has just given. Empty between calls, kept for its room.
    commands: Vec<Command>,
    /// Entries that the leader delivered.
    delivered: u64,
}

/// Lets entries go round in batches of `batch`, after a warm-up that does not count.
pub(super) fn measure(batch: u64) -> Result<CoreAlone> {
    let mut group = Group::new()?;
    for _ in 0..BATCHES / 10 {
        group.batch(batch)?;
    }
    group.delivered = 0;
    let (before, start) = (allocations(), Instant::now());
    for _ in 0..BATCHES {
        group.batch(batch)?;
    }
    let (nanos, allocated) = (start.elapsed().as_nanos(), allocations() - before);
    let entries = BATCHES * batch;
    ensure!(
        group.delivered == entries,
        "{} of {entries} were delivered",
        group.delivered
    );
    Ok(CoreAlone {
        batch,
        nanos_per_entry: nanos as f64 / entries as f64,
        allocations_per_entry: allocated as f64 / entries as f64,
    })
}

impl Group {
    fn new() -> Result<Self> {
        let core = |me| {
            let config = Config {
                me: ReplicaId(me),
                members: ReplicaSet::of((0..REPLICAS).map(ReplicaId)),
                first_leader: ReplicaId(0),
                any_voter_stands: true,
                pair: false,
                fencing: false,
                quorum_selection: true,
                newest_version: WIRE_VERSION,
                heartbeat: Micros::from_ms(100),
                timeout: Micros::from_ms(1000),
                timeout_min: Micros::from_ms(1000),
                durability: Durability::Memory,
                log_bytes_max: 1 << 20,
                message_bytes_max: 1 << 18,
                seed: u64::from(me),
                canary: apus::Canary::None,
                known_after: Micros::NEVER,
            };
            Apus::new(config, Start::Fresh, Micros(1))
        };
        let mut group = Self {
            cores: (0..REPLICAS).map(core).collect(),
            now: Micros(1),
            wire: VecDeque::new(),
            commands: Vec::new(),
            delivered: 0,
        };
        for _ in 0..20 {
            group.now = group.now + Micros::from_ms(100);
            for core in 0..group.cores.len() {
                group.apply(core, Event::Tick);
            }
            group.settle();
        }
        let leads = group.cores[0].status().phase == apus::Phase::Leading;
        ensure!(leads, "the first core does not lead");
        Ok(group)
    }

    fn batch(&mut self, entries: u64) -> Result<()> {
        // Each batch takes a microsecond of the cores' own time: heartbeats are in it, too.
        self.now = self.now + Micros(1);
        for _ in 0..entries {
            let mut payload = self.cores[0].buffer(PAYLOAD_BYTES);
            payload.resize(PAYLOAD_BYTES, 7);
            let proposed = self.cores[0].propose(self.now, EntryKind::App, payload);
            proposed.context("the leader cannot propose")?;
        }
        let mut commands = std::mem::take(&mut self.commands);
        self.cores[0].flush(self.now, &mut commands);
        self.obey(0, commands);
        self.settle();
        for core in 0..self.cores.len() {
            if self.now >= self.cores[core].deadline() {
                self.apply(core, Event::Tick);
            }
        }
        self.settle();
        let commit = self.cores[0].status().commit;
        self.cores[0].trim(commit);
        Ok(())
    }

    fn apply(&mut self, core: usize, event: Event<'_>) {
        let mut commands = std::mem::take(&mut self.commands);
        self.cores[core].apply(self.now, event, &mut commands);
        self.obey(core, commands);
    }

    fn settle(&mut self) {
        while let Some((from, to, bytes)) = self.wire.pop_front() {
            let event = Event::Received {
                from: ReplicaId(from as u8),
                bytes: &bytes,
            };
            let mut commands = std::mem::take(&mut self.commands);
            self.cores[to].apply(self.now, event, &mut commands);
            self.cores[from].recycle(bytes);
            self.obey(to, commands);
        }
    }

    fn obey(&mut self, core: usize, mut commands: Vec<Command>) {
        for command in commands.drain(..) {
            match command {
                Command::Write { to, bytes } => {
                    self.wire.push_back((core, usize::from(to.0), bytes));
                }
                Command::Deliver(entry) => {
                    let counts = core == 0 && entry.kind == EntryKind::App;
                    self.delivered += u64::from(counts);
                    self.cores[core].recycle(entry.payload);
                }
                Command::PersistState(state) => {
                    self.apply(core, Event::StatePersisted(state));
                }
                Command::GroupEmpty { .. } if core == 0 => {
                    let mut more = Vec::new();
                    self.cores[0].bootstrap(self.now, &mut more);
                    self.obey(0, more);
                }
                _ => {}
            }
        }
        self.commands = commands;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_delivered() {
        let mut group = Group::new().unwrap();
        let batches = || (1..100).map(|batch| batch % 30);
        for batch in batches() {
            group.batch(batch).unwrap();
        }
        assert_eq!(group.delivered, batches().sum::<u64>());
    }
}
