//! A group driven by hand.

use apus::{
    Apus, Canary, Command, Config, Durability, DurableState, EntryKind, Event, Phase, ProposeError,
    Start,
};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::VecDeque;

pub const HEARTBEAT: Micros = Micros::from_ms(20);
pub const TIMEOUT: Micros = Micros::from_ms(100);
pub const MESSAGE_BYTES_MAX: usize = 1000;

/// A group whose commands are carried out at once, but for those that a test holds back.
pub struct Group {
    pub now: Micros,
    pub cores: Vec<Apus>,
    pub delivered: Vec<Vec<u64>>,
    /// Messages on their way: from, to, bytes.
    pub wire: VecDeque<(usize, usize, Vec<u8>)>,
    /// Entries that disks have been given and not confirmed.
    pub unwritten: Vec<(usize, Viewstamp)>,
    pub other: Vec<(usize, Command)>,
}

impl Group {
    pub fn new(size: u8, durability: Durability) -> Self {
        Self::of((0..size).map(|me| config(me, size, durability)).collect())
    }

    /// A group that is led by its first replica.
    pub fn of(configs: Vec<Config>) -> Self {
        let size = configs.len();
        let cores = configs.into_iter();
        let cores = cores.map(|config| Apus::new(config, Start::Fresh, Micros(1)));
        let mut group = Self {
            now: Micros(1),
            cores: cores.collect(),
            delivered: vec![Vec::new(); size],
            wire: VecDeque::new(),
            unwritten: Vec::new(),
            other: Vec::new(),
        };
        for core in 0..group.cores.len() {
            group.apply(core, Event::Tick);
        }
        group.settle();
        let mut out = Vec::new();
        group.cores[0].bootstrap(group.now, &mut out);
        group.obey(0, out);
        for _ in 0..8 {
            group.settle();
            group.write_all();
            group.tick(HEARTBEAT);
        }
        group.settle();
        assert_eq!(group.cores[0].status().phase, Phase::Leading);
        group
    }

    pub fn apply(&mut self, core: usize, event: Event<'_>) {
        let mut out = Vec::new();
        self.cores[core].apply(self.now, event, &mut out);
        self.obey(core, out);
    }

    pub fn obey(&mut self, core: usize, out: Vec<Command>) {
        for command in out {
            match command {
                Command::Write { to, bytes } => {
                    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
                    self.wire.push_back((core, usize::from(to.0), bytes));
                }
                Command::PersistState(DurableState { promised, .. }) => {
                    self.apply(core, Event::StatePersisted(promised));
                }
                Command::PersistEntries { after, entries, .. } => {
                    let last = entries.last().map_or(after, |entry| entry.viewstamp);
                    self.unwritten.push((core, last));
                }
                Command::Deliver(entry) => self.delivered[core].push(entry.viewstamp.index.0),
                other => self.other.push((core, other)),
            }
        }
    }

    /// Lets time pass and everyone notice.
    pub fn tick(&mut self, span: Micros) {
        self.now = self.now + span;
        for core in 0..self.cores.len() {
            self.apply(core, Event::Tick);
        }
    }

    /// Carries messages until none is left.
    pub fn settle(&mut self) {
        while let Some((from, to, bytes)) = self.wire.pop_front() {
            self.carry(from, to, &bytes);
        }
    }

    pub fn carry(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.apply(
            to,
            Event::Received {
                from: ReplicaId(from as u8),
                bytes,
            },
        );
    }

    pub fn write_all(&mut self) {
        for (core, last) in std::mem::take(&mut self.unwritten) {
            self.apply(core, Event::EntriesPersisted(last));
        }
    }

    pub fn propose(&mut self, kind: EntryKind, bytes: usize) -> Result<Viewstamp, ProposeError> {
        let mut out = Vec::new();
        let result = self.cores[0].propose(self.now, kind, vec![7; bytes]);
        self.cores[0].flush(self.now, &mut out);
        self.obey(0, out);
        result
    }

    pub fn app(&mut self, bytes: usize) -> Index {
        self.propose(EntryKind::App, bytes)
            .expect("the leader proposes")
            .index
    }

    pub fn commit(&self, core: usize) -> Index {
        self.cores[core].status().commit
    }
}

pub fn config(me: u8, size: u8, durability: Durability) -> Config {
    Config {
        me: ReplicaId(me),
        members: ReplicaSet::of((0..size).map(ReplicaId)),
        first_leader: ReplicaId(0),
        any_voter_stands: false,
        pair: false,
        quorum_selection: false,
        heartbeat: HEARTBEAT,
        timeout: TIMEOUT,
        durability,
        log_bytes_max: 100_000,
        message_bytes_max: MESSAGE_BYTES_MAX,
        seed: u64::from(me),
        canary: Canary::None,
    }
}
