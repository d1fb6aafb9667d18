//! Work before the pause: pages are hashed while the guests still run (docs/decisions/0019).
//!
//! ```text
//!  leader, late in its slot                secondary
//!  scan, owe ─ Early(pages, key) ────────▶ scan, owe
//!  hash, a step a turn          ◀───────── EarlyOwn(pages) ─ hash the union, a step a turn
//!  … the slot ends: what no scan has named since is hashed already, on either side
//! ```
//!
//! All of it is a hint: a message that is lost or comes too late costs hashing in the pause, as
//! without it. What must not fail is the accounts. The scan's pages are owed from then on, and a
//! leader scans only when its last syncvm is acknowledged, which settles what is owed. A digest is
//! void when a scan names its page, whoever asked for the scan ([`EarlyHashes`]), and all of them
//! are when this side itself writes guest memory: no scan sees that.

use crate::Role;
use crate::api::{Action, Canary};
use crate::follow_sync::FollowSync;
use crate::guest::Power;
use crate::replica::{Asked, Replica};
use plover_policy::{EarlyFound, Secondary, Sent};
use plover_syncvm::message::Body;
use plover_syncvm::{EarlyHashes, Partial, SyncReport};
use plover_types::{Digest, Micros, PageNo, PageSet, ReplicaId, Runs, SyncNo};

impl Replica {
    /// Begins when the rule says so.
    pub(crate) fn tick_early(&mut self) {
        if self.early_begins_at() <= self.now {
            self.early_begin(self.config.hash_key, None);
        }
    }

    /// Whether syncs hash pages of two guests that both run.
    fn hashes_pages(&self) -> bool {
        let policy = &self.config.policy;
        policy.secondary == Secondary::Runs && policy.sent == Sent::Divergent
    }

    /// Whether this side's guest runs and no syncvm needs its pages. A secondary that finishes its
    /// inputs has time.
    fn has_time_early(&self) -> bool {
        self.guest.power == Power::Running
            && self.holds_state
            && self.lead.is_none()
            && self.follow.as_ref().is_none_or(FollowSync::is_draining)
    }

    fn early_begins_at(&self) -> Micros {
        let leads = self.role == Role::Leader
            && self.secondary().is_some()
            && self.pending_in_sync.is_none()
            && self.join.is_none();
        if !leads || self.early.is_some() || !self.has_time_early() || !self.hashes_pages() {
            return Micros::NEVER;
        }
        let age = self.early_rule.begins_at();
        age.map_or(Micros::NEVER, |age| self.slot_started + age)
    }

    /// When [`Self::tick_early`] or [`Self::early_step`] has something to do.
    pub(crate) fn early_deadline(&self) -> Micros {
        if self.early_waits() {
            return self.now;
        }
        self.early_begins_at()
    }

    fn early_waits(&self) -> bool {
        self.has_time_early() && self.early.as_ref().is_some_and(EarlyHashes::is_waiting)
    }

    /// Scans; `theirs` are to be hashed as well.
    fn early_begin(&mut self, key: [u8; 32], theirs: Option<&PageSet>) {
        let mut early = EarlyHashes::new(self.config.pages, key);
        if let Some(theirs) = theirs {
            early.want(theirs);
        }
        self.early = Some(early);
        self.earlies += 1;
        self.scans.push_back(Asked::Early(self.earlies));
        self.out.push(Action::Scan);
    }

    /// What the early scan has found is owed like any debt, and told to the other side.
    pub(crate) fn early_scanned(&mut self, set: &PageSet) {
        if !self.canary(Canary::EarlyScanForgotten) {
            self.ledger.owe(set);
        }
        let Some(early) = &mut self.early else { return };
        early.want(self.ledger.owed());
        let key = early.key();
        let (sync, runs) = (self.sync_no, self.ledger.owed().to_runs());
        let (peer, body) = match self.role {
            Role::Leader => (self.secondary(), Body::Early { sync, runs, key }),
            _ => (self.leader, Body::EarlyOwn { sync, runs }),
        };
        if let Some(peer) = peer {
            self.send_bulk(peer, body);
        }
    }

    /// A scan has named these pages.
    pub(crate) fn early_written(&mut self, set: &PageSet) {
        let trusts = self.canary(Canary::EarlyHashTrusted);
        if let Some(early) = self.early.as_mut().filter(|_| !trusts) {
            early.written(set);
        }
    }

    /// One step, so that whatever else happens waits for no more than that.
    pub(crate) fn early_step(&mut self) {
        if !self.early_waits() {
            return;
        }
        let step = self.config.early.step_pages as usize;
        let Some(early) = &mut self.early else { return };
        let (key, pages) = (early.key(), early.next(step));
        self.hashes.push_back(Asked::Early(self.earlies));
        self.out.push(Action::Hash { key, pages });
    }

    pub(crate) fn early_hashed(&mut self, work: u64, digests: Vec<Digest>) {
        if let Some(early) = self.early.as_mut().filter(|_| work == self.earlies) {
            early.hashed(digests);
        }
    }

    /// What is known of the hashes of `pages` under `key`. All that was dirty has been scanned.
    pub(crate) fn known_early(&self, key: &[u8; 32], pages: &[PageNo]) -> Partial {
        let early = self.early.as_ref();
        early.map_or_else(|| Partial::unknown(pages), |early| early.known(key, pages))
    }

    pub(crate) fn early_learn(&mut self, report: &SyncReport) {
        let found = EarlyFound {
            made: report.early_made,
            kept: report.early_kept,
        };
        let found = Some(found).filter(|found| found.made > 0);
        self.early_rule.learn(report.slot, report.union, found);
    }

    /// The leader has begun; its slot goes on.
    pub(crate) fn follow_early(&mut self, sync: SyncNo, runs: &Runs, key: [u8; 32]) {
        let follows = self.role == Role::Secondary && self.follow.is_none();
        if !follows || sync != self.sync_no || !self.has_time_early() || !self.hashes_pages() {
            return;
        }
        match runs.to_set(self.config.pages) {
            Some(theirs) => self.early_begin(key, Some(&theirs)),
            None => self.reject_leader("early pages outside the guest"),
        }
    }

    /// What the secondary alone has written the leader hashes too.
    pub(crate) fn lead_early_own(&mut self, from: ReplicaId, sync: SyncNo, runs: &Runs) {
        if self.secondary() != Some(from) || self.lead.is_some() || sync != self.sync_no {
            return;
        }
        let theirs = runs.to_set(self.config.pages);
        if let (Some(early), Some(theirs)) = (&mut self.early, theirs) {
            early.want(&theirs);
        }
    }
}
