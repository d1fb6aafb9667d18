//! The leader hashes what it has written, hears what the secondary has, and compares.
//!
//! Own pages are hashed while the secondary's list is on its way; only pages that the secondary alone
//! has written are hashed after it.

use super::subpages::Narrowing;
use super::{Cut, LeadSync, Run, Stage};
use crate::api::Action;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use plover_syncvm::message::Body;
use plover_syncvm::{Phase, compare};
use plover_types::{Digest, HashKey, Micros, PageNo, PageSet, ReplicaId, Runs, SyncNo};

/// Pages, rising, and the digest of each.
#[derive(Debug)]
pub(super) struct Hashes {
    pages: Vec<PageNo>,
    digests: Vec<Digest>,
}

/// The secondary's dirty pages, and their digests as they come.
#[derive(Debug)]
pub(super) struct Theirs {
    set: PageSet,
    total: u32,
    digests: Vec<Digest>,
}

/// How far both sides' lists are.
#[derive(Debug)]
pub(super) enum Exchange {
    /// Own dirty pages, and those owed from before, are being hashed.
    Hashing(Vec<PageNo>, Option<Theirs>),
    /// They are; the secondary's list is awaited.
    Hashed(Hashes, Option<Theirs>),
    /// Both are whole; the pages that only the secondary has written are being hashed.
    HashingTheirs(Hashes, Vec<PageNo>, Theirs),
}

impl Exchange {
    /// Tells the secondary what this side has written, and has it hashed.
    pub fn begin(cx: &mut Context, run: &mut Run, pages: Vec<PageNo>) -> Self {
        run.send_dirty(cx);
        run.enter(Phase::Hash, cx.now);
        run.hash(cx, pages.clone());
        cx.note_phase(run.sync, Phase::Hash);
        Self::Hashing(pages, None)
    }

    /// Whether this side's part is done.
    pub fn waits_for_theirs(&self) -> bool {
        matches!(self, Self::Hashed(..))
    }

    /// Takes a part of the secondary's list; returns whether it follows the parts before it.
    fn hear(&mut self, set: PageSet, (first, total): (u32, u32), part: &[u8]) -> bool {
        let (Self::Hashing(_, theirs) | Self::Hashed(_, theirs)) = self else {
            return false;
        };
        let digests = Vec::new();
        let theirs = theirs.get_or_insert(Theirs {
            set,
            total,
            digests,
        });
        let follows = first as usize == theirs.digests.len() && total == theirs.total;
        let before = theirs.digests.len();
        theirs.digests.extend(Digest::of_bytes(part));
        let after = theirs.digests.len();
        // A part without anything would put off the end of a sync for ever.
        follows && after <= total as usize && (after > before || total == 0)
    }
}

impl Hashes {
    /// With other pages' digests, in rising order again.
    fn merged(self, pages: Vec<PageNo>, digests: Vec<Digest>) -> Self {
        let mut union: Vec<_> = self.pages.into_iter().zip(self.digests).collect();
        union.extend(pages.into_iter().zip(digests));
        union.sort_unstable_by_key(|(page, _)| *page);
        let (pages, digests) = union.into_iter().unzip();
        Self { pages, digests }
    }
}

impl Run {
    /// Names the pages that this side has written, and the keys of this sync.
    pub(super) fn send_dirty(&mut self, cx: &mut Context) {
        self.keys = cx.keys_of_sync();
        let (sync, runs) = (self.sync, cx.memory.ledger.owed().to_runs());
        let body = match (self.keys.pages, self.keys.subpages) {
            (HashKey::Universal(pages), HashKey::Universal(subpages)) => Body::DirtyUnderKeys {
                sync,
                runs,
                pages,
                subpages,
            },
            (key, _) => Body::Dirty {
                sync,
                runs,
                key: *key.bytes(),
            },
        };
        self.report.bytes_hashes += cx.send_bulk(self.peer, body);
    }

    fn hash(&self, cx: &mut Context, pages: Vec<PageNo>) {
        let key = self.keys.pages;
        cx.ask(Job::LeadSync(self.sync), |job| Action::Hash {
            job,
            key,
            pages,
        });
    }
}

