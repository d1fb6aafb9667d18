//! The leader's side of a sync that hashes nothing although the secondary's guest has run (COLO).
//!
//! ```text
//!  Scanning ─▶ Exchanging (both sides' dirty pages, no hashes) ─▶ Transferring all of them ─▶ as ever
//! ```
//!
//! COLO sends what the primary has written and lets the secondary put back what it has written
//! itself, from a copy of its memory as it was at the last checkpoint. Here the leader sends both:
//! its memory has what lay in the pages that only the secondary has written
//! (docs/decisions/0017).

use super::Stage;
use crate::replica::Replica;
use plover_policy::{Secondary, Sent};
use plover_syncvm::Phase;
use plover_types::SyncNo;

impl Replica {
    /// Whether a secondary that runs is sent all pages, unhashed.
    pub(crate) fn sends_unhashed(&self) -> bool {
        let policy = &self.config.policy;
        policy.secondary == Secondary::Runs && policy.sent == Sent::AllOfPrimary
    }

    /// The secondary has been told our dirty pages; its own are awaited.
    pub(super) fn lead_waits_for_theirs(&mut self, number: SyncNo) {
        let now = self.now;
        if let Some(sync) = &mut self.lead {
            sync.enter(Phase::Exchange, now);
        }
        self.note_phase(number, Phase::Exchange);
        self.lead_takes_theirs();
    }

    /// Sends what either side has written, once both are known.
    pub(super) fn lead_takes_theirs(&mut self) {
        let Some(sync) = &mut self.lead else { return };
        let Some(theirs) = &sync.theirs else { return };
        if sync.stage != Stage::Exchanging {
            return;
        }
        // Owed from here on, should this sync fail.
        self.ledger.owe(theirs);
        sync.divergent = self.ledger.owed().iter().collect();
        let count = sync.divergent.len() as u32;
        sync.report.union = count;
        sync.report.divergent = count;
        self.begin_transfer();
    }
}
