//! After a syncvm, the secondary's memory and devices equal the leader's at the cut, byte for byte,
//! even if earlier syncvms failed.

use super::{Check, Violation};
use plover_types::{ReplicaId, SyncNo, View};
use std::collections::BTreeMap;

/// How many cuts are kept: some minutes of syncvms, because a secondary that was stopped for long
/// may apply an old one.
const CUTS_KEPT: usize = 20_000;

/// The state of a paused guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its memory.
    pub memory: Vec<u64>,
    /// Its devices.
    pub devices: Vec<u8>,
    /// The name of its history.
    pub history: u64,
}

/// The leaders' guests at their cuts.
#[derive(Debug, Default)]
pub struct MemoryEqualAfterSync {
    cuts: BTreeMap<(View, SyncNo), Snapshot>,
    /// The syncvm whose end mark each secondary has received last.
    ended: BTreeMap<ReplicaId, (View, SyncNo)>,
    /// The checkpoint that each waiting secondary has in its memory.
    kept: BTreeMap<ReplicaId, (View, SyncNo)>,
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

    /// A waiting secondary says that it has a checkpoint in its memory.
    pub fn kept(&mut self, who: ReplicaId, sync: SyncNo, now: &Snapshot) -> Check {
        let at = self.end_mark(who, sync)?;
        self.kept.insert(who, at);
        same_memory(who, sync, self.cut_of(who, at)?, now)
    }

    /// A secondary reports that it has applied a syncvm. A secondary that waited reports that it has
    /// taken over from the newest checkpoint that it kept.
    pub fn applied(&mut self, who: ReplicaId, sync: SyncNo, now: &Snapshot) -> Check {
        let kept = self.kept.remove(&who).filter(|(_, kept)| *kept == sync);
        let at = match kept {
            Some(at) => at,
            None => self.end_mark(who, sync)?,
        };
        let cut = self.cut_of(who, at)?;
        if cut.devices != now.devices {
            return Err(violation(format!(
                "after syncvm {sync} {who}'s devices differ"
            )));
        }
        same_memory(who, sync, cut, now)
    }

    fn end_mark(&self, who: ReplicaId, sync: SyncNo) -> Result<(View, SyncNo), Violation> {
        let ended = self.ended.get(&who).filter(|(_, ended)| *ended == sync);
        ended
            .copied()
            .ok_or_else(|| violation(format!("{who} applies syncvm {sync} without its end mark")))
    }

    fn cut_of(&self, who: ReplicaId, at: (View, SyncNo)) -> Result<&Snapshot, Violation> {
        self.cuts.get(&at).ok_or_else(|| {
            violation(format!(
                "{who} applies syncvm {}, whose cut nobody made",
                at.1
            ))
        })
    }
}

fn same_memory(who: ReplicaId, sync: SyncNo, cut: &Snapshot, now: &Snapshot) -> Check {
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
