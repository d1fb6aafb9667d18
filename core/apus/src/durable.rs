//! Durability: which state is stored, and when an entry counts towards a majority.
//!
//! The promise of a view is durable before anything rests on it, in either mode. With
//! [`Durability::Disk`] the log is durable too, and an entry counts towards a majority, this
//! replica's own copy included, only once storage has confirmed it.

use crate::Apus;
use crate::canary::canary;
use crate::{Command, Configuration, Durability, DurableState};
use plover_types::{Index, Viewstamp};

impl Apus {
    /// Stores the state that outlives the process, after a change.
    pub(crate) fn persist_state(&self, out: &mut Vec<Command>) {
        out.push(Command::PersistState(DurableState {
            promised: self.promised,
            generation: self.generation,
            amnesiac: self.recovery.amnesiac,
            milestone: self.milestones.newest,
            version: self.version(),
        }));
    }

    /// Stores what has to be of the entries after `after`, because this part of the log has changed:
    /// all of them in disk mode, milestones in memory mode.
    pub(crate) fn persist_after(
        &mut self,
        after: Viewstamp,
        anew: Option<Configuration>,
        out: &mut Vec<Command>,
    ) {
        if self.config.durability == Durability::Memory {
            self.store_milestone(out);
        } else {
            let last = self.log.last().index.max(after.index);
            let mut entries = self.pool.lend_list();
            for entry in self.log.slice(after.index.next(), last).iter() {
                entries.push(entry.copied(&mut self.pool));
            }
            out.push(Command::PersistEntries {
                after,
                anew,
                entries,
            });
        }
    }

    /// The last index at which this replica's own copy of the log counts towards a majority.
    pub(crate) fn counted(&self) -> Index {
        match self.config.durability {
            Durability::Disk if !canary!(self.config, AcknowledgeBeforeDisk) => self.log.stable(),
            Durability::Memory if !self.milestone_is_stored() => self.log.commit(),
            Durability::Memory | Durability::Disk => self.log.last().index,
        }
    }
}