impl Leader {
    /// A part of the secondary's list.
    pub(crate) fn on_hashes(
        &mut self,
        cx: &mut Context,
        (from, number): (ReplicaId, SyncNo),
        runs: &Runs,
        (first, total): (u32, u32),
        digests: &[u8],
        wait: Micros,
    ) {
        let pages = cx.config.layout.pages();
        let now = cx.now;
        let Some(LeadSync { run, .. }) = self.running_with(from, number) else {
            return;
        };
        let set = runs.to_set(pages).filter(|_| total <= pages);
        let Some(set) = set else {
            cx.cut_link(
                from,
                "a list of dirty pages outside the guest, or of too many hashes",
            );
            return self.abort_sync(cx, "the secondary's dirty pages lie outside the guest");
        };
        run.last_progress = now;
        run.report.bytes_hashes += digests.len() as u64 + runs.0.len() as u64 * 4;
        if first == 0 {
            run.report.dirty_secondary = set.len();
            // No longer than the sync, whatever it says.
            run.report.phases[Phase::Wait as usize] = wait.min(now.since(run.started));
        }
        let Some(LeadSync { run, stage }) = self.sync.take() else {
            return;
        };
        let (fits, stage) = match stage {
            Stage::Listing(cut) => return self.on_listed(cx, run, cut, &set),
            Stage::Exchanging(cut, mut exchange) => {
                let fits = exchange.hear(set, (first, total), digests);
                (fits, Stage::Exchanging(cut, exchange))
            }
            stage => (false, stage),
        };
        self.sync = Some(LeadSync { run, stage });
        if !fits {
            return self.abort_sync(cx, "the secondary's digests do not follow each other");
        }
        self.compare_when_whole(cx);
    }

    pub(crate) fn on_hashed(&mut self, cx: &mut Context, number: SyncNo, digests: Vec<Digest>) {
        let Some(LeadSync { mut run, stage }) = self.sync.take_if(|s| s.run.sync == number) else {
            return;
        };
        run.last_progress = cx.now;
        let stage = match stage {
            Stage::Exchanging(cut, Exchange::Hashing(pages, theirs)) => {
                run.enter(Phase::Exchange, cx.now);
                cx.note_phase(number, Phase::Exchange);
                let own = Hashes { pages, digests };
                Stage::Exchanging(cut, Exchange::Hashed(own, theirs))
            }
            Stage::Exchanging(cut, Exchange::HashingTheirs(own, pages, theirs)) => {
                let union = own.merged(pages, digests);
                return self.compare(cx, run, cut, &union, &theirs);
            }
            stage => stage,
        };
        self.sync = Some(LeadSync { run, stage });
        self.compare_when_whole(cx);
    }

    /// Compares once both lists are whole, or has the pages hashed that are only in the secondary's.
    fn compare_when_whole(&mut self, cx: &mut Context) {
        let whole = |sync: &mut LeadSync| match &sync.stage {
            Stage::Exchanging(_, Exchange::Hashed(_, Some(theirs))) => {
                theirs.digests.len() == theirs.total as usize
            }
            _ => false,
        };
        let Some(LeadSync {
            mut run,
            stage: Stage::Exchanging(cut, Exchange::Hashed(own, Some(theirs))),
        }) = self.sync.take_if(whole)
        else {
            return;
        };
        let mut more = theirs.set.clone();
        more.subtract(cx.memory.ledger.owed());
        // From here on the secondary's pages are owed too, should this sync fail.
        cx.memory.ledger.owe(&theirs.set);
        let more: Vec<PageNo> = more.iter().collect();
        if more.is_empty() {
            return self.compare(cx, run, cut, &own, &theirs);
        }
        run.enter(Phase::Hash, cx.now);
        run.hash(cx, more.clone());
        let stage = Stage::Exchanging(cut, Exchange::HashingTheirs(own, more, theirs));
        self.sync = Some(LeadSync { run, stage });
    }

    fn compare(
        &mut self,
        cx: &mut Context,
        mut run: Run,
        cut: Cut,
        ours: &Hashes,
        theirs: &Theirs,
    ) {
        run.enter(Phase::Compare, cx.now);
        let Some(found) = compare(&ours.pages, &ours.digests, &theirs.digests) else {
            return self.fail_sync(cx, &run, cut, "the hash lists are not of one length");
        };
        run.report.union = ours.pages.len() as u32;
        run.report.same = found.same;
        run.report.divergent = found.divergent.len() as u32;
        if Narrowing::pays(cx, found.divergent.len()) {
            self.narrow(cx, run, cut, found.divergent);
        } else {
            self.transfer(cx, run, cut, found.divergent, Vec::new());
        }
    }
}
