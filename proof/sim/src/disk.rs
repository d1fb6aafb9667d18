//! A replica's stable storage, which its next process finds after a crash.
//!
//! Writes become durable in order, each a while after it was asked for. A crash keeps some of the
//! writes under way, from the oldest on, and loses the rest.

use crate::copy::{Blocks, Copy};
use apus::{Configuration, DurableState, Entry, Start};
use plover_replica::{Event, GroupRecord, GuestRecord};
use plover_types::{Index, SyncNo, Viewstamp};
use std::collections::VecDeque;

/// One write.
#[derive(Clone, Debug)]
pub enum Write {
    /// The consensus core's durable state: its promise.
    State(DurableState),
    /// The log after this viewstamp.
    Entries(Viewstamp, Option<Configuration>, Vec<Entry>),
    /// The guest record.
    Guest(GuestRecord),
    /// The members by the log.
    Group(Box<GroupRecord>),
    /// The blocks that a syncvm changes on the guest's disks.
    Staged(SyncNo, Blocks),
}

/// Stable storage of one replica.
#[derive(Debug, Default)]
pub struct Disk {
    state: Option<DurableState>,
    guest: Option<GuestRecord>,
    /// The members by the log, once it has named any.
    pub group: Option<Box<GroupRecord>>,
    base: Viewstamp,
    configuration_at_base: Configuration,
    log: Vec<Entry>,
    /// The state of the guest's disks.
    pub copy: Copy,
    under_way: VecDeque<Write>,
}

impl Disk {
    /// Takes a write; it becomes durable at the matching [`Disk::complete`].
    pub fn begin(&mut self, write: Write) {
        self.under_way.push_back(write);
    }

    /// The oldest write under way is durable. Returns the event for the replica, if there is one.
    pub fn complete(&mut self) -> Option<Event> {
        match self.under_way.pop_front()? {
            Write::State(state) => {
                self.state = Some(state);
                Some(Event::StatePersisted(state))
            }
            Write::Guest(record) => {
                self.guest = Some(record);
                None
            }
            Write::Group(record) => {
                let place = record.place();
                self.group = Some(record);
                Some(Event::MembersPersisted(place))
            }
            Write::Staged(sync, blocks) => {
                self.copy.staged(blocks);
                Some(Event::DisksStaged(sync))
            }
            Write::Entries(after, anew, entries) => {
                let last = entries.last().map_or(after, |entry| entry.viewstamp);
                self.append(after, anew, entries);
                Some(Event::EntriesPersisted(last))
            }
        }
    }

    fn append(&mut self, after: Viewstamp, anew: Option<Configuration>, entries: Vec<Entry>) {
        if let Some(configuration) = anew {
            self.base = after;
            self.configuration_at_base = configuration;
            self.log.clear();
        }
        assert!(self.holds(after), "a log with a gap before {after}");
        self.log
            .retain(|entry| entry.viewstamp.index <= after.index);
        self.log.extend(entries);
    }

    fn holds(&self, at: Viewstamp) -> bool {
        at == self.base || self.log.iter().any(|entry| entry.viewstamp == at)
    }

    /// The process is gone; the first `kept` of the writes under way have become durable.
    pub fn crash(&mut self, kept: usize) {
        for _ in 0..kept {
            let _ = self.complete();
        }
        self.under_way.clear();
    }

    /// Gives back the space of entries up to `index`. It waits until all writes are done, because a
    /// write may still replace entries there.
    pub fn reclaim(&mut self, index: Index) {
        if !self.under_way.is_empty() {
            return;
        }
        let reclaimed = |entry: &&Entry| entry.viewstamp.index <= index;
        let count = self.log.iter().take_while(reclaimed).count();
        for entry in self.log.drain(..count) {
            self.base = entry.viewstamp;
            self.configuration_at_base.note(entry.kind);
        }
    }

    /// Whether it knows of a new generation of the guest, and its log is of an older one.
    pub fn is_between_generations(&self) -> bool {
        let generation = self.state.map(|state| state.generation).unwrap_or_default();
        self.base != Viewstamp::default() && self.base.view < generation
    }

    /// The group's version, as far as it knows: a release that does not speak it refuses this disk.
    pub fn version(&self) -> u8 {
        let mut configuration = self.configuration_at_base;
        for entry in &self.log {
            configuration.note(entry.kind);
        }
        let stored = self.state.map_or(0, |state| state.version);
        stored.max(configuration.version)
    }

    /// How many writes are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The state with which a new process starts.
    pub fn start(&self, keeps_log: bool) -> Start {
        let durable = match (self.state, self.guest) {
            (Some(durable), _) => durable,
            (None, None) => return Start::Fresh,
            (None, Some(guest)) => {
                let least = guest.promised_at_least();
                return Start::PromiseLost { least };
            }
        };
        if !keeps_log {
            return Start::Restarted {
                durable,
                log: Vec::new(),
                base: Viewstamp::default(),
                configuration_at_base: Configuration::default(),
                forgotten: false,
            };
        }
        Start::Restarted {
            durable,
            log: self.log.clone(),
            base: self.base,
            configuration_at_base: self.configuration_at_base,
            forgotten: false,
        }
    }
}
