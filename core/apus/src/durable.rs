//! Durability: which state is stored, and when an entry counts towards a majority.
//!
//! The promise of a view is durable before anything rests on it, in either mode. With
//! [`Durability::Disk`] the log is durable too, and an entry counts towards a majority, this
//! replica's own copy included, only once storage has confirmed it.

use crate::Apus;
use crate::canary::canary;
use crate::{Command, Configuration, Durability, DurableState, Role};
use plover_types::{Index, Micros, Viewstamp};

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
            let mut bytes = 0;
            for entry in self.log.slice(after.index.next(), last).iter() {
                bytes += entry.payload.len();
                entries.push(entry.copied(&mut self.pool));
            }
            if let Role::Leading(leadership) = &mut self.role {
                leadership.unstored.asked(last, bytes, self.awake_at);
            }
            out.push(Command::PersistEntries {
                after,
                anew,
                entries,
            });
        }
    }

    /// The oldest of this leader's entries that its own storage has not confirmed, of a batch the last one, and when it was
    /// asked for that. `None` if none is under way, and where only milestones are stored.
    pub fn unstored(&self) -> Option<(Index, Micros)> {
        match &self.role {
            Role::Leading(leadership) => leadership.unstored.oldest(),
            _ => None,
        }
    }

    /// The milestone of this leader's that its own storage has not confirmed. `None` if none is under way.
    pub fn unstored_milestone(&self) -> Option<Index> {
        let is_under_way = matches!(self.role, Role::Leading(_)) && !self.milestone_is_stored();
        let newest = self.milestones.newest.filter(|_| is_under_way);
        newest.map(|milestone| milestone.index)
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
