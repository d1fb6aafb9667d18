//! A disk that writes late and in order, loses what it has not written, and now and then something
//! that it has written.
//!
//! ```text
//!   PersistEntries -> waiting, waiting, waiting -> log         EntriesPersisted
//!                     '--- one sync ---'
//!   crash:  some of what waits reached the disk, the last of it perhaps in part (a torn tail:
//!           its entries' checksums end there), the rest did not
//! ```
//!
//! Damage in the middle of the log is found by its checksums at the next start: the log is useless
//! from there on, and the process starts as one that has forgotten what it accepted.

use apus::{Configuration, Durability, DurableState, Entry, Members, Start};
use plover_sim::rng::Rng;
use plover_types::{Index, Micros, Viewstamp};
use std::collections::VecDeque;

/// The log after `after` becomes `entries`; it begins there if `anew` is given.
#[derive(Debug)]
pub struct Write {
    /// The viewstamp before the first entry.
    pub after: Viewstamp,
    /// The entries.
    pub entries: Vec<Entry>,
    /// The configuration at `after`, if the log begins anew there.
    pub anew: Option<Configuration>,
}

/// The stable storage of one host.
#[derive(Debug)]
pub struct Disk {
    state: Option<DurableState>,
    states_waiting: VecDeque<DurableState>,
    base: Viewstamp,
    configuration_at_base: Configuration,
    log: VecDeque<Entry>,
    waiting: VecDeque<Write>,
    /// How many of those the sync under way covers.
    syncing: usize,
    state_busy_until: Micros,
    /// How much longer than usual a write takes.
    pub slowness: u64,
    /// Its log is found damaged at the next start.
    pub damaged: bool,
    /// No process that started on it empty has recovered yet.
    pub is_new: bool,
    /// Something that it had confirmed was lost, once.
    pub has_forgotten: bool,
    /// The last entry that was chosen when a process began to recover its log.
    owes: Viewstamp,
}

/// The writes that a disk lost in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Writes that never reached it.
    pub writes: usize,
    /// One reached it in part.
    pub torn: bool,
}

impl Disk {
    /// An empty disk of a host in a group that begins as `configuration`.
    pub fn new(configuration: Configuration) -> Self {
        Self {
            state: None,
            states_waiting: VecDeque::new(),
            base: Viewstamp::default(),
            configuration_at_base: configuration,
            log: VecDeque::new(),
            waiting: VecDeque::new(),
            syncing: 0,
            state_busy_until: Micros::ZERO,
            slowness: 1,
            damaged: false,
            is_new: true,
            has_forgotten: false,
            owes: Viewstamp::default(),
        }
    }

    /// The process is gone: a random part of the waiting writes has reached the disk.
    pub fn crash(&mut self, chance: &mut Rng) -> Loss {
        for _ in 0..chance.range(0, self.states_waiting.len() as u64) {
            self.store_state();
        }
        for _ in 0..chance.range(0, self.waiting.len() as u64) {
            self.store_oldest();
        }
        let mut loss = Loss {
            writes: self.waiting.len(),
            torn: false,
        };
        if let Some(write) = self.waiting.front_mut().filter(|_| chance.often(500)) {
            let kept = chance.range(0, write.entries.len() as u64) as usize;
            loss.torn = kept < write.entries.len();
            write.entries.truncate(kept);
            self.store_oldest();
        }
        self.states_waiting.clear();
        self.waiting.clear();
        self.syncing = 0;
        self.state_busy_until = Micros::ZERO;
        loss
    }

    /// The state that a process finds when it starts. `chosen` is the last entry that was delivered anywhere.
    pub fn start(&mut self, durability: Durability, chosen: Viewstamp) -> Start {
        self.owes = if self.would_recover() {
            chosen
        } else {
            Viewstamp::default()
        };
        let Some(durable) = self.state else {
            return Start::Fresh;
        };
        let mut log = Vec::new();
        let mut base = Viewstamp::default();
        if durability == Durability::Disk {
            log = self.log.iter().cloned().collect();
            base = self.base;
        }
        Start::Restarted {
            durable,
            log,
            base,
            configuration_at_base: self.configuration_at_base,
            forgotten: std::mem::take(&mut self.damaged),
        }
    }

