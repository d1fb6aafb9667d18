//! The leader hashes what it has written, hears what the secondary has, and compares.
//!
//! Own pages are hashed while the secondary's list is on its way; only pages that the secondary alone
//! has written are hashed after it.

use super::Stage;
use crate::api::Action;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use plover_syncvm::message::Body;
use plover_syncvm::{Phase, compare};
use plover_types::{Digest, Micros, PageNo, PageSet, ReplicaId, Runs, SyncNo};

impl Leader {
    pub(crate) fn on_scanned(&mut self, cx: &mut Context, number: SyncNo, set: &PageSet) {
        cx.memory.ledger.owe(set);
        self.slot.much_written = false;
        let now = cx.now;
        let key = cx.config.hash_key;
        let (checkpoint, unhashed) = (cx.takes_checkpoints(), cx.sends_unhashed());
        let Some(sync) = self.sync.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        if checkpoint {
            return self.begin_copying(cx, number);
        }
        sync.stage = Stage::Exchanging;
        sync.own = cx.memory.ledger.owed().iter().collect();
        sync.report.dirty_leader = sync.own.len() as u32;
        let peer = sync.peer;
        let pages = sync.own.clone();
        let runs = cx.memory.ledger.owed().to_runs();
        let bytes = cx.send_bulk(
            peer,
            Body::Dirty {
                sync: number,
                runs,
                key,
            },
        );
        self.count_hash_bytes(bytes);
        if unhashed {
            return self.await_theirs(cx, number);
        }
        if let Some(sync) = &mut self.sync {
            sync.enter(Phase::Hash, now);
        }
        self.hash_own(cx, pages);
        cx.note_phase(number, Phase::Hash);
    }

    fn hash_own(&mut self, cx: &mut Context, pages: Vec<PageNo>) {
        let key = cx.config.hash_key;
        let Some(sync) = &mut self.sync else { return };
        cx.ask(Job::LeadSync(sync.sync), |job| Action::Hash {
            job,
            key,
            pages,
        });
    }

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
        let (pages, unhashed) = (cx.config.layout.pages(), cx.sends_unhashed());
        let now = cx.now;
        let Some(sync) = self.sync_with(from, number) else {
            return;
        };
        if first == 0 && sync.theirs.is_none() {
            let Some(set) = runs.to_set(pages) else {
                return self.abort_sync(cx, "the secondary's dirty pages lie outside the guest");
            };
            sync.report.dirty_secondary = set.len();
            sync.theirs = Some(set);
            sync.their_total = Some(total);
            sync.report.phases[Phase::Wait as usize] = wait;
        }
        if first as usize != sync.their_digests.len() || sync.their_total != Some(total) {
            return self.abort_sync(cx, "the secondary's digests do not follow each other");
        }
        sync.their_digests.extend(Digest::of_bytes(digests));
        sync.report.bytes_hashes += digests.len() as u64 + runs.0.len() as u64 * 4;
        sync.last_progress = now;
        if unhashed {
            self.take_theirs(cx);
        } else {
            self.try_compare(cx);
        }
    }

    pub(crate) fn on_hashed(&mut self, cx: &mut Context, number: SyncNo, digests: Vec<Digest>) {
        let now = cx.now;
        let Some(sync) = self.sync.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        sync.last_progress = now;
        if sync.own_digests.is_none() {
            sync.own_digests = Some(digests);
            sync.enter(Phase::Exchange, now);
            cx.note_phase(number, Phase::Exchange);
        } else {
            // The digests of `extra`: merge both rising lists into the union's order.
            let extra = sync.extra.take().unwrap_or_default();
            let own = std::mem::take(&mut sync.own);
            let own_digests = sync.own_digests.take().unwrap_or_default();
            let mut union: Vec<_> = own.into_iter().zip(own_digests).collect();
            union.extend(extra.into_iter().zip(digests));
            union.sort_unstable_by_key(|(page, _)| *page);
            (sync.own, sync.own_digests) = {
                let (pages, digests): (Vec<_>, Vec<_>) = union.into_iter().unzip();
                (pages, Some(digests))
            };
            sync.extra = Some(Vec::new());
        }
        self.try_compare(cx);
    }

    /// Compares as soon as both lists are whole.
    pub(super) fn try_compare(&mut self, cx: &mut Context) {
        let now = cx.now;
        let Some(sync) = &mut self.sync else { return };
        let Some(theirs) = &sync.theirs else { return };
        if sync.own_digests.is_none()
            || sync.stage != Stage::Exchanging
            || sync.their_total != Some(sync.their_digests.len() as u32)
        {
            return;
        }
        if sync.extra.is_none() {
            let mut extra = theirs.clone();
            extra.subtract(cx.memory.ledger.owed());
            let extra: Vec<PageNo> = extra.iter().collect();
            // From here on the secondary's pages are owed too, should this sync fail.
            cx.memory.ledger.owe(theirs);
            sync.extra = Some(extra.clone());
            if !extra.is_empty() {
                sync.enter(Phase::Hash, now);
                return self.hash_own(cx, extra);
            }
        } else if sync.extra.as_ref().is_some_and(|e| !e.is_empty()) {
            return;
        }
        sync.enter(Phase::Compare, now);
        let ours = sync.own_digests.as_deref().unwrap_or_default();
        let Some(found) = compare(&sync.own, ours, &sync.their_digests) else {
            return self.abort_sync(cx, "the hash lists are not of one length");
        };
        sync.report.union = sync.own.len() as u32;
        sync.report.same = found.same;
        sync.report.divergent = found.divergent.len() as u32;
        sync.divergent = found.divergent;
        if !self.narrow(cx) {
            self.begin_transfer(cx);
        }
    }

    pub(super) fn count_hash_bytes(&mut self, bytes: u64) {
        if let Some(sync) = &mut self.sync {
            sync.report.bytes_hashes += bytes;
        }
    }
}
