//! The leader's side of the second round: which subpages of divergent pages differ
//! (docs/decisions/0014).
//!
//! ```text
//!  Exchanging ─▶ (few or very many divergent pages) ────────────────▶ Transferring, whole pages
//!       └─────▶ Narrowing: both sides hash subpages, the leader compares ─▶ Transferring, subpages
//! ```
//!
//! It costs one more round trip while the guest stands. Where the secondary must reset its
//! devices, pages that the reset wrote are fetched whole, even if subpages of them were staged.

use super::{Cut, LeadSync, Run, Stage};
use crate::api::Action;
use crate::canary::canary;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use plover_syncvm::message::Body;
use plover_syncvm::subpages::{PAGES_ASKED_MAX, SubpageMask, compare_subpages};
use plover_syncvm::{HashHistory, Phase};
use plover_types::{PageNo, ReplicaId, Runs, SUBPAGES_PER_PAGE, SyncNo};

/// Fewer divergent pages are sent whole: sending them takes less time than another round trip.
const PAGES_MIN: usize = 4;

const NOT_ASKED_FOR: &str = "the secondary's subpage hashes are not those asked for";

/// The divergent pages, and both sides' subpage hashes of them as they come.
#[derive(Debug)]
pub(super) struct Narrowing {
    pages: Vec<PageNo>,
    ours: Option<Vec<u64>>,
    theirs: Option<Vec<u64>>,
    /// The part of the secondary's list that has come so far.
    said: Vec<u8>,
}

impl Narrowing {
    /// Whether a second round for so many divergent pages costs less than it saves.
    pub fn pays(cx: &Context, divergent: usize) -> bool {
        cx.config.subpages && (PAGES_MIN..=PAGES_ASKED_MAX).contains(&divergent)
    }

    /// Whether this side's part is done.
    pub fn waits_for_theirs(&self) -> bool {
        self.ours.is_some()
    }
}

impl Leader {
    /// Asks both sides for the subpage hashes of the divergent pages.
    pub(super) fn narrow(&mut self, cx: &mut Context, mut run: Run, cut: Cut, pages: Vec<PageNo>) {
        run.enter(Phase::Exchange, cx.now);
        let key = run.keys.subpages;
        let body = Body::Subpages {
            sync: run.sync,
            runs: Runs::of_rising(pages.iter().copied()),
            heard: cx.memory.hash_history.under(key).mark(),
        };
        run.report.bytes_hashes += cx.send_bulk(run.peer, body);
        cx.ask(Job::LeadSync(run.sync), |job| Action::HashSubpages {
            job,
            key,
            pages: pages.clone(),
        });
        let narrowing = Narrowing {
            pages,
            ours: None,
            theirs: None,
            said: Vec::new(),
        };
        let stage = Stage::Narrowing(cut, narrowing);
        self.sync = Some(LeadSync { run, stage });
    }

    pub(crate) fn on_subpages_hashed(
        &mut self,
        cx: &mut Context,
        number: SyncNo,
        hashes: Vec<u64>,
    ) {
        let now = cx.now;
        if let Some(LeadSync {
            run,
            stage: Stage::Narrowing(_, narrowing),
        }) = self.running(number)
        {
            run.last_progress = now;
            narrowing.ours = Some(hashes);
            self.compare_subpages(cx);
        }
    }

    /// A part of the secondary's list.
    pub(crate) fn on_subpage_hashes(
        &mut self,
        cx: &mut Context,
        from: ReplicaId,
        number: SyncNo,
        anew: bool,
        (first, total): (u32, u32),
        part: &[u8],
    ) {
        let now = cx.now;
        let Some(LeadSync {
            run,
            stage: Stage::Narrowing(_, narrowing),
        }) = self.running_with(from, number)
        else {
            return;
        };
        let Narrowing {
            pages,
            theirs,
            said,
            ..
        } = narrowing;
        let fits = theirs.is_none()
            && !part.is_empty()
            && first as usize == said.len()
            && said.len() + part.len() <= total as usize
            && total as usize <= HashHistory::bytes_max(pages.len());
        if !fits {
            return self.abort_sync(cx, NOT_ASKED_FOR);
        }
        said.extend(part);
        run.report.bytes_hashes += part.len() as u64;
        run.last_progress = now;
        if said.len() < total as usize {
            return;
        }
        *theirs = cx.memory.hash_history.hear(anew, pages, said);
        if theirs.is_none() {
            return self.abort_sync(cx, NOT_ASKED_FOR);
        }
        self.compare_subpages(cx);
    }

    /// Compares as soon as both lists are whole.
    fn compare_subpages(&mut self, cx: &mut Context) {
        let whole = |sync: &mut LeadSync| match &sync.stage {
            Stage::Narrowing(_, n) => n.ours.is_some() && n.theirs.is_some(),
            _ => false,
        };
        let Some(LeadSync {
            mut run,
            stage:
                Stage::Narrowing(
                    cut,
                    Narrowing {
                        pages,
                        ours: Some(ours),
                        theirs: Some(theirs),
                        ..
                    },
                ),
        }) = self.sync.take_if(whole)
        else {
            return;
        };
        let Some(mut masks) = compare_subpages(pages.len(), &ours, &theirs) else {
            return self.fail_sync(cx, &run, cut, "the subpage hashes are not of one length");
        };
        if canary!(cx, SubpageMissed) {
            let clear_lowest = |mask: &mut SubpageMask| mask.0 &= mask.0 - 1;
            masks
                .iter_mut()
                .filter(|m| m.len() > 1)
                .for_each(clear_lowest);
        }
        run.report.subpages = masks.iter().map(|mask| mask.len()).sum();
        run.report.subpages_compared = (pages.len() * SUBPAGES_PER_PAGE) as u32;
        self.transfer(cx, run, cut, pages, masks);
    }
}
