//! The leader's side of the second round: which blocks of divergent pages differ (design §9).
//!
//! ```text
//!  Exchanging ─▶ (few or very many divergent pages) ────────────────▶ Transferring, whole pages
//!       └─────▶ Narrowing: both sides hash blocks, the leader compares ─▶ Transferring, blocks
//! ```
//!
//! It costs one more round trip while the guest stands. Where the secondary must reset its
//! devices, pages that the reset wrote are fetched whole, whatever was staged of them.

use super::Stage;
use crate::api::{Action, Canary};
use crate::replica::{Asked, Replica};
use plover_syncvm::blocks::{BlockMask, compare_blocks};
use plover_syncvm::message::Body;
use plover_syncvm::{HashHistory, Phase};
use plover_types::{ReplicaId, Runs, SUBPAGES_PER_PAGE, SyncNo};

/// Fewer divergent pages are sent whole: four of them are through before another round trip is.
const PAGES_MIN: usize = 4;

/// More divergent pages are sent whole: their hashes would be 1 MiB and more, and a slot that
/// leaves so many has other things to write than time stamps.
const PAGES_MAX: usize = 8192;

const NOT_ASKED_FOR: &str = "the secondary's block hashes are not those asked for";

/// Both sides' block hashes, as they come.
#[derive(Debug, Default)]
pub(super) struct Narrowing {
    ours: Option<Vec<u64>>,
    theirs: Option<Vec<u64>>,
    /// What the secondary has said of them so far.
    said: Vec<u8>,
}

impl Replica {
    /// The divergent pages are known: asks for their blocks' hashes, if that pays. Returns whether
    /// it does.
    pub(super) fn narrow(&mut self) -> bool {
        let now = self.now;
        let key = self.config.hash_key;
        let worth = PAGES_MIN..=PAGES_MAX;
        let Some(sync) = &mut self.lead else {
            return false;
        };
        if !self.config.blocks || !worth.contains(&sync.divergent.len()) {
            return false;
        }
        sync.stage = Stage::Narrowing;
        sync.enter(Phase::Exchange, now);
        let (peer, number, pages) = (sync.peer, sync.sync, sync.divergent.clone());
        let runs = Runs::of_rising(pages.iter().copied());
        let body = Body::Blocks {
            sync: number,
            runs,
            heard: self.hash_history.mark(),
        };
        let bytes = self.send_bulk(peer, body);
        self.count_hash_bytes(bytes);
        self.block_hashes.push_back(Asked::Lead(number));
        self.out.push(Action::HashBlocks { key, pages });
        true
    }

    pub(crate) fn lead_blocks_hashed(&mut self, number: SyncNo, hashes: Vec<u64>) {
        let now = self.now;
        if let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) {
            sync.last_progress = now;
            sync.narrowing.ours = Some(hashes);
            self.try_compare_blocks();
        }
    }

    /// A part of the secondary's list.
    pub(crate) fn lead_block_hashes(
        &mut self,
        from: ReplicaId,
        number: SyncNo,
        anew: bool,
        (first, total): (u32, u32),
        part: &[u8],
    ) {
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
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
            return self.abort_lead(NOT_ASKED_FOR);
        }
        said.extend(part);
        sync.report.bytes_hashes += part.len() as u64;
        sync.last_progress = now;
        if said.len() < total as usize {
            return;
        }
        let (pages, said) = (sync.divergent.clone(), std::mem::take(said));
        let heard = self.hash_history.hear(anew, &pages, &said);
        match (heard, &mut self.lead) {
            (Some(heard), Some(sync)) => sync.narrowing.theirs = Some(heard),
            _ => return self.abort_lead(NOT_ASKED_FOR),
        }
        self.try_compare_blocks();
    }

    fn try_compare_blocks(&mut self) {
        let missed = self.canary(Canary::BlockMissed);
        let Some(sync) = &mut self.lead else { return };
        let Narrowing { ours, theirs, .. } = &sync.narrowing;
        let pages = sync.divergent.len();
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            return;
        };
        if sync.stage != Stage::Narrowing {
            return;
        }
        let Some(mut masks) = compare_blocks(pages, ours, theirs) else {
            return self.abort_lead("the block hashes are not of one length");
        };
        if missed {
            let clear_lowest = |mask: &mut BlockMask| mask.0 &= mask.0 - 1;
            masks
                .iter_mut()
                .filter(|m| m.len() > 1)
                .for_each(clear_lowest);
        }
        sync.report.blocks = masks.iter().map(|mask| mask.len()).sum();
        sync.report.blocks_compared = (pages * SUBPAGES_PER_PAGE) as u32;
        sync.masks = masks;
        sync.narrowing = Narrowing::default();
        self.begin_transfer();
    }
}
