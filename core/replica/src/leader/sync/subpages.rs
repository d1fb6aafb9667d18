//! The leader's side of the second round: which subpages of divergent pages differ
//! (docs/decisions/0014).
//!
//! ```text
//!  Exchanging ─▶ (few or very many divergent pages) ────────────────▶ Transferring, whole pages
//!       └─────▶ Narrowing: both sides hash subpages, the leader compares ─▶ Transferring, subpages
//! ```
//!
//! It costs one more round trip while the guest stands, unless the leader has guessed the pages: most that differ have
//! differed at the last syncvm, too. So it asks for the subpage hashes of those that it has written again together with
//! its list of dirty pages (docs/decisions/0080), and once more if four or more others differ.
//!
//! Where the secondary must reset its devices, pages that the reset wrote are fetched whole, even if subpages of them
//! were staged.

use super::{Cut, LeadSync, Run, Stage};
use crate::api::Action;
use crate::canary::canary;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use plover_syncvm::message::Body;
use plover_syncvm::subpages::{SubpageMask, compare_subpages};
use plover_syncvm::{HashHistory, Phase};
use plover_types::{PageNo, ReplicaId, Runs, SUBPAGES_PER_PAGE, SyncNo};
use std::collections::BTreeMap;

/// Fewer divergent pages are sent whole: sending them takes less time than another round trip.
const PAGES_MIN: usize = 4;

/// More divergent pages are sent whole: their hashes would be 1 MiB and more, and a slot that
/// leaves so many has not changed them by a few bytes each.
const PAGES_MAX: usize = 8192;

/// A secondary of an older group ignores a question that comes before it hashes.
const GUESS_VERSION: u8 = 4;

const NOT_ASKED_FOR: &str = "the secondary's subpage hashes are not those asked for";

/// Pages, and both sides' subpage hashes of them as they come.
#[derive(Debug)]
pub(super) struct Asked {
    pages: Vec<PageNo>,
    ours: Option<Vec<u64>>,
    theirs: Option<Vec<u64>>,
    /// The part of the secondary's list that has come so far.
    said: Vec<u8>,
}

/// The divergent pages.
#[derive(Debug)]
pub(super) struct Narrowing {
    divergent: Vec<PageNo>,
    /// The subpages that differ, of pages that were asked about before.
    known: BTreeMap<PageNo, SubpageMask>,
    asked: Asked,
}

impl Asked {
    /// Asks both sides.
    fn about(cx: &mut Context, run: &mut Run, pages: Vec<PageNo>) -> Self {
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
        Self {
            pages,
            ours: None,
            theirs: None,
            said: Vec::new(),
        }
    }

    /// Asks about those of the last syncvm's divergent pages that this side has written again.
    pub fn guess(cx: &mut Context, run: &mut Run, last: &[PageNo]) -> Option<Self> {
        let owed = cx.memory.ledger.owed();
        let guess = last.iter().filter(|page| owed.contains(**page));
        let guess: Vec<PageNo> = guess.copied().collect();
        let may_ask = cx.group.core.version() >= GUESS_VERSION && pays(cx, guess.len());
        may_ask.then(|| Self::about(cx, run, guess))
    }

    /// Takes a part of the secondary's list. `None` if it is not what was asked for.
    fn hear(
        &mut self,
        history: &mut HashHistory,
        anew: bool,
        (first, total): (u32, u32),
        part: &[u8],
    ) -> Option<()> {
        let fits = self.theirs.is_none()
            && !part.is_empty()
            && first as usize == self.said.len()
            && self.said.len() + part.len() <= total as usize
            && total as usize <= HashHistory::bytes_max(self.pages.len());
        if !fits {
            return None;
        }
        self.said.extend(part);
        if self.said.len() == total as usize {
            self.theirs = Some(history.hear(anew, &self.pages, &self.said)?);
        }
        Some(())
    }

    fn is_whole(&self) -> bool {
        self.ours.is_some() && self.theirs.is_some()
    }
}

impl Narrowing {
    /// Whether this side's part is done.
    pub fn waits_for_theirs(&self) -> bool {
        self.asked.ours.is_some()
    }

    /// The divergent pages that were not asked about.
    fn rest(&self) -> Vec<PageNo> {
        let divergent = self.divergent.iter().copied();
        divergent
            .filter(|page| !self.known.contains_key(page))
            .collect()
    }
}

