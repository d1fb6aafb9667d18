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

use super::Stage;
use crate::api::Action;
use crate::canary::canary;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use plover_syncvm::message::Body;
use plover_syncvm::subpages::{SubpageMask, compare_subpages};
use plover_syncvm::{HashHistory, Phase};
use plover_types::{ReplicaId, Runs, SUBPAGES_PER_PAGE, SyncNo};

/// Fewer divergent pages are sent whole: sending them takes less time than another round trip.
const PAGES_MIN: usize = 4;

/// More divergent pages are sent whole: their hashes would be 1 MiB and more, and a slot that
/// leaves so many has not changed them by a few bytes each.
const PAGES_MAX: usize = 8192;

const NOT_ASKED_FOR: &str = "the secondary's subpage hashes are not those asked for";

/// Both sides' subpage hashes, as they come.
#[derive(Debug, Default)]
pub(super) struct Narrowing {
    ours: Option<Vec<u64>>,
    theirs: Option<Vec<u64>>,
    /// The part of the secondary's list that has come so far.
    said: Vec<u8>,
}

impl Leader {
    /// The divergent pages are known: asks for their subpages' hashes, if that pays. Returns whether it
    /// has asked.
    pub(super) fn narrow(&mut self, cx: &mut Context) -> bool {
        let now = cx.now;
        let key = cx.config.hash_key;
        let worth = PAGES_MIN..=PAGES_MAX;
        let Some(sync) = &mut self.sync else {
            return false;
        };
        if !cx.config.subpages || !worth.contains(&sync.divergent.len()) {
            return false;
        }
        sync.stage = Stage::Narrowing;
        sync.enter(Phase::Exchange, now);
        let (peer, number, pages) = (sync.peer, sync.sync, sync.divergent.clone());
        let runs = Runs::of_rising(pages.iter().copied());
        let body = Body::Subpages {
            sync: number,
            runs,
            heard: cx.memory.hash_history.mark(),
        };
        let bytes = cx.send_bulk(peer, body);
        self.count_hash_bytes(bytes);
        cx.ask(Job::LeadSync(number), |job| Action::HashSubpages {
            job,
            key,
            pages,
        });
        true
    }

    pub(crate) fn on_subpages_hashed(
        &mut self,
        cx: &mut Context,
        number: SyncNo,
        hashes: Vec<u64>,
    ) {
        let now = cx.now;
        if let Some(sync) = self.sync.as_mut().filter(|s| s.sync == number) {
            sync.last_progress = now;
            sync.narrowing.ours = Some(hashes);
            self.try_compare_subpages(cx);
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
        let Some(sync) = self.sync_with(from, number) else {
            return;
        };
        if sync.stage != Stage::Narrowing {
            return;
        }
        let Narrowing { theirs, said, .. } = &mut sync.narrowing;
        let fits = theirs.is_none()
            && first as usize == said.len()
            && said.len() + part.len() <= total as usize
            && total as usize <= HashHistory::bytes_max(sync.divergent.len());
        if !fits {
            return self.abort_sync(cx, NOT_ASKED_FOR);
        }
        said.extend(part);
        sync.report.bytes_hashes += part.len() as u64;
        sync.last_progress = now;
        if said.len() < total as usize {
            return;
        }
        let (pages, said) = (sync.divergent.clone(), std::mem::take(said));
        let heard = cx.memory.hash_history.hear(anew, &pages, &said);
        match (heard, &mut self.sync) {
            (Some(heard), Some(sync)) => sync.narrowing.theirs = Some(heard),
            _ => return self.abort_sync(cx, NOT_ASKED_FOR),
        }
        self.try_compare_subpages(cx);
    }

    fn try_compare_subpages(&mut self, cx: &mut Context) {
        let missed = canary!(cx, SubpageMissed);
        let Some(sync) = &mut self.sync else { return };
        let Narrowing { ours, theirs, .. } = &sync.narrowing;
        let pages = sync.divergent.len();
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            return;
        };
        if sync.stage != Stage::Narrowing {
            return;
        }
        let Some(mut masks) = compare_subpages(pages, ours, theirs) else {
            return self.abort_sync(cx, "the subpage hashes are not of one length");
        };
        if missed {
            let clear_lowest = |mask: &mut SubpageMask| mask.0 &= mask.0 - 1;
            masks
                .iter_mut()
                .filter(|m| m.len() > 1)
                .for_each(clear_lowest);
        }
        sync.report.subpages = masks.iter().map(|mask| mask.len()).sum();
        sync.report.subpages_compared = (pages * SUBPAGES_PER_PAGE) as u32;
        sync.masks = masks;
        sync.narrowing = Narrowing::default();
        self.begin_transfer(cx);
    }
}
