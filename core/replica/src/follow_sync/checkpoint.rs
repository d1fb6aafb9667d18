//! The secondary's side of a checkpoint (Remus): its guest stands, and only its memory moves on.
//!
//! ```text
//!  Checkpoint ─▶ Receiving ─▶ (end mark) ─▶ acknowledged, in memory, Kept ─┬─▶ the next one
//!                    └──▶ given up: dropped; the last one is still Kept     │
//!                                                     this replica leads ──▶ Loading ─▶ runs
//! ```
//!
//! Device state is not loaded with each checkpoint but kept, and loaded once, when this side takes
//! over (docs/decisions/0009). Until then the devices have never run, so no machine type needs a
//! reset, and nothing but this side's own writes changes its memory.

use super::{FollowSync, Stage};
use crate::api::{Action, Note, Role};
use crate::guest::Power;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_syncvm::{Staged, Staging};
use plover_types::{Micros, PageSet, Runs, SyncNo, Unconsumed};

/// The newest checkpoint: its pages are in this side's memory.
#[derive(Debug)]
pub(crate) struct Kept {
    sync: SyncNo,
    device: Vec<u8>,
    /// Inputs that the leader's hypervisor had not consumed.
    refeed: Unconsumed,
}

impl Replica {
    /// The leader begins to send a checkpoint. One without its end mark was given up.
    pub(crate) fn follow_checkpoint(&mut self, sync: SyncNo) {
        if !self.takes_checkpoints() {
            return self.reject_leader("a checkpoint, but this replica's policy.secondary runs");
        }
        if !matches!(self.role, Role::Secondary | Role::Joining) {
            return self.report_no_guest();
        }
        if self.guest.power != Power::Paused {
            return self.reject_leader("a checkpoint before the hypervisor is up");
        }
        self.sync_no = self.sync_no.max(sync);
        let staging = Staging::new(sync, self.config.pages);
        self.follow = Some(FollowSync::at(sync, Stage::Receiving(staging), self.now));
    }

    /// The checkpoint is whole: it replaces the last one, and nothing of it is lost any more.
    pub(super) fn keep_checkpoint(&mut self, staged: Staged) {
        let Some(leader) = self.leader else { return };
        self.follow = None;
        self.send_bulk(leader, Body::Ack { sync: staged.sync });
        self.write_chunks(staged.chunks);
        self.kept = Some(Kept {
            sync: staged.sync,
            device: staged.device,
            refeed: staged.refeed,
        });
        self.note(Note::Kept { sync: staged.sync });
        if self.role == Role::Joining {
            self.joiner_applied();
        }
        self.set_holds_state(true);
        // The in-sync set may have gone on without this replica meanwhile.
        self.leave_if_out();
    }

    /// This replica leads: its guest goes on from the last checkpoint.
    pub(crate) fn take_over(&mut self) {
        let Some(kept) = self.kept.take() else {
            return;
        };
        assert!(self.follow.is_none(), "what was unfinished is given up");
        let staged = Staged {
            sync: kept.sync,
            chunks: Vec::new(),
            touched: PageSet::new(self.config.pages),
            pages: self.config.pages,
            device: Vec::new(),
            refeed: kept.refeed,
        };
        self.follow = Some(FollowSync::at(kept.sync, Stage::Loading(staged), self.now));
        self.out.push(Action::LoadState(kept.device));
    }
}

impl FollowSync {
    /// One that needs no part of this side's guest.
    fn at(sync: SyncNo, stage: Stage, since: Micros) -> Self {
        Self {
            sync,
            stage,
            since,
            wait: Micros::ZERO,
            wait_max: Micros::ZERO,
            unconsumed: Unconsumed::default(),
            scanned: false,
            narrowed: Default::default(),
            dirty: None,
            key: [0; 32],
            own: Runs::default(),
            compare: false,
            translations: Vec::new(),
        }
    }
}