/// Whether asking about so many pages costs less than it saves.
fn pays(cx: &Context, pages: usize) -> bool {
    cx.config.subpages && (PAGES_MIN..=PAGES_MAX).contains(&pages)
}

impl Stage {
    /// The pages that both sides' subpages are being hashed of.
    fn asked_mut(&mut self) -> Option<&mut Asked> {
        match self {
            Self::Exchanging(_, _, guess) => guess.as_mut(),
            Self::Narrowing(_, narrowing) => Some(&mut narrowing.asked),
            _ => None,
        }
    }
}

impl Leader {
    /// The divergent pages are known: their subpages are compared, or they are sent whole.
    pub(super) fn narrow(
        &mut self,
        cx: &mut Context,
        mut run: Run,
        (cut, guess): (Cut, Option<Asked>),
        divergent: Vec<PageNo>,
    ) {
        self.divergent.clone_from(&divergent);
        if !pays(cx, divergent.len()) {
            return self.transfer(cx, run, cut, divergent, Vec::new());
        }
        run.enter(Phase::Exchange, cx.now);
        let asked = match guess {
            Some(guess) => guess,
            None => Asked::about(cx, &mut run, divergent.clone()),
        };
        let narrowing = Narrowing {
            divergent,
            known: BTreeMap::new(),
            asked,
        };
        let stage = Stage::Narrowing(cut, narrowing);
        self.sync = Some(LeadSync { run, stage });
        self.compare_subpages(cx);
    }

    pub(crate) fn on_subpages_hashed(
        &mut self,
        cx: &mut Context,
        number: SyncNo,
        hashes: Vec<u64>,
    ) {
        let now = cx.now;
        let Some(LeadSync { run, stage }) = self.running(number) else {
            return;
        };
        if let Some(asked) = stage.asked_mut() {
            run.last_progress = now;
            asked.ours = Some(hashes);
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
        place: (u32, u32),
        part: &[u8],
    ) {
        let now = cx.now;
        let Some(LeadSync { run, stage }) = self.running_with(from, number) else {
            return;
        };
        let Some(asked) = stage.asked_mut() else {
            return;
        };
        if asked
            .hear(&mut cx.memory.hash_history, anew, place, part)
            .is_none()
        {
            return self.abort_sync(cx, NOT_ASKED_FOR);
        }
        run.report.bytes_hashes += part.len() as u64;
        run.last_progress = now;
        self.compare_subpages(cx);
    }

    /// Compares as soon as both lists are whole, and asks for what is still to be known.
    fn compare_subpages(&mut self, cx: &mut Context) {
        let whole = |sync: &mut LeadSync| match &sync.stage {
            Stage::Narrowing(_, narrowing) => narrowing.asked.is_whole(),
            _ => false,
        };
        let Some(LeadSync {
            mut run,
            stage: Stage::Narrowing(cut, mut narrowing),
        }) = self.sync.take_if(whole)
        else {
            return;
        };
        let Asked {
            pages,
            ours,
            theirs,
            ..
        } = &narrowing.asked;
        let lists = ours.as_deref().zip(theirs.as_deref());
        let masks = lists.and_then(|(ours, theirs)| compare_subpages(pages.len(), ours, theirs));
        let Some(mut masks) = masks else {
            return self.fail_sync(cx, &run, cut, "the subpage hashes are not of one length");
        };
        if canary!(cx, SubpageMissed) {
            let clear_lowest = |mask: &mut SubpageMask| mask.0 &= mask.0 - 1;
            masks
                .iter_mut()
                .filter(|m| m.len() > 1)
                .for_each(clear_lowest);
        }
        narrowing.known.extend(pages.iter().copied().zip(masks));
        let rest = narrowing.rest();
        if pays(cx, rest.len()) {
            narrowing.asked = Asked::about(cx, &mut run, rest);
            let stage = Stage::Narrowing(cut, narrowing);
            self.sync = Some(LeadSync { run, stage });
            return;
        }
        let Narrowing {
            divergent, known, ..
        } = narrowing;
        let found: Vec<_> = divergent.iter().map(|page| known.get(page)).collect();
        let compared = found.iter().flatten();
        run.report.subpages = compared.clone().map(|mask| mask.len()).sum();
        run.report.subpages_compared = (compared.count() * SUBPAGES_PER_PAGE) as u32;
        let whole = SubpageMask::ALL;
        let masks = found.into_iter().map(|mask| mask.copied().unwrap_or(whole));
        let masks = masks.collect();
        self.transfer(cx, run, cut, divergent, masks);
    }
}
