//! Outputs leave when their state is safe and the lease is valid.

use super::Leader;
use crate::api::Action;
use crate::canary::canary;
use crate::context::Context;
use plover_guard::HeldSlot;
use plover_policy::UnprotectedOutput;
use plover_types::{Frame, Index, SyncNo};

impl Leader {
    /// The slot's syncvm is acknowledged: its outputs may go as soon as the lease allows.
    pub(super) fn clear_for_release(&mut self, cx: &mut Context, held: HeldSlot) -> usize {
        let count = held.len();
        let slot = held.slot();
        // The entry of the syncvm stands behind all inputs of the slot, and is committed.
        let frames = cx.outputs.guard.release(held);
        cx.outputs.clear(slot, Index(0), frames);
        count
    }

    /// Sends what may be sent. A leader that was stopped for a while (SIGSTOP, a stalled host)
    /// may have been replaced without knowing; the lease says how long that is impossible.
    pub(crate) fn release_what_is_safe(&mut self, cx: &mut Context) {
        self.clear_what_is_matched(cx);
        self.clear_what_is_clean(cx);
        if cx.now >= cx.group.core.lease_until() {
            return;
        }
        release(cx, cx.group.sync_no.next(), self.resets.take_to_clients());
        let delivered = cx.group.delivered;
        while let Some(cleared) = cx.outputs.take_committed(delivered) {
            release(cx, cleared.slot, self.resets.without_doomed(cleared.frames));
        }
        self.report_released(cx);
        if self.releases_at_once(cx) && !cx.outputs.guard.is_empty() {
            let frames = cx.outputs.guard.release_all();
            self.clean.all_left();
            release(
                cx,
                cx.group.sync_no.next(),
                self.resets.without_doomed(frames),
            );
        }
    }

    /// Whether console output may be shown as it comes.
    pub(crate) fn prints_at_once(&self, cx: &Context) -> bool {
        cx.now < cx.group.core.lease_until() && self.releases_at_once(cx)
    }

    /// Whether outputs leave without a sync. Solo, this replica's state is the only one, and explains every
    /// output of its guest.
    fn releases_at_once(&self, cx: &Context) -> bool {
        let alone = canary!(cx, ServeAlone) && self.partner.is_some();
        self.serving
            && (self.is_solo(cx) || alone)
            && self.sync.is_none()
            && (cx.config.members.len() == 1
                || cx.config.unprotected_output == UnprotectedOutput::Release)
    }
}

/// Sends frames of a slot, if there are any.
fn release(cx: &mut Context, slot: SyncNo, frames: Vec<Frame>) {
    if !frames.is_empty() {
        cx.out.push(Action::Release { slot, frames });
    }
}
