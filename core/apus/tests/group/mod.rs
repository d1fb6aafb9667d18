//! A group in lockstep, without random decisions and with the test's clock. Commands are carried out
//! at once, unless the test holds them back.
//!
//! ```text
//!   run(span):   every half heartbeat   tick everyone -> carry all messages -> write all disks
//!   dead         no tick, no message; `restart` starts it with what its disk holds
//!   stopped      no tick, and its messages wait
//!   cut          messages between two replicas are lost
//! ```
//!
//! Random faults are simulated in `proof/consensus`.

use apus::{
    Apus, Canary, Command, Config, Contradiction, Durability, Entry, EntryKind, Event, Members,
    Phase, ProposeError, Start, Status,
};
use plover_types::wire::WIRE_VERSION;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::{BTreeSet, VecDeque};

mod disk;
pub use disk::{Disk, Write};

pub const HEARTBEAT: Micros = Micros::from_ms(20);
pub const TIMEOUT: Micros = Micros::from_ms(100);
pub const MESSAGE_BYTES_MAX: usize = 1000;
/// Long enough for a replica to notice a silence and act on it.
pub const LONG: Micros = Micros::from_ms(1000);

/// Whether a message is lost: from, to, bytes.
type Filter = Box<dyn Fn(usize, usize, &[u8]) -> bool>;

pub struct Group {
    pub now: Micros,
    pub configs: Vec<Config>,
    pub cores: Vec<Apus>,
    pub disks: Vec<Disk>,
    pub dead: BTreeSet<usize>,
    pub stopped: BTreeSet<usize>,
    pub cut: BTreeSet<(usize, usize)>,
    pub filter: Option<Filter>,
    pub delivered: Vec<Vec<Entry>>,
    /// Messages on their way: from, to, bytes.
    pub wire: VecDeque<(usize, usize, Vec<u8>)>,
    pub unwritten: Vec<Write>,
    /// Everything else that was commanded.
    pub other: Vec<(usize, Command)>,
    pub writes: usize,
}

impl Group {
    /// A group that is led by its first replica.
    pub fn new(size: u8, durability: Durability) -> Self {
        Self::of((0..size).map(|me| config(me, size, durability)).collect())
    }

    /// The same, with these configurations.
    pub fn of(configs: Vec<Config>) -> Self {
        let mut group = Self::unled(configs);
        group.settle();
        group.bootstrap(0);
        for _ in 0..8 {
            group.settle();
            group.write_all();
            group.tick(HEARTBEAT);
        }
        group.settle();
        assert_eq!(group.phase(0), Phase::Leading);
        group
    }

    /// A group of three that is led by replica 0, and whose in-sync set is {0, 1}.
    pub fn protected(durability: Durability) -> Self {
        let mut group = Self::new(3, durability);
        group.cores[1].set_holds_state(true);
        group.in_sync(&[0, 1]);
        group.run(TIMEOUT);
        group
    }

    /// A group that has never run, and whose replicas have just started.
    pub fn unled(configs: Vec<Config>) -> Self {
        let size = configs.len();
        let now = Micros(1);
        let fresh = |config: &Config| Apus::new(config.clone(), Start::Fresh, now);
        let mut group = Self {
            now,
            cores: configs.iter().map(fresh).collect(),
            configs,
            disks: (0..size).map(|_| Disk::default()).collect(),
            dead: BTreeSet::new(),
            stopped: BTreeSet::new(),
            cut: BTreeSet::new(),
            filter: None,
            delivered: vec![Vec::new(); size],
            wire: VecDeque::new(),
            unwritten: Vec::new(),
            other: Vec::new(),
            writes: 0,
        };
        for core in 0..size {
            group.apply(core, Event::Tick);
        }
        group
    }

    // ---- misfortune and luck

    pub fn crash(&mut self, core: usize) {
        self.dead.insert(core);
        self.wire
            .retain(|(from, to, _)| *from != core && *to != core);
        self.unwritten.retain(|write| write.to != core);
    }

    /// A process starts with what the disk holds.
    pub fn start(&mut self, core: usize) {
        let start = self.disks[core].start(self.configs[core].durability);
        self.dead.remove(&core);
        self.configs[core].seed += 1000;
        self.delivered[core].clear();
        self.cores[core] = Apus::new(self.configs[core].clone(), start, self.now);
    }

