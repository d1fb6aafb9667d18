//! The leader hashes what it has written, hears what the secondary has, and compares.
//!
//! Own pages are hashed while the secondary's list is on its way; only pages that the secondary alone
//! has written are hashed after it.

use super::Stage;
use crate::api::Action;
use crate::replica::{Asked, Replica};
use plover_syncvm::message::Body;
use plover_syncvm::{Phase, compare};
use plover_types::{Digest, Micros, PageNo, PageSet, ReplicaId, Runs, SyncNo};

impl Replica {
    pub(crate) fn lead_scanned(&mut self, number: SyncNo, set: &PageSet) {
        self.ledger.owe(set);
        self.much_written = false;
        let now = self.now;
        let key = self.config.hash_key;
        let (checkpoint, unhashed) = (self.takes_checkpoints(), self.sends_unhashed());
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        if checkpoint {
            return self.lead_copy(number);
        }
        sync.stage = Stage::Exchanging;
        sync.own = self.ledger.owed().iter().collect();
        sync.report.dirty_leader = sync.own.len() as u32;
        let peer = sync.peer;
        let pages = sync.own.clone();
        let runs = self.ledger.owed().to_runs();
        let bytes = self.send_bulk(
            peer,
            Body::Dirty {
                sync: number,
                runs,
                key,
            },
        );
        self.count_hash_bytes(bytes);
        if unhashed {
            return self.lead_waits_for_theirs(number);
        }
        if let Some(sync) = &mut self.lead {
            sync.enter(Phase::Hash, now);
        }
        self.lead_hash(pages);
        self.note_phase(number, Phase::Hash);
    }

    fn lead_hash(&mut self, pages: Vec<PageNo>) {
        let key = self.config.hash_key;
        let Some(sync) = &mut self.lead else { return };
        self.hashes.push_back(Asked::Lead(sync.sync));
        self.out.push(Action::Hash { key, pages });
    }

    /// A part of the secondary's list.
    pub(crate) fn lead_hashes(
        &mut self,
        from: ReplicaId,
        number: SyncNo,
        runs: &Runs,
        (first, total): (u32, u32),
        digests: &[u8],
        wait: Micros,
    ) {
        let (pages, unhashed) = (self.config.pages, self.sends_unhashed());
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
            return;
        };
        if first == 0 && sync.theirs.is_none() {
            let Some(set) = runs.to_set(pages) else {
                return self.abort_lead("the secondary's dirty pages lie outside the guest");
            };
            sync.report.dirty_secondary = set.len();
            sync.theirs = Some(set);
            sync.their_total = Some(total);
            sync.report.phases[Phase::Wait as usize] = wait;
        }
        if first as usize != sync.their_digests.len() || sync.their_total != Some(total) {
            return self.abort_lead("the secondary's digests do not follow each other");
        }
        sync.their_digests.extend(Digest::of_bytes(digests));
        sync.report.bytes_hashes += digests.len() as u64 + runs.0.len() as u64 * 4;
        sync.last_progress = now;
        if unhashed {
            self.lead_takes_theirs();
        } else {
            self.try_compare();
        }
    }

    pub(crate) fn lead_hashed(&mut self, number: SyncNo, digests: Vec<Digest>) {
        let now = self.now;
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        sync.last_progress = now;
        if sync.own_digests.is_none() {
            sync.own_digests = Some(digests);
            sync.enter(Phase::Exchange, now);
            self.note_phase(number, Phase::Exchange);
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
        self.try_compare();
    }

    /// Compares as soon as both lists are whole.
    pub(super) fn try_compare(&mut self) {
        let now = self.now;
        let Some(sync) = &mut self.lead else { return };
        let Some(theirs) = &sync.theirs else { return };
        if sync.own_digests.is_none()
            || sync.stage != Stage::Exchanging
            || sync.their_total != Some(sync.their_digests.len() as u32)
        {
            return;
        }
        if sync.extra.is_none() {
            let mut extra = theirs.clone();
            extra.subtract(self.ledger.owed());
            let extra: Vec<PageNo> = extra.iter().collect();
            // From here on the secondary's pages are owed too, should this sync fail.
            self.ledger.owe(theirs);
            sync.extra = Some(extra.clone());
            if !extra.is_empty() {
                sync.enter(Phase::Hash, now);
                return self.lead_hash(extra);
            }
        } else if sync.extra.as_ref().is_some_and(|e| !e.is_empty()) {
            return;
        }
        sync.enter(Phase::Compare, now);
        let ours = sync.own_digests.as_deref().unwrap_or_default();
        let Some(found) = compare(&sync.own, ours, &sync.their_digests) else {
            return self.abort_lead("the hash lists are not of one length");
        };
        sync.report.union = sync.own.len() as u32;
        sync.report.same = found.same;
        sync.report.divergent = found.divergent.len() as u32;
        sync.divergent = found.divergent;
        if !self.narrow() {
            self.begin_transfer();
        }
    }

    pub(super) fn count_hash_bytes(&mut self, bytes: u64) {
        if let Some(sync) = &mut self.lead {
            sync.report.bytes_hashes += bytes;
        }
    }
}