    /// Takes a write of a promise; how long until it is done, after those before it.
    pub fn submit_state(&mut self, state: DurableState, now: Micros, chance: &mut Rng) -> Micros {
        self.states_waiting.push_back(state);
        let span = Micros(chance.range(100, 2500) * self.slowness);
        self.state_busy_until = self.state_busy_until.max(now) + span;
        self.state_busy_until.since(now)
    }

    /// Takes a write of entries. If no sync is under way one begins, which takes so long.
    pub fn submit(&mut self, write: Write, chance: &mut Rng) -> Option<Micros> {
        self.waiting.push_back(write);
        (self.syncing == 0).then(|| self.begin_sync(chance))
    }

    /// A sync covers all that waits when it begins (group commit).
    fn begin_sync(&mut self, chance: &mut Rng) -> Micros {
        self.syncing = self.waiting.len();
        Micros(chance.range(50, 1500) * self.slowness)
    }

    /// The sync under way is done: up to where the log is durable now, and how long the next one
    /// takes, if anything waits.
    pub fn end_sync(&mut self, chance: &mut Rng) -> (Viewstamp, Option<Micros>) {
        let mut last = Viewstamp::default();
        for _ in 0..std::mem::take(&mut self.syncing) {
            last = self.store_oldest();
        }
        let more = !self.waiting.is_empty();
        (last, more.then(|| self.begin_sync(chance)))
    }

    /// The oldest promise that waits is durable now.
    pub fn store_state(&mut self) -> DurableState {
        let state = self.states_waiting.pop_front();
        let state = state.expect("a promise was submitted");
        self.state = Some(state);
        state
    }

    /// The group begins anew without its log.
    pub fn owes_nothing(&mut self) {
        self.owes = Viewstamp::default();
    }

    /// The entry that a process would trust its log to hold if it started now, and the end of that log.
    pub fn is_trusted_for(&self) -> Option<(Viewstamp, Viewstamp)> {
        let last = self.log.back().map_or(self.base, |entry| entry.viewstamp);
        (!self.would_recover()).then_some((self.owes, last))
    }

    /// The oldest write that waits is on the disk; up to where the log is.
    fn store_oldest(&mut self) -> Viewstamp {
        let write = self.waiting.pop_front().expect("entries were submitted");
        let Write {
            after,
            entries,
            anew,
        } = write;
        let place = self.log.iter().position(|entry| entry.viewstamp == after);
        match (anew, place) {
            (Some(configuration), _) => {
                self.log.clear();
                self.base = after;
                self.configuration_at_base = configuration;
            }
            (None, Some(place)) => self.log.truncate(place + 1),
            (None, None) => {
                assert_eq!(
                    after, self.base,
                    "the log neither holds {after} nor begins there"
                );
                self.log.clear();
            }
        }
        self.log.extend(entries);
        self.log.back().map_or(after, |entry| entry.viewstamp)
    }

    /// Gives back the space up to `index`. It waits until all writes are done, because a write may still
    /// replace entries there.
    pub fn reclaim(&mut self, index: Index) {
        if !self.waiting.is_empty() {
            return;
        }
        while self
            .log
            .front()
            .is_some_and(|entry| entry.viewstamp.index <= index)
        {
            let entry = self.log.pop_front().expect("just seen");
            self.base = entry.viewstamp;
            self.configuration_at_base.note(entry.kind);
        }
    }

    /// The group that its log names.
    pub fn members(&self) -> Members {
        let mut configuration = self.configuration_at_base;
        for entry in &self.log {
            configuration.note(entry.kind);
        }
        configuration.members
    }

    /// Whether the entry of this viewstamp is, or was, on the disk.
    pub fn holds(&self, viewstamp: Viewstamp) -> bool {
        let held = || {
            self.log
                .iter()
                .rev()
                .any(|entry| entry.viewstamp == viewstamp)
        };
        // What is reclaimed counts only in the generation that the log is of.
        let reclaimed = self.base.index >= viewstamp.index && self.base.view >= viewstamp.view;
        self.has_forgotten || reclaimed || held()
    }

    /// Whether a process that starts on it has to recover its log first.
    pub fn would_recover(&self) -> bool {
        self.damaged || self.state.is_none_or(|state| state.amnesiac)
    }
}
