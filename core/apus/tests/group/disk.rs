//! The stable storage of a replica, which it finds again after a crash.

use apus::{Configuration, Durability, DurableState, Entry, Start};
use plover_types::{View, Viewstamp};

#[derive(Default)]
pub struct Disk {
    pub state: Option<DurableState>,
    /// The promise is lost, and something tells of this view.
    lost: Option<View>,
    base: Viewstamp,
    configuration: Configuration,
    log: Vec<Entry>,
}

impl Disk {
    /// Its promise, of this view or a later one, is lost with the log.
    pub fn lost(least: View) -> Self {
        Self {
            lost: Some(least),
            ..Self::default()
        }
    }

    pub fn start(&self, durability: Durability) -> Start {
        let Some(durable) = self.state else {
            let lost = |least| Start::PromiseLost { least };
            return self.lost.map_or(Start::Fresh, lost);
        };
        let keeps = durability == Durability::Disk;
        Start::Restarted {
            durable,
            log: self.log.iter().filter(|_| keeps).cloned().collect(),
            base: self.base,
            configuration_at_base: self.configuration,
            forgotten: false,
        }
    }

    pub fn write(&mut self, write: Write) {
        if let Some(configuration) = write.anew {
            self.log.clear();
            (self.base, self.configuration) = (write.after, configuration);
        }
        let after = write.after.index;
        self.log.retain(|entry| entry.viewstamp.index <= after);
        self.log.extend(write.entries);
    }
}

/// A write that a disk was given and has not confirmed.
pub struct Write {
    pub to: usize,
    pub last: Viewstamp,
    after: Viewstamp,
    anew: Option<Configuration>,
    entries: Vec<Entry>,
}

impl Write {
    pub fn new(
        to: usize,
        after: Viewstamp,
        anew: Option<Configuration>,
        entries: Vec<Entry>,
    ) -> Self {
        Self {
            to,
            last: entries.last().map_or(after, |entry| entry.viewstamp),
            after,
            anew,
            entries,
        }
    }
}
