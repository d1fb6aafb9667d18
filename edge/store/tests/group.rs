//! Three consensus cores over three stores: what damage means to the group.

use apus::{
    Apus, Canary, Command, Config, Durability, EntryKind, Event, Phase, ProposeError, Start,
};
use plover_store::{Completion, Options, Recovered, Store};
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::VecDeque;
use std::path::PathBuf;

const HEARTBEAT: Micros = Micros::from_ms(20);

struct Replica {
    core: Apus,
    store: Store,
    delivered: Vec<Vec<u8>>,
}

/// A group in one thread; a disk is as fast as the wire here.
struct Group {
    dir: tempfile::TempDir,
    now: Micros,
    seed: u64,
    replicas: Vec<Option<Replica>>,
    wire: VecDeque<(usize, usize, Vec<u8>)>,
}

impl Group {
    fn new() -> Self {
        let mut group = Self {
            dir: tempfile::tempdir().unwrap(),
            now: Micros(1),
            seed: 1,
            replicas: vec![None, None, None],
            wire: VecDeque::new(),
        };
        for id in 0..3 {
            let found = group.start(id);
            assert!(found.promise.is_none());
        }
        group.pass(4);
        let mut out = Vec::new();
        let first = group.replicas[0].as_mut().unwrap();
        first.core.bootstrap(group.now, &mut out);
        group.obey(0, out);
        group.pass(20);
        group
    }

    fn state_dir(&self, id: usize) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    fn start(&mut self, id: usize) -> Recovered {
        let options = Options {
            segment_bytes: 4096,
            ..Options::new("group", Durability::Disk)
        };
        let (store, found) = Store::open(&self.state_dir(id), &options).unwrap();
        self.seed += 1;
        let core = Apus::new(config(id, self.seed), found.clone().start(), self.now);
        self.replicas[id] = Some(Replica {
            core,
            store,
            delivered: Vec::new(),
        });
        found
    }

    fn stop(&mut self, id: usize) {
        self.replicas[id] = None;
    }

    fn apply(&mut self, id: usize, event: Event<'_>) {
        let mut out = Vec::new();
        if let Some(replica) = &mut self.replicas[id] {
            replica.core.apply(self.now, event, &mut out);
        }
        self.obey(id, out);
    }

    fn obey(&mut self, id: usize, out: Vec<Command>) {
        let replica = self.replicas[id].as_mut();
        let Some(replica) = replica else { return };
        for command in out {
            match command {
                Command::Write { to, bytes } => {
                    self.wire.push_back((id, usize::from(to.0), bytes));
                }
                Command::PersistState(state) => replica.store.persist_state(state),
                Command::PersistEntries {
                    after,
                    anew,
                    entries,
                } => replica.store.persist_entries(after, anew, &entries),
                Command::Deliver(entry) if entry.kind == EntryKind::App => {
                    replica.delivered.push(entry.payload);
                }
                _ => {}
            }
        }
    }

    /// Syncs every store, carries every message, until nothing is left to do.
    fn settle(&mut self) {
        loop {
            let mut done = Vec::new();
            for id in 0..3 {
                if let Some(replica) = &mut self.replicas[id] {
                    replica.store.sync();
                    replica.store.completions(&mut done);
                }
                for completion in done.drain(..) {
                    match completion {
                        Completion::StatePersisted(v) => self.apply(id, Event::StatePersisted(v)),
                        Completion::EntriesPersisted(v) => {
                            self.apply(id, Event::EntriesPersisted(v));
                        }
                        Completion::Failed(error) => panic!("{error}"),
                    }
                }
            }
            let busy = |r: &Option<Replica>| r.as_ref().is_some_and(|r| r.store.is_busy());
            if self.wire.is_empty() && !self.replicas.iter().any(busy) {
                return;
            }
            for (from, to, bytes) in std::mem::take(&mut self.wire) {
                let from = ReplicaId(from as u8);
                let bytes = &bytes;
                self.apply(to, Event::Received { from, bytes });
            }
        }
    }

    /// Lets heartbeats pass.
    fn pass(&mut self, heartbeats: usize) {
        for _ in 0..heartbeats {
            self.now = self.now + HEARTBEAT;
            for id in 0..3 {
                self.apply(id, Event::Tick);
            }
            self.settle();
        }
    }

