//! What the configuration that a replica was started with decides, once the group has moved on from
//! it: whose word a replica needs that knows nothing else. An operator mends what a replica that
//! waits for the dead is told, and it goes on.

use apus::{
    Apus, Canary, Command, Config, Configuration, Durability, DurableState, Event, Phase, Start,
};
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::{BTreeMap, VecDeque};

const HEARTBEAT: Micros = Micros::from_ms(20);
const TIMEOUT: Micros = Micros::from_ms(100);

fn set(ids: &[u8]) -> ReplicaSet {
    ReplicaSet::of(ids.iter().copied().map(ReplicaId))
}

/// Replicas of a log in memory, by their ids; all messages arrive.
struct Group {
    now: Micros,
    cores: BTreeMap<u8, Apus>,
    durable: BTreeMap<u8, DurableState>,
    wire: VecDeque<(u8, u8, Vec<u8>)>,
    /// Who has reported an empty group, and whether it never ran.
    empty: BTreeMap<u8, bool>,
}

impl Group {
    /// Of these replicas, led by the first.
    fn begin(ids: &[u8]) -> Self {
        let mut group = Self {
            now: Micros(1),
            cores: BTreeMap::new(),
            durable: BTreeMap::new(),
            wire: VecDeque::new(),
            empty: BTreeMap::new(),
        };
        for &id in ids {
            group.start(id, set(ids), Start::Fresh);
        }
        group.run(Micros::from_ms(500));
        assert_eq!(group.empty.remove(&ids[0]), Some(true));
        group.bootstrap(ids[0]);
        group.run(Micros::from_ms(500));
        assert_eq!(group.phase(ids[0]), Phase::Leading);
        for id in &ids[1..] {
            assert_eq!(group.phase(*id), Phase::Following, "replica {id}");
        }
        group.empty.clear();
        group
    }

    fn start(&mut self, id: u8, told: ReplicaSet, start: Start) {
        let config = Config {
            me: ReplicaId(id),
            members: told,
            first_leader: told.iter().next().expect("somebody"),
            any_voter_stands: true,
            pair: false,
            quorum_selection: true,
            heartbeat: HEARTBEAT,
            timeout: TIMEOUT,
            durability: Durability::Memory,
            log_bytes_max: 100_000,
            message_bytes_max: 1000,
            seed: u64::from(id) + self.now.0,
            canary: Canary::None,
        };
        self.cores.insert(id, Apus::new(config, start, self.now));
    }

    /// Its process starts again; the log was in its memory.
    fn restart(&mut self, id: u8, told: ReplicaSet) {
        let start = Start::Restarted {
            durable: self.durable[&id],
            log: Vec::new(),
            base: Viewstamp::default(),
            configuration_at_base: Configuration::default(),
            forgotten: false,
        };
        self.start(id, told, start);
    }

    fn phase(&self, id: u8) -> Phase {
        self.cores[&id].status().phase
    }

    fn bootstrap(&mut self, id: u8) {
        let mut out = Vec::new();
        let core = self.cores.get_mut(&id).expect("it runs");
        core.bootstrap(self.now, &mut out);
        self.obey(id, out);
    }

    fn apply(&mut self, id: u8, event: Event<'_>) {
        let mut out = Vec::new();
        if let Some(core) = self.cores.get_mut(&id) {
            core.apply(self.now, event, &mut out);
        }
        self.obey(id, out);
    }

    fn obey(&mut self, id: u8, out: Vec<Command>) {
        for command in out {
            match command {
                Command::Write { to, bytes } => self.wire.push_back((id, to.0, bytes)),
                Command::PersistState(state) => {
                    self.durable.insert(id, state);
                    self.apply(id, Event::StatePersisted(state.promised));
                }
                Command::GroupEmpty { fresh } => drop(self.empty.insert(id, fresh)),
                _ => {}
            }
        }
    }

    fn run(&mut self, span: Micros) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + Micros::from_ms(5);
            let ids: Vec<_> = self.cores.keys().copied().collect();
            for id in ids {
                self.apply(id, Event::Tick);
            }
            while let Some((from, to, bytes)) = self.wire.pop_front() {
                let from = ReplicaId(from);
                let bytes = &bytes;
                self.apply(to, Event::Received { from, bytes });
            }
        }
    }
}

#[test]
fn a_group_that_lost_all_waits_for_the_word_of_everyone_that_it_was_told_of() {
    // Replica 2 is gone for good, and with the others' memory also the log that says so.
    for (told, is_reported) in [(set(&[1, 2, 3]), false), (set(&[1, 3]), true)] {
        let mut group = Group::begin(&[1, 2, 3]);
        group.cores.clear();
        group.restart(1, told);
        group.restart(3, told);
        group.run(Micros::from_ms(2000));
        assert_eq!(group.empty.get(&1), is_reported.then_some(&false));
        // The operator's word counts for as much as the report.
        group.bootstrap(1);
        group.run(Micros::from_ms(500));
        assert_eq!(group.phase(1) == Phase::Leading, is_reported);
        if is_reported {
            let status = group.cores[&1].status();
            assert_eq!(status.commit, status.last.index, "both hold it");
            assert_eq!(group.phase(3), Phase::Following);
        }
    }
}

/// Or two majorities, each of another group, could commit different things in one generation.
#[test]
fn the_group_of_a_generation_is_the_one_that_its_first_leader_was_told_of() {
    let mut group = Group::begin(&[1, 2, 3]);
    group.cores.clear();
    group.restart(1, set(&[1, 3]));
    group.restart(3, set(&[1, 2, 3]));
    group.run(Micros::from_ms(2000));
    group.bootstrap(1);
    group.run(Micros::from_ms(500));
    for id in [1, 3] {
        let status = group.cores[&id].status();
        assert_eq!(status.members.voters, set(&[1, 3]), "replica {id}");
        assert_eq!(status.commit, status.last.index, "replica {id}");
    }
}

#[test]
fn a_wiped_replica_needs_the_word_of_those_who_are_there() {
    for (told, recovers) in [(set(&[3, 4, 5]), false), (set(&[1, 2, 3]), true)] {
        let mut group = Group::begin(&[1, 2, 3]);
        group.start(3, told, Start::Fresh);
        group.run(Micros::from_ms(2000));
        let phase = if recovers {
            Phase::Following
        } else {
            Phase::Recovering
        };
        assert_eq!(group.phase(3), phase, "told {told}");
        assert_eq!(group.phase(1), Phase::Leading, "whom it does not disturb");
    }
}
