//! The leader's side of a sync that hashes nothing although the secondary's guest has run (COLO).
//!
//! ```text
//!  Scanning ─▶ Exchanging (both sides' dirty pages, no hashes) ─▶ Transferring all of them ─▶ as ever
//! ```
//!
//! COLO sends what the primary has written and lets the secondary put back what it has written
//! itself, from a copy of its memory as it was at the last checkpoint. Here the leader sends both: the
//! pages that only the secondary has written still have their old contents in the leader's memory
//! (docs/decisions/0017).

use super::Stage;
use crate::context::Context;
use crate::leader::Leader;
use plover_syncvm::Phase;
use plover_types::SyncNo;

impl Leader {
    /// The secondary has been told our dirty pages; its own are awaited.
    pub(super) fn await_theirs(&mut self, cx: &mut Context, number: SyncNo) {
        let now = cx.now;
        if let Some(sync) = &mut self.sync {
            sync.enter(Phase::Exchange, now);
        }
        cx.note_phase(number, Phase::Exchange);
        self.take_theirs(cx);
    }

    /// Sends what either side has written, once both are known.
    pub(super) fn take_theirs(&mut self, cx: &mut Context) {
        let Some(sync) = &mut self.sync else { return };
        let Some(theirs) = &sync.theirs else { return };
        if sync.stage != Stage::Exchanging {
            return;
        }
        // Owed from here on, should this sync fail.
        cx.memory.ledger.owe(theirs);
        sync.divergent = cx.memory.ledger.owed().iter().collect();
        let count = sync.divergent.len() as u32;
        sync.report.union = count;
        sync.report.divergent = count;
        self.begin_transfer(cx);
    }
}
