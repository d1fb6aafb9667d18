//! The secondary says which pages it has written, and the hashes of those that either side has.

use super::{EarlyDirty, LeaderDirty, Stage};
use crate::api::{Action, Role};
use crate::hash_keys::SyncKeys;
use crate::jobs::Job;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_syncvm::subpages::PAGES_ASKED_MAX;
use plover_syncvm::{HashReport, Staging};
use plover_types::{Digest, PageNo, PageSet, Runs, SyncNo};

/// Digests in one message: 64 KiB.
const DIGESTS_PER_MESSAGE: usize = 4096;

/// Bytes of subpage hashes in one message.
const SUBPAGE_HASH_BYTES_PER_MESSAGE: usize = 64 << 10;

impl Replica {
    /// The leader's dirty pages; they may come before the log entry.
    pub(crate) fn follow_dirty(&mut self, sync: SyncNo, runs: &Runs, keys: SyncKeys) {
        if !self.holds_state() && self.role() != Role::Joining {
            return self.report_no_guest();
        }
        let Some(set) = runs.to_set(self.cx.config.layout.pages()) else {
            return self.cx.cut_leader("dirty pages outside the guest");
        };
        let dirty = LeaderDirty { set, keys };
        match self.follow_stage(sync) {
            Some(
                Stage::Draining { leaders, .. }
                | Stage::Pausing { leaders, .. }
                | Stage::Scanning { leaders, .. },
            ) => {
                *leaders = Some(dirty);
                self.try_hash();
            }
            Some(_) => {}
            None => {
                let view = self.cx.group.view;
                self.early_dirty = Some(EarlyDirty { sync, view, dirty });
            }
        }
    }

    /// The leader believes that this replica has a guest.
    pub(super) fn report_no_guest(&mut self) {
        if let Some(leader) = self.cx.group.leader {
            let why = "this replica was restarted and holds no guest".to_string();
            self.cx.send_bulk(leader, Body::GuestLost { why });
        }
    }

    pub(crate) fn follow_scanned(&mut self, sync: SyncNo, set: &PageSet) {
        let Some(follow) = self.follow.take_if(|follow| follow.sync == sync) else {
            return self.cx.memory.ledger.owe(set);
        };
        if let Stage::Resetting(complete, aside) = follow.stage {
            return self.follow_reset_scanned(sync, (complete, aside), set);
        }
        let follow = self.follow.insert(follow);
        self.cx.memory.ledger.owe(set);
        if let Stage::Scanning { own, .. } = &mut follow.stage {
            *own = Some(self.cx.memory.ledger.owed().to_runs());
            self.try_hash();
        }
    }

    /// Hashes the union once both sides' dirty pages are known.
    fn try_hash(&mut self) {
        let Self { cx, follow, .. } = self;
        let Some(follow) = follow else { return };
        let Stage::Scanning {
            stopped,
            own,
            leaders,
        } = &mut follow.stage
        else {
            return;
        };
        let (Some(_), Some(theirs)) = (&own, leaders.take_if(|_| own.is_some())) else {
            return;
        };
        let (number, keys) = (follow.sync, theirs.keys);
        // Even if this sync fails, these pages may differ until one succeeds.
        cx.memory.ledger.owe(&theirs.set);
        follow.stage = Stage::Receiving {
            stopped: std::mem::take(stopped),
            own: own.take().unwrap_or_default(),
            keys,
            narrowed: Default::default(),
            staging: Staging::new(number, cx.memory.ledger.owed().clone()),
        };
        if cx.sends_unhashed() {
            return self.send_hashes(number, &[]);
        }
        let pages: Vec<PageNo> = cx.memory.ledger.owed().iter().collect();
        let (job, key) = (Job::FollowSync(number), keys.pages);
        cx.ask(job, |job| Action::Hash { job, key, pages });
    }

    pub(crate) fn follow_hashed(&mut self, number: SyncNo, digests: &[Digest]) {
        self.send_hashes(number, digests);
    }

    fn send_hashes(&mut self, number: SyncNo, digests: &[Digest]) {
        let Some(leader) = self.cx.group.leader else {
            return;
        };
        let Some(Stage::Receiving { own, stopped, .. }) = self.follow_stage(number) else {
            return;
        };
        let (mut runs, wait) = (std::mem::take(own), stopped.wait);
        let total = digests.len() as u32;
        let mut first = 0;
        loop {
            let part = &digests[first..(first + DIGESTS_PER_MESSAGE).min(digests.len())];
            let body = Body::Hashes {
                sync: number,
                runs: std::mem::take(&mut runs),
                first: first as u32,
                total,
                digests: Digest::to_bytes(part),
                wait,
            };
            self.cx.send_bulk(leader, body);
            first += part.len();
            if first >= digests.len() {
                break;
            }
        }
    }

    /// The leader knows which pages differ and wants to know where.
    pub(crate) fn follow_subpages(&mut self, number: SyncNo, runs: &Runs, heard: u64) {
        let set = runs.to_set(self.cx.config.layout.pages());
        let Some(set) = set.filter(|set| set.len() as usize <= PAGES_ASKED_MAX) else {
            return self
                .cx
                .cut_leader("divergent pages outside the guest, or too many of them");
        };
        let Some(Stage::Receiving { keys, narrowed, .. }) = self.follow_stage(number) else {
            return;
        };
        if !narrowed.0.is_empty() {
            return self
                .cx
                .cut_leader("another list of divergent pages before the first was answered");
        }
        let (key, pages) = (keys.subpages, set.iter().collect::<Vec<_>>());
        *narrowed = (pages.clone(), heard);
        let job = Job::FollowSync(number);
        self.cx
            .ask(job, |job| Action::HashSubpages { job, key, pages });
    }

    pub(crate) fn follow_subpages_hashed(&mut self, number: SyncNo, hashes: &[u64]) {
        let Some(leader) = self.cx.group.leader else {
            return;
        };
        let Some(Stage::Receiving { keys, narrowed, .. }) = self.follow_stage(number) else {
            return;
        };
        let (key, (pages, heard)) = (keys.subpages, std::mem::take(narrowed));
        let history = self.cx.memory.hash_history.under(key);
        let HashReport { anew, bytes } = history.say(heard, &pages, hashes);
        let total = bytes.len() as u32;
        for (part, said) in bytes.chunks(SUBPAGE_HASH_BYTES_PER_MESSAGE).enumerate() {
            let body = Body::SubpageHashes {
                sync: number,
                anew,
                first: (part * SUBPAGE_HASH_BYTES_PER_MESSAGE) as u32,
                total,
                said: said.to_vec(),
            };
            self.cx.send_bulk(leader, body);
        }
    }
}