    pub fn restart(&mut self, core: usize) {
        self.crash(core);
        self.start(core);
    }

    pub fn cut(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    pub fn isolate(&mut self, core: usize) {
        (0..self.cores.len()).for_each(|other| self.cut(core, other));
    }

    // ---- time

    /// Lets time pass and ticks every replica.
    pub fn tick(&mut self, span: Micros) {
        self.now = self.now + span;
        for core in 0..self.cores.len() {
            if !self.stopped.contains(&core) {
                self.apply(core, Event::Tick);
            }
        }
    }

    pub fn run(&mut self, span: Micros) {
        let until = self.now + span;
        while self.now < until {
            self.step();
        }
    }

    fn step(&mut self) {
        self.tick(Micros(HEARTBEAT.0 / 2));
        self.settle();
        self.write_all();
        self.settle();
    }

    /// Runs until `done`; whether that came true within `span`.
    pub fn run_until(&mut self, span: Micros, done: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + span;
        while !done(self) && self.now < until {
            self.step();
        }
        done(self)
    }

    /// Carries messages until none is left that can arrive.
    pub fn settle(&mut self) {
        let mut waiting = VecDeque::new();
        while let Some((from, to, bytes)) = self.wire.pop_front() {
            if self.stopped.contains(&to) {
                waiting.push_back((from, to, bytes));
            } else {
                self.carry(from, to, &bytes);
            }
        }
        self.wire = waiting;
    }

    /// A message arrives, whatever is cut.
    pub fn carry(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let from = ReplicaId(from as u8);
        self.apply(to, Event::Received { from, bytes });
    }

    /// Disks confirm what they were given.
    pub fn write_all(&mut self) {
        for write in std::mem::take(&mut self.unwritten) {
            self.write(write);
        }
    }

    pub fn write(&mut self, write: Write) {
        let (to, last) = (write.to, write.last);
        self.disks[to].write(write);
        self.apply(to, Event::EntriesPersisted(last));
    }

    // ---- acting

    pub fn apply(&mut self, core: usize, event: Event<'_>) {
        self.turn(core, |core, now, out| core.apply(now, event, out));
    }

    pub fn bootstrap(&mut self, core: usize) {
        self.turn(core, |core, now, out| core.bootstrap(now, out));
    }

    pub fn turn<T>(
        &mut self,
        core: usize,
        act: impl FnOnce(&mut Apus, Micros, &mut Vec<Command>) -> T,
    ) -> Option<T> {
        if self.dead.contains(&core) || core >= self.cores.len() {
            return None;
        }
        let mut out = Vec::new();
        let result = act(&mut self.cores[core], self.now, &mut out);
        for command in out {
            self.obey(core, command);
        }
        Some(result)
    }

    fn obey(&mut self, core: usize, command: Command) {
        match command {
            Command::Write { to, bytes } => {
                assert!(bytes.len() <= MESSAGE_BYTES_MAX);
                self.writes += 1;
                let to = usize::from(to.0);
                let filtered = self
                    .filter
                    .as_ref()
                    .is_some_and(|lost| lost(core, to, &bytes));
                if !(filtered || self.cut.contains(&(core, to)) || self.dead.contains(&to)) {
                    self.wire.push_back((core, to, bytes));
                }
            }
            Command::PersistState(state) => {
                self.disks[core].state = Some(state);
                self.apply(core, Event::StatePersisted(state));
            }
            Command::PersistEntries {
                after,
                anew,
                entries,
            } => self.unwritten.push(Write::new(core, after, anew, entries)),
            Command::Deliver(entry) => self.delivered[core].push(entry),
            // The others answer the noise of a test.
            Command::Refuse { peer, why }
                if !matches!(why, Contradiction::Malformed | Contradiction::Ahead { .. }) =>
            {
                panic!("replica {core} refuses {peer}, which is a correct one: {why}")
            }
            other => self.other.push((core, other)),
        }
    }

    pub fn propose_on(
        &mut self,
        core: usize,
        kind: EntryKind,
        bytes: usize,
    ) -> Result<Viewstamp, ProposeError> {
        let proposed = self.turn(core, |core, now, out| {
            let proposed = core.propose(now, kind, vec![7; bytes]);
            core.flush(now, out);
            proposed
        });
        proposed.expect("it runs")
    }

    pub fn propose(&mut self, kind: EntryKind, bytes: usize) -> Result<Viewstamp, ProposeError> {
        self.propose_on(0, kind, bytes)
    }

    /// The first replica proposes an entry of so many bytes.
    pub fn app(&mut self, bytes: usize) -> Index {
        let proposed = self.propose(EntryKind::App, bytes);
        proposed.expect("the leader proposes").index
    }

    /// The leader names this in-sync set, and has that committed.
    pub fn in_sync(&mut self, ids: &[u8]) {
        let leader = self.leader().expect("someone leads");
        let named = self.propose_on(leader, EntryKind::InSync(set(ids)), 0);
        let index = named.expect("the leader proposes").index;
        assert!(self.run_until(LONG, |group| group.commit(leader) >= index));
    }

    /// The leader changes the members.
    pub fn members(&mut self, voters: &[u8], learners: &[u8]) -> Result<Viewstamp, ProposeError> {
        let members = Members {
            voters: set(voters),
            learners: set(learners),
        };
        let leader = self.leader().expect("someone leads");
        self.propose_on(leader, EntryKind::Members(members), 4)
    }

    // ---- looking

    pub fn status(&self, core: usize) -> Status {
        self.cores[core].status()
    }

    pub fn commit(&self, core: usize) -> Index {
        self.status(core).commit
    }

    pub fn phase(&self, core: usize) -> Phase {
        self.status(core).phase
    }

    /// The leader of the highest view.
    pub fn leader(&self) -> Option<usize> {
        let leads = |core: &usize| !self.dead.contains(core) && self.phase(*core) == Phase::Leading;
        let leaders = (0..self.cores.len()).filter(leads);
        leaders.max_by_key(|core| self.status(*core).view)
    }

    /// Whether `core` comes to lead.
    pub fn leads_soon(&mut self, core: usize) -> bool {
        self.run_until(LONG, |group| group.leader() == Some(core))
    }

    /// The places of what `core` has delivered.
    pub fn delivered_at(&self, core: usize) -> Vec<u64> {
        let delivered = self.delivered[core].iter();
        delivered.map(|entry| entry.viewstamp.index.0).collect()
    }

    /// Up to where `core` has delivered.
    pub fn delivered_to(&self, core: usize) -> Index {
        let last = self.delivered[core].last();
        last.map_or(Index(0), |entry| entry.viewstamp.index)
    }

    /// Whether the group was last found empty, and as one that never ran, by `core`.
    pub fn found_empty(&self, core: usize) -> Option<bool> {
        let found = |(from, command): &(usize, Command)| match command {
            Command::GroupEmpty { fresh } if *from == core => Some(*fresh),
            _ => None,
        };
        self.other.iter().rev().find_map(found)
    }

    /// The reports of `core` on the liveness of others, in order.
    pub fn liveness(&self, core: usize) -> Vec<(u8, bool)> {
        let told = self
            .other
            .iter()
            .filter_map(|(from, command)| match command {
                Command::PeerAlive { peer, alive } if *from == core => Some((peer.0, *alive)),
                _ => None,
            });
        told.collect()
    }
}

pub fn set(ids: &[u8]) -> ReplicaSet {
    ReplicaSet::of(ids.iter().copied().map(ReplicaId))
}

/// Replica `me` of `size`, which may lead only if it holds the state.
pub fn config(me: u8, size: u8, durability: Durability) -> Config {
    Config {
        me: ReplicaId(me),
        members: ReplicaSet::of((0..size).map(ReplicaId)),
        first_leader: ReplicaId(0),
        any_voter_stands: false,
        pair: false,
        fencing: false,
        quorum_selection: false,
        newest_version: WIRE_VERSION,
        heartbeat: HEARTBEAT,
        timeout: TIMEOUT,
        timeout_min: TIMEOUT,
        durability,
        log_bytes_max: 100_000,
        message_bytes_max: MESSAGE_BYTES_MAX,
        seed: u64::from(me),
        canary: Canary::None,
        known_after: Micros(100 * HEARTBEAT.0),
    }
}

/// The same for a group that only replicates its log.
pub fn plain_config(me: u8, size: u8, durability: Durability) -> Config {
    Config {
        any_voter_stands: true,
        ..config(me, size, durability)
    }
}
