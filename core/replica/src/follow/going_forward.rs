//! After the end mark the secondary always goes forward to the staged state: it resets its devices if the
//! machine type needs that ([`super::resetting`]), makes its disks' blocks durable, acknowledges, and applies
//! everything.

use super::{Complete, FollowSync, Stage};
use crate::api::{Action, ConsoleHold, Note, Role};
use crate::canary::canary;
use crate::hypervisor::Order;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_types::{PageNo, SyncNo};

impl Replica {
    /// Takes the running syncvm out if it is this one and at a stage that `is_due`.
    pub(super) fn take_follow(
        &mut self,
        number: SyncNo,
        is_due: impl FnOnce(&Stage) -> bool,
    ) -> Option<Stage> {
        let is_it = |follow: &mut FollowSync| follow.sync == number && is_due(&follow.stage);
        let follow = self.follow.take_if(is_it)?;
        Some(follow.stage)
    }

    /// Stages disk blocks in the journal first, if the guest has disks that it writes. `restore` are chunks to
    /// put back after a reset.
    pub(super) fn make_durable(&mut self, sync: SyncNo, complete: Complete, restore: Vec<Vec<u8>>) {
        let config = &self.cx.config;
        if config.layout.disk_blocks() == 0 {
            return self.acknowledge_and_apply(sync, complete, restore);
        }
        let first_block = PageNo(config.layout.ram_pages());
        let chunks = complete.staged.chunks_from(first_block);
        self.follow_on(sync, Stage::Durable(complete, restore));
        self.cx.out.push(Action::StageDisks { sync, chunks });
        if canary!(self.cx, AckBeforeDisks) {
            self.follow_disks_staged(sync);
        }
    }

    pub(crate) fn follow_disks_staged(&mut self, number: SyncNo) {
        let staging = |stage: &Stage| matches!(stage, Stage::Durable(..));
        if let Some(Stage::Durable(complete, restore)) = self.take_follow(number, staging) {
            self.acknowledge_and_apply(number, complete, restore);
        }
    }

    /// From the acknowledgement on the leader may release; the staged state is ours.
    fn acknowledge_and_apply(
        &mut self,
        sync: SyncNo,
        mut complete: Complete,
        restore: Vec<Vec<u8>>,
    ) {
        let mut chunks = restore;
        chunks.append(&mut complete.staged.chunks);
        let device = std::mem::take(&mut complete.staged.device);
        self.follow_on(sync, Stage::Loading(complete));
        let leader = self.cx.leader_of_view();
        if let Some(leader) = leader.filter(|_| self.role() != Role::Leader) {
            self.cx.send_bulk(leader, Body::Ack { sync });
        }
        if self.counts_once_loaded() {
            self.cx.group.core.set_expects_state();
        }
        let writes = !chunks.is_empty();
        self.cx.write_chunks(chunks);
        match writes {
            // The order waits for some of these writes. A disk that hangs under them is noticed by the leader's next syncvm.
            true => self.cx.out.push(Action::LoadState(device)),
            false => self.cx.order(Order::Load, Action::LoadState(device)),
        }
    }

    /// The pages of a complete syncvm are written, and its device state is being loaded.
    pub(crate) fn follow_chunks_written(&mut self) {
        let loads = |follow: &FollowSync| matches!(follow.stage, Stage::Loading(_));
        if self.follow.as_ref().is_some_and(loads) {
            self.cx.guest.unanswered.ordered(Order::Load, self.cx.now);
        }
    }

    /// Memory and devices are the leader's at the cut.
    pub(crate) fn follow_state_loaded(&mut self) {
        let loading = |follow: &mut FollowSync| matches!(follow.stage, Stage::Loading(_));
        let Some(FollowSync {
            sync,
            stage: Stage::Loading(complete),
            ..
        }) = self.follow.take_if(loading)
        else {
            return;
        };
        let compare = complete.compare && self.role() != Role::Leader;
        let is_first = self.is_first_state();
        let cx = &mut self.cx;
        cx.memory.remember_written(is_first);
        cx.memory.ledger.settle();
        if is_first && cx.config.needs_reset && !canary!(cx, JoinAtOnce) {
            cx.note(Note::Applied { sync });
            return self.await_second_state();
        }
        // Own outputs of the slot, and own unconsumed inputs, belong to a state that is gone.
        cx.outputs.guard.discard_all();
        cx.guest
            .translator
            .begin(sync, compare, &complete.translations);
        cx.guest.pace.begin();
        cx.out.push(Action::Console(ConsoleHold::Forget));
        cx.note(Note::Applied { sync });
        self.become_secondary();
        let cx = &mut self.cx;
        if let Phase::Secondary(secondary) = &mut self.phase {
            secondary.begin_report(cx, sync, compare);
        }
        cx.guest.activity.disturb();
        self.go_on(complete.staged.refeed, complete.rests);
        if let Some((leader, cx)) = self.leading() {
            leader.serve_if_ready(cx);
        }
        // The in-sync set may have gone on without this replica while it was loading.
        self.leave_if_out();
    }
}
