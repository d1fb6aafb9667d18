//! The leader's side of a sync that hashes nothing although the secondary's guest has run (COLO).
//!
//! ```text
//!  Scanning ─▶ Listing (both sides' dirty pages, no hashes) ─▶ Transferring all of them ─▶ as ever
//! ```
//!
//! COLO sends what the primary has written and lets the secondary put back what it has written
//! itself, from a copy of its memory as it was at the last checkpoint. Here the leader sends both: the
//! pages that only the secondary has written still have their old contents in the leader's memory
//! (docs/decisions/0017).

use super::{Cut, Run};
use crate::context::Context;
use crate::leader::Leader;
use plover_syncvm::Phase;
use plover_types::PageSet;

/// The secondary is told our dirty pages; its own are awaited.
pub(super) fn begin_listing(cx: &mut Context, run: &mut Run) {
    run.send_dirty(cx);
    run.enter(Phase::Exchange, cx.now);
    cx.note_phase(run.sync, Phase::Exchange);
}

impl Leader {
    /// The secondary's dirty pages are known: what either side has written is sent.
    pub(super) fn on_listed(&mut self, cx: &mut Context, mut run: Run, cut: Cut, theirs: &PageSet) {
        // Owed from here on, should this sync fail.
        cx.memory.ledger.owe(theirs);
        let pages: Vec<_> = cx.memory.ledger.owed().iter().collect();
        run.report.union = pages.len() as u32;
        run.report.divergent = pages.len() as u32;
        self.transfer(cx, run, cut, pages, Vec::new());
    }
}