    fn phase(&self, id: usize) -> Phase {
        self.replicas[id].as_ref().unwrap().core.status().phase
    }

    fn leader(&self) -> Option<usize> {
        (0..3).find(|id| self.replicas[*id].is_some() && self.phase(*id) == Phase::Leading)
    }

    fn append(&mut self, payload: &[u8]) -> Result<Viewstamp, ProposeError> {
        let leader = self.leader().ok_or(ProposeError::NotLeader)?;
        let mut out = Vec::new();
        let core = &mut self.replicas[leader].as_mut().unwrap().core;
        let result = core.propose(self.now, EntryKind::App, payload.to_vec());
        core.flush(self.now, &mut out);
        self.obey(leader, out);
        self.settle();
        result
    }
}

fn config(id: usize, seed: u64) -> Config {
    Config {
        me: ReplicaId(id as u8),
        members: ReplicaSet(0b111),
        first_leader: ReplicaId(0),
        any_voter_stands: true,
        pair: false,
        quorum_selection: false,
        heartbeat: HEARTBEAT,
        timeout: Micros::from_ms(100),
        durability: Durability::Disk,
        log_bytes_max: 1 << 20,
        message_bytes_max: 4000,
        seed,
        canary: Canary::None,
    }
}

fn payload(number: u32) -> Vec<u8> {
    let mut bytes = vec![0x55; 300];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A group that has committed `count` entries.
fn filled(count: u32) -> Group {
    let mut group = Group::new();
    for number in 0..count {
        group.append(&payload(number)).unwrap();
    }
    group.pass(3);
    group
}

fn delivered(group: &Group, id: usize) -> usize {
    group.replicas[id].as_ref().unwrap().delivered.len()
}

/// Flips a bit in the middle of a replica's oldest segment.
fn damage(group: &Group, id: usize) {
    let path = group.state_dir(id).join("log.0000000000000001");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2000] ^= 4;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_replica_with_a_damaged_log_recovers_from_the_others_before_it_votes() {
    let mut group = filled(60);
    let damaged = (group.leader().unwrap() + 1) % 3;
    group.stop(damaged);
    damage(&group, damaged);
    let found = group.start(damaged);
    assert!(found.forgotten && found.damage.is_some() && found.promise.is_some());
    assert_eq!(group.phase(damaged), Phase::Recovering);
    group.pass(30);
    assert_eq!(group.phase(damaged), Phase::Following);
    assert_eq!(delivered(&group, damaged), 60);
    // It counts again, over another restart too: with it alone the leader commits.
    let third = 3 - damaged - group.leader().unwrap();
    group.stop(third);
    group.stop(damaged);
    let found = group.start(damaged);
    assert!(!found.forgotten, "what it has recovered is on its disk");
    assert!(found.log.len() >= 60);
    group.pass(30);
    group.append(&payload(60)).unwrap();
    group.pass(30);
    assert_eq!(delivered(&group, damaged), 61);
}

#[test]
fn a_replica_that_crashes_while_it_recovers_has_still_forgotten() {
    let mut group = filled(10);
    let damaged = (group.leader().unwrap() + 1) % 3;
    group.stop(damaged);
    damage(&group, damaged);
    // Nobody is there to recover from.
    for other in (0..3).filter(|id| *id != damaged) {
        group.stop(other);
    }
    for _ in 0..3 {
        let found = group.start(damaged);
        assert!(found.forgotten);
        group.pass(30);
        assert_eq!(group.phase(damaged), Phase::Recovering);
        group.stop(damaged);
    }
}

#[test]
fn a_group_on_disk_goes_on_after_all_of_it_was_restarted() {
    let mut group = filled(60);
    for id in 0..3 {
        group.stop(id);
    }
    for id in 0..3 {
        let found = group.start(id);
        assert!(
            matches!(found.start(), Start::Restarted { forgotten: false, log, .. } if log.len() >= 60)
        );
    }
    group.pass(60);
    group.append(&payload(60)).unwrap();
    group.pass(5);
    for id in 0..3 {
        assert_eq!(delivered(&group, id), 61, "replica {id}");
    }
}
