//! After the end mark the secondary goes forward to what is staged, whatever happens: its devices are
//! reset where that must be, its disks' blocks made durable, all of it acknowledged and applied.

use super::Stage;
use crate::api::{Action, Canary, Note, Role};
use crate::replica::{Asked, Replica};
use plover_syncvm::Staged;
use plover_syncvm::message::Body;
use plover_types::{PageNo, PageSet, SyncNo};

impl Replica {
    pub(crate) fn follow_restore_read(&mut self, number: SyncNo, chunk: Vec<u8>) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        match std::mem::replace(&mut follow.stage, Stage::Scanning) {
            Stage::Saving(staged) => {
                follow.stage = Stage::Resetting(staged, chunk);
                self.out.push(Action::Reset);
            }
            other => follow.stage = other,
        }
    }

    pub(crate) fn follow_reset_done(&mut self) {
        let Some(follow) = &self.follow else { return };
        if matches!(follow.stage, Stage::Resetting(..)) {
            self.scans.push_back(Asked::Follow(follow.sync));
            self.out.push(Action::Scan);
        }
    }

    /// What the reset wrote: put back, overwritten by the staged pages, or fetched.
    pub(super) fn follow_reset_scanned(&mut self, written: &PageSet) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        let Stage::Resetting(staged, restore) =
            std::mem::replace(&mut follow.stage, Stage::Scanning)
        else {
            return;
        };
        // Settled when the staged state is in place.
        self.ledger.owe(written);
        let number = follow.sync;
        let mut missing = written.clone();
        missing.subtract(&staged.touched);
        missing.subtract(&self.reset_pages);
        self.reset_pages.union_with(written);
        if missing.is_empty() {
            return self.make_durable(staged, Some(restore));
        }
        follow.stage = Stage::Fetching(staged, restore);
        match self.leader.filter(|l| self.links.contains(*l)) {
            Some(leader) => {
                let runs = missing.to_runs();
                self.send_bulk(leader, Body::Fetch { sync: number, runs });
            }
            None => self.lose_guest_in_fetch(),
        }
    }

    pub(crate) fn follow_fetched(&mut self, number: SyncNo, chunk: Vec<u8>, last: bool) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        match std::mem::replace(&mut follow.stage, Stage::Scanning) {
            Stage::Fetching(mut staged, restore) => {
                if staged.add(chunk).is_err() {
                    follow.stage = Stage::Fetching(staged, restore);
                    self.lose_guest_in_fetch();
                } else if last {
                    self.make_durable(staged, Some(restore));
                } else {
                    follow.stage = Stage::Fetching(staged, restore);
                }
            }
            other => follow.stage = other,
        }
    }

    /// What is staged for disks comes first onto this host's own, where there are any.
    pub(super) fn make_durable(&mut self, staged: Staged, restore: Option<Vec<u8>>) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        if self.config.disk_blocks == 0 {
            return self.acknowledge_and_apply(staged, restore);
        }
        let ram_pages = self.config.pages - self.config.disk_blocks;
        let (sync, chunks) = (follow.sync, staged.chunks_from(PageNo(ram_pages)));
        follow.stage = Stage::Durable(staged, restore);
        self.out.push(Action::StageDisks { sync, chunks });
        if self.canary(Canary::AckBeforeDisks) {
            self.follow_disks_staged(sync);
        }
    }

    pub(crate) fn follow_disks_staged(&mut self, number: SyncNo) {
        let Some(follow) = self.follow.as_mut().filter(|f| f.sync == number) else {
            return;
        };
        match std::mem::replace(&mut follow.stage, Stage::Scanning) {
            Stage::Durable(staged, restore) => self.acknowledge_and_apply(staged, restore),
            other => follow.stage = other,
        }
    }

    /// From the acknowledgement on the leader may release; the staged state is ours.
    pub(super) fn acknowledge_and_apply(&mut self, mut staged: Staged, restore: Option<Vec<u8>>) {
        let Some(follow) = &mut self.follow else {
            return;
        };
        let number = follow.sync;
        let mut chunks: Vec<Vec<u8>> = restore.into_iter().filter(|c| !c.is_empty()).collect();
        chunks.append(&mut staged.chunks);
        let device = std::mem::take(&mut staged.device);
        follow.stage = Stage::Loading(staged);
        if let Some(leader) = self.leader {
            if self.role != Role::Leader {
                self.send_bulk(leader, Body::Ack { sync: number });
            }
        }
        self.write_chunks(chunks);
        self.out.push(Action::LoadState(device));
    }

    /// Memory and devices are the leader's at the cut.
    pub(crate) fn follow_state_loaded(&mut self) {
        let Some(follow) = self.follow.take() else {
            return;
        };
        let Stage::Loading(staged) = follow.stage else {
            self.follow = Some(follow);
            return;
        };
        self.ledger.settle();
        // Own outputs of the slot, and own unconsumed inputs, belong to a state that is gone.
        self.guard.discard_all();
        let compared = follow.compare && self.role != Role::Leader;
        let translator = &mut self.guest.translator;
        translator.begin(follow.sync, compared, &follow.translations);
        self.begin_saying(follow.sync, follow.compare);
        self.pace.begin();
        self.note(Note::Applied { sync: follow.sync });
        if self.role == Role::Joining {
            self.joiner_applied();
        }
        self.set_holds_state(true);
        self.idle.disturb();
        self.guest_idle = false;
        self.resume_guest(staged.refeed);
        self.serve_if_ready();
        // The in-sync set may have gone on without this replica while it was loading.
        self.leave_if_out();
    }
}
