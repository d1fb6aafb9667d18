//! What outlives the process, and what counts because it does.
//!
//! The promise of a view is durable before anything rests on it, in either mode. With
//! [`Durability::Disk`] the log is too, and an entry counts towards a majority, this replica's own
//! copy included, only once storage has confirmed it.

use crate::Apus;
use crate::canary::canary;
use crate::{Command, Configuration, Durability, DurableState};
use plover_types::{Index, View, Viewstamp};

/// The generation that a log on storage is of, where storage knew of `known`. They are two writes, and a
/// crash may come between them. Every viewstamp of a generation is at least its view:
///
/// ```text
///   known, but the log begins in a lower view    of an older generation: the new generation's log was not
///                                                written. Of none that counts, so that the next
///                                                leader's word replaces it (`generation`)
///   a log that begins at index 0                 of the generation that its base names
///   a log whose beginning is reclaimed           of the generation that is known
/// ```
pub(crate) fn generation_of(base: Viewstamp, known: View) -> View {
    if base.view < known {
        View::NONE
    } else if base.index == Index(0) {
        base.view
    } else {
        known
    }
}

impl Apus {
    /// What must outlive the process has changed.
    pub(crate) fn persist_state(&self, out: &mut Vec<Command>) {
        out.push(Command::PersistState(DurableState {
            promised: self.promised,
            generation: self.generation,
            amnesiac: self.recovery.amnesiac,
        }));
    }

    /// Disk mode: the log after `after` is new.
    pub(crate) fn persist_after(
        &mut self,
        after: Viewstamp,
        anew: Option<Configuration>,
        out: &mut Vec<Command>,
    ) {
        if self.config.durability == Durability::Disk {
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

    /// Up to where our own copy of the log counts.
    pub(crate) fn counted(&self) -> Index {
        match self.config.durability {
            Durability::Disk if !canary!(self.config, AcknowledgeBeforeDisk) => self.log.stable(),
            Durability::Memory | Durability::Disk => self.log.last().index,
        }
    }
}
