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

use super::{Complete, Stage, Stopped};
use crate::api::{Action, ConsoleHold, Note};
use crate::guest::Power;
use crate::hash_keys::SyncKeys;
use crate::hypervisor::Order;
use crate::phase::Phase;
use crate::replica::Replica;
use crate::secondary::Secondary;
use plover_syncvm::message::Body;
use plover_syncvm::{Staged, Staging};
use plover_types::{DeviceState, PageSet, Runs, SyncNo, Unconsumed};

/// The newest checkpoint: its pages are in this side's memory.
#[derive(Debug)]
pub(crate) struct Kept {
    sync: SyncNo,
    device: DeviceState,
    /// Inputs that the leader's hypervisor had not consumed.
    refeed: Unconsumed,
}

impl Replica {
    /// The leader begins to send a checkpoint. One without its end mark was given up.
    pub(crate) fn follow_checkpoint(&mut self, sync: SyncNo) {
        let cx = &mut self.cx;
        if !cx.takes_checkpoints() {
            return cx.reject_leader("a checkpoint, but this replica's policy.secondary runs");
        }
        if !matches!(self.phase, Phase::Secondary(_) | Phase::Joining { .. }) {
            return self.report_no_guest();
        }
        if cx.guest.power != Power::Paused {
            return cx.reject_leader("a checkpoint before the hypervisor is up");
        }
        if !sync.is_sane() {
            return cx.cut_leader("a checkpoint with a number that counting does not reach");
        }
        cx.group.sync_no = cx.group.sync_no.max(sync);
        let staging = Staging::new(sync, PageSet::all(cx.config.layout.pages()));
        let stage = Stage::Receiving {
            stopped: Stopped::default(),
            own: Runs::default(),
            // Nothing is compared.
            keys: SyncKeys::xxh3([0; 32]),
            narrowed: Default::default(),
            staging,
        };
        self.follow_on(sync, stage);
    }

    /// The checkpoint is whole: it replaces the last one, and nothing of it is lost any more.
    pub(super) fn keep_checkpoint(&mut self, staged: Staged) {
        let Some(leader) = self.cx.group.leader else {
            return;
        };
        let sync = staged.sync;
        self.cx.send_bulk(leader, Body::Ack { sync });
        self.cx.write_chunks(staged.chunks);
        self.cx.out.push(Action::Console(ConsoleHold::Forget));
        self.cx.note(Note::Kept { sync });
        self.become_secondary();
        if let Phase::Secondary(secondary) = &mut self.phase {
            secondary.kept = Some(Kept {
                sync,
                device: staged.device,
                refeed: staged.refeed,
            });
        }
        // The in-sync set may have gone on without this replica meanwhile.
        self.leave_if_out();
    }

    /// A replica that joins has its first state: it counts from now on.
    pub(super) fn become_secondary(&mut self) {
        if let Phase::Joining { copy } = &self.phase {
            let secondary = Secondary::new(Some(copy.attempt), self.cx.now);
            self.enter(Phase::Secondary(Box::new(secondary)));
        }
        self.cx.group.core.set_holds_state(true);
    }

    /// This replica leads: its guest goes on from the last checkpoint.
    pub(crate) fn take_over(&mut self, kept: Kept) {
        assert!(self.follow.is_none(), "what was unfinished is given up");
        let pages = self.cx.config.layout.pages();
        let staged = Staged {
            sync: kept.sync,
            chunks: Vec::new(),
            touched: PageSet::new(pages),
            expected: PageSet::new(pages),
            device: DeviceState::default(),
            refeed: kept.refeed,
        };
        let complete = Complete {
            staged,
            compare: false,
            translations: Vec::new(),
            rests: false,
        };
        self.follow_on(kept.sync, Stage::Loading(complete));
        self.cx.order(Order::Load, Action::LoadState(kept.device));
    }
}
