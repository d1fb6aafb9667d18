//! After a syncvm the secondary's memory and devices are the leader's at the cut, byte for
//! byte, whatever happened to the syncvms before it.

use super::{Check, Violation};
use plover_types::{ReplicaId, SyncNo, View};
use std::collections::BTreeMap;

/// Cuts that are kept: some minutes of syncvms. A secondary that was stopped for long applies one
/// that lies far back.
const CUTS_KEPT: usize = 20_000;

/// A guest that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its memory.
    pub memory: Vec<u64>,
    /// Its devices.
    pub devices: Vec<u8>,
    /// The name of its history.
    pub history: u64,
}

/// What leaders' guests looked like at their cuts.
#[derive(Debug, Default)]
pub struct MemoryEqualAfterSync {
    cuts: BTreeMap<(View, SyncNo), Snapshot>,
    /// Whose end mark each secondary has received last.
    ended: BTreeMap<ReplicaId, (View, SyncNo)>,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "memory_equal_after_sync",
        section: "PLOVER §4.4, §6.1",
        message,
    }
}

impl MemoryEqualAfterSync {
    /// The leader's guest stands at the cut of a syncvm.
    pub fn cut(&mut self, view: View, sync: SyncNo, snapshot: Snapshot) {
        self.cuts.insert((view, sync), snapshot);
        if self.cuts.len() > CUTS_KEPT {
            self.cuts.pop_first();
        }
    }

    /// The leader's guest at that cut.
    pub fn at_cut(&self, view: View, sync: SyncNo) -> Option<&Snapshot> {
        self.cuts.get(&(view, sync))
    }

    /// A secondary receives the end mark of a syncvm.
    pub fn ended(&mut self, who: ReplicaId, view: View, sync: SyncNo) {
        self.ended.insert(who, (view, sync));
    }

    /// A secondary says that it has applied a syncvm.
    pub fn applied(&self, who: ReplicaId, sync: SyncNo, now: &Snapshot) -> Check {
        let Some(&(view, ended)) = self.ended.get(&who).filter(|(_, ended)| *ended == sync) else {
            return Err(violation(format!(
                "{who} applies syncvm {sync} without its end mark"
            )));
        };
        let Some(cut) = self.cuts.get(&(view, ended)) else {
            return Err(violation(format!(
                "{who} applies syncvm {sync}, whose cut nobody made"
            )));
        };
        if cut.devices != now.devices {
            return Err(violation(format!(
                "after syncvm {sync} {who}'s devices differ"
            )));
        }
        let differ: Vec<_> = (0..cut.memory.len())
            .filter(|page| cut.memory[*page] != now.memory[*page])
            .collect();
        match differ.as_slice() {
            [] => Ok(()),
            pages => Err(violation(format!(
                "after syncvm {sync} {who}'s pages {pages:?} differ"
            ))),
        }
    }
}
