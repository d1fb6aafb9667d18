//! A disk that writes late and in order, and loses what it has not written.

use apus::{Configuration, Durability, DurableState, Entry, Start};
use plover_types::{Index, Micros, SplitMix64, View, Viewstamp};
use std::collections::VecDeque;

/// The log after `after` becomes `entries`; it begins there if `anew` says who is who.
#[derive(Debug)]
pub struct Write {
    pub after: Viewstamp,
    pub entries: Vec<Entry>,
    pub anew: Option<Configuration>,
}

/// What one replica finds again after a crash.
#[derive(Debug)]
pub struct Disk {
    state: Option<DurableState>,
    base: Viewstamp,
    configuration_at_base: Configuration,
    log: VecDeque<Entry>,
    forgotten: bool,
    /// The promise is lost, and was of at least this view.
    lost: Option<View>,
    state_busy_until: Micros,
    busy_until: Micros,
    waiting: VecDeque<Write>,
}

impl Disk {
    pub fn new(configuration_at_base: Configuration) -> Self {
        Self {
            state: None,
            base: Viewstamp::default(),
            configuration_at_base,
            log: VecDeque::new(),
            forgotten: false,
            lost: None,
            state_busy_until: Micros::ZERO,
            busy_until: Micros::ZERO,
            waiting: VecDeque::new(),
        }
    }

    pub fn start(&mut self, durability: Durability) -> Start {
        self.waiting.clear();
        self.busy_until = Micros::ZERO;
        self.state_busy_until = Micros::ZERO;
        let Some(durable) = self.state else {
            let lost = |least| Start::PromiseLost { least };
            return self.lost.map_or(Start::Fresh, lost);
        };
        match durability {
            Durability::Memory => Start::Restarted {
                durable,
                log: Vec::new(),
                base: Viewstamp::default(),
                configuration_at_base: self.configuration_at_base,
                forgotten: false,
            },
            Durability::Disk => Start::Restarted {
                durable,
                log: self.log.iter().cloned().collect(),
                base: self.base,
                configuration_at_base: self.configuration_at_base,
                forgotten: self.forgotten,
            },
        }
    }

    /// The log is damaged in its middle. The next start finds that, and begins a new one.
    pub fn damage(&mut self) {
        self.log.clear();
        self.base = Viewstamp::default();
        self.forgotten = true;
    }

    /// Promise and log are lost, and something beside them tells of a view.
    pub fn lose(&mut self, least: View) {
        *self = Self {
            lost: Some(least),
            ..Self::new(self.configuration_at_base)
        };
    }

    /// Takes a write; how long until it is done, after those before it.
    pub fn submit(&mut self, write: Write, now: Micros, random: &mut SplitMix64) -> Micros {
        self.waiting.push_back(write);
        self.busy_until = self.busy_until.max(now) + Micros(random.range(50, 1500));
        self.busy_until.since(now)
    }

    /// States are written one after the other, too.
    pub fn submit_state(&mut self, now: Micros, takes: Micros) -> Micros {
        self.state_busy_until = self.state_busy_until.max(now) + takes;
        self.state_busy_until.since(now)
    }

    pub fn write_state(&mut self, state: DurableState) {
        self.state = Some(state);
        self.forgotten &= !state.amnesiac;
    }

    /// Does the oldest write, and says up to where the log is now stable.
    pub fn write_oldest(&mut self) -> Viewstamp {
        let write = self.waiting.pop_front().expect("something was submitted");
        let Write {
            after,
            entries,
            anew,
        } = write;
        let position = self.log.iter().position(|entry| entry.viewstamp == after);
        if after == self.base {
            self.log.clear();
        } else if let Some(position) = position {
            self.log.truncate(position + 1);
        } else {
            self.log.clear();
            self.base = after;
            self.configuration_at_base = anew.expect("what is not held begins anew");
        }
        self.log.extend(entries);
        self.log.back().map_or(after, |entry| entry.viewstamp)
    }

    /// Gives back the space up to `index`, once all writes are done: before that, what stands
    /// there may be what a write is about to cut.
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
}
