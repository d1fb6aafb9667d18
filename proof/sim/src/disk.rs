//! What a replica's process finds again after a crash.
//!
//! Writes become durable one after the other, each a while after it was asked for; a crash
//! keeps some of those under way, in order, and loses the rest, told or not.

use apus::{DurableState, Entry, Start};
use plover_replica::{Event, GuestRecord};
use plover_types::{ReplicaSet, Viewstamp};
use std::collections::VecDeque;

/// One write.
#[derive(Clone, Debug)]
pub enum Write {
    /// The promise.
    State(DurableState),
    /// The log after this viewstamp.
    Entries(Viewstamp, Vec<Entry>),
    /// The guest record.
    Guest(GuestRecord),
}

/// Stable storage of one replica.
#[derive(Debug, Default)]
pub struct Disk {
    state: Option<DurableState>,
    guest: Option<GuestRecord>,
    base: Viewstamp,
    in_sync_at_base: ReplicaSet,
    log: Vec<Entry>,
    under_way: VecDeque<Write>,
}

impl Disk {
    /// Takes a write; it becomes durable at the matching [`Disk::complete`].
    pub fn begin(&mut self, write: Write) {
        self.under_way.push_back(write);
    }

    /// The oldest write under way is durable; returns what the replica hears.
    pub fn complete(&mut self) -> Option<Event> {
        match self.under_way.pop_front()? {
            Write::State(state) => {
                self.state = Some(state);
                Some(Event::StatePersisted(state.promised))
            }
            Write::Guest(record) => {
                self.guest = Some(record);
                None
            }
            Write::Entries(after, entries) => {
                let last = entries.last().map_or(after, |entry| entry.viewstamp);
                self.append(after, entries);
                Some(Event::EntriesPersisted(last))
            }
        }
    }

    fn append(&mut self, after: Viewstamp, entries: Vec<Entry>) {
        let last = self.log.last().map_or(self.base, |entry| entry.viewstamp);
        if after.index > last.index || after.index < self.base.index || !self.holds(after) {
            // The log jumps: what came before is not ours.
            self.base = after;
            self.in_sync_at_base = self.guest.unwrap_or_default().in_sync;
            self.log.clear();
        }
        self.log
            .retain(|entry| entry.viewstamp.index <= after.index);
        self.log.extend(entries);
    }

    fn holds(&self, at: Viewstamp) -> bool {
        at == self.base || self.log.iter().any(|entry| entry.viewstamp == at)
    }

    /// The process is gone; the first `kept` of the writes under way made it.
    pub fn crash(&mut self, kept: usize) {
        for _ in 0..kept {
            let _ = self.complete();
        }
        self.under_way.clear();
    }

    /// How many writes are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// What a new process finds.
    pub fn start(&self, keeps_log: bool) -> Start {
        if self.state.is_none() && self.guest.is_none() {
            return Start::Fresh;
        }
        let durable = self.state.unwrap_or_default();
        if !keeps_log {
            return Start::Restarted {
                durable,
                log: Vec::new(),
                base: Viewstamp::default(),
                in_sync_at_base: ReplicaSet::EMPTY,
            };
        }
        Start::Restarted {
            durable,
            log: self.log.clone(),
            base: self.base,
            in_sync_at_base: self.in_sync_at_base,
        }
    }
}
