//! The secondary says which pages it has written, and the hashes of those that either side has.

use super::{EarlyDirty, Stage};
use crate::api::{Action, Role};
use crate::replica::{Asked, Replica};
use plover_syncvm::message::Body;
use plover_syncvm::{Said, Staging};
use plover_types::{Digest, PageNo, PageSet, Runs, SyncNo};

/// Digests in one message: 64 KiB.
const DIGESTS_PER_MESSAGE: usize = 4096;

/// Bytes of block hashes in one message.
const BLOCK_HASH_BYTES_PER_MESSAGE: usize = 64 << 10;

impl Replica {
    /// The leader's dirty pages; they may come before the log entry.
    pub(crate) fn follow_dirty(&mut self, sync: SyncNo, runs: &Runs, key: [u8; 32]) {
        if !self.holds_state && self.role != Role::Joining {
            return self.report_no_guest();
        }
        let Some(set) = runs.to_set(self.config.pages) else {
            return self.reject_leader("dirty pages outside the guest");
        };
        match &mut self.follow {
            Some(follow) if follow.sync == sync => {
                follow.dirty = Some((set, key));
                self.try_hash();
            }
            _ => {
                self.early_dirty = Some(EarlyDirty {
                    sync,
                    view: self.view,
                    set,
                    key,
                })
            }
        }
    }

    /// The leader believes that this replica has a guest.
    pub(super) fn report_no_guest(&mut self) {
        if let Some(leader) = self.leader {
            let why = "this replica was restarted and holds no guest".to_string();
            self.send_bulk(leader, Body::GuestLost { why });
        }
    }

    pub(crate) fn follow_scanned(&mut self, sync: SyncNo, set: &PageSet) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == sync) else {
            return self.ledger.owe(set);
        };
        if let Stage::Resetting(..) = follow.stage {
            return self.follow_reset_scanned(set);
        }
        self.ledger.owe(set);
        follow.scanned = true;
        follow.own = self.ledger.owed().to_runs();
        self.try_hash();
    }

    /// Hashes the union once both sides' dirty pages are known.
    pub(super) fn try_hash(&mut self) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        if !matches!(follow.stage, Stage::Scanning) || !follow.scanned {
            return;
        }
        let Some((theirs, key)) = follow.dirty.take() else {
            return;
        };
        let number = follow.sync;
        follow.key = key;
        follow.stage = Stage::Receiving(Staging::new(number, self.config.pages));
        // Whatever becomes of this sync, these pages may differ until one succeeds.
        self.ledger.owe(&theirs);
        if self.sends_unhashed() {
            return self.say_hashes(number, &[]);
        }
        let pages: Vec<PageNo> = self.ledger.owed().iter().collect();
        self.hashes.push_back(Asked::Follow(number));
        self.out.push(Action::Hash { key, pages });
    }

    pub(crate) fn follow_hashed(&mut self, number: SyncNo, digests: &[Digest]) {
        self.say_hashes(number, digests);
    }

    fn say_hashes(&mut self, number: SyncNo, digests: &[Digest]) {
        let Some(leader) = self.leader else { return };
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        let (mut runs, wait) = (std::mem::take(&mut follow.own), follow.wait);
        let total = digests.len() as u32;
        let mut first = 0;
        loop {
            let part = &digests[first..(first + DIGESTS_PER_MESSAGE).min(digests.len())];
            let runs = std::mem::take(&mut runs);
            let body = Body::Hashes {
                sync: number,
                runs,
                first: first as u32,
                total,
                digests: Digest::to_bytes(part),
                wait,
            };
            self.send_bulk(leader, body);
            first += part.len();
            if first >= digests.len() {
                break;
            }
        }
    }

    /// The leader knows which pages differ and wants to know where.
    pub(crate) fn follow_blocks(&mut self, number: SyncNo, runs: &Runs, heard: u64) {
        let Some(set) = runs.to_set(self.config.pages) else {
            return self.reject_leader("divergent pages outside the guest");
        };
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        if !matches!(follow.stage, Stage::Receiving(_)) {
            return;
        }
        let key = follow.key;
        self.block_hashes.push_back(Asked::Follow(number));
        let pages: Vec<_> = set.iter().collect();
        follow.narrowed = (pages.clone(), heard);
        self.out.push(Action::HashBlocks { key, pages });
    }

    pub(crate) fn follow_blocks_hashed(&mut self, number: SyncNo, hashes: &[u64]) {
        let Some(leader) = self.leader else { return };
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        let (pages, heard) = std::mem::take(&mut follow.narrowed);
        let Said { anew, bytes } = self.hash_history.say(heard, &pages, hashes);
        let total = bytes.len() as u32;
        for (part, said) in bytes.chunks(BLOCK_HASH_BYTES_PER_MESSAGE).enumerate() {
            let body = Body::BlockHashes {
                sync: number,
                anew,
                first: (part * BLOCK_HASH_BYTES_PER_MESSAGE) as u32,
                total,
                said: said.to_vec(),
            };
            self.send_bulk(leader, body);
        }
    }
}
