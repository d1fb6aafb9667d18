//! When a syncvm begins, and when a running one is given up.

use super::Leader;
use crate::canary::canary;
use crate::context::{Context, Rules};
use crate::guest::Power;
use plover_policy::{RestView, SlotView, SyncReason, SyncWhen};
use plover_types::Micros;

/// A sync whose next step is the secondary's, and that makes no progress for this many election timeouts,
/// has lost its secondary. Where the next step is this side's, see [`crate::hypervisor`].
const PATIENCE_TIMEOUTS: u64 = 10;

/// Where slots wait for matches, one with something printed in it ends at this age: a person at a console
/// does not feel a tenth of a second.
const PRINTED_WITHIN: Micros = Micros::from_ms(100);

/// The running slot, as this leader sees it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub started: Micros,
    /// The last syncvm failed; the next one is a repetition.
    pub is_retry: bool,
    /// A syncvm is due, whatever the policy says ([`crate::Event::SyncDue`]).
    pub is_due: bool,
    /// Console output of this slot waits for its syncvm.
    pub printed: bool,
    /// The secondary's guest rests in it.
    pub rests: bool,
}

impl Slot {
    pub fn new(started: Micros) -> Self {
        Self {
            started,
            is_retry: false,
            is_due: false,
            printed: false,
            rests: false,
        }
    }
}

/// How long this side's own part of a sync may make no progress: a scan, hashing, or reading pages from a
/// disk. Orders to the hypervisor are due sooner.
fn own_patience(cx: &Context) -> Micros {
    Micros(cx.config.hypervisor_timeout.0 * PATIENCE_TIMEOUTS)
}

/// For how long another replica may make no progress.
pub(super) fn patience(cx: &Context) -> Micros {
    Micros(cx.config.timeout.0 * PATIENCE_TIMEOUTS)
}

impl Leader {
    /// Whether a sync stands still at a step that is this side's.
    pub(crate) fn stalls_here(&self, cx: &Context) -> bool {
        self.sync.as_ref().is_some_and(|sync| {
            !sync.is_ordering()
                && !sync.waits_for_secondary()
                && cx.now.since(sync.run.last_progress) > own_patience(cx)
        })
    }

    /// Starts a sync when the slot rule says so or the last one failed; gives one up that stands still.
    pub(crate) fn tick_slot(&mut self, cx: &mut Context) {
        if let Some(sync) = &self.sync {
            let is_its_turn = sync.waits_for_secondary() || canary!(cx, BlameSecondary);
            if is_its_turn && cx.now.since(sync.run.last_progress) > patience(cx) {
                let peer = sync.run.peer;
                self.abort_sync(cx, "the secondary made no progress");
                self.lose_peer(cx, peer, "a syncvm made no progress");
            }
            return;
        }
        if !self.may_end_slot(cx) || self.proposed.is_some_and(|s| s.len() < 2) {
            return;
        }
        let view = self.slot_view(cx);
        let reason = match self.match_view(cx) {
            _ if self.slot.is_due => Some(SyncReason::Written),
            Some(_) if self.slot.printed && view.age >= PRINTED_WITHIN => Some(SyncReason::Output),
            Some(_) if self.is_measured(cx) => Some(SyncReason::Rest),
            Some(found) => self.compared_slot_ends(cx, &view, &found),
            None => cx.config.policy.sync.ends(&cx.rules.slot, &view),
        };
        if let Some(reason) = reason {
            let retry = self.slot.is_retry;
            self.start_sync(cx, if retry { SyncReason::Retry } else { reason });
        }
    }

    /// Whether there is a secondary to sync with, and no joiner is about to take its place. One whose link is down comes
    /// back, or is lost.
    fn may_end_slot(&self, cx: &Context) -> bool {
        let is_joined = self.settles || self.final_joiner().is_some();
        let secondary = self.secondary(cx);
        let is_there = secondary.is_some_and(|peer| cx.peers.is_linked(peer));
        self.serving && !is_joined && self.kept_frames.is_none() && is_there
    }

    /// How many outputs of this slot have left before its sync.
    fn left_early(&self) -> u32 {
        self.matching.matched() + self.clean.released()
    }

    /// The slot, for the rule that says in which the secondary's guest rests.
    fn rest_view(&self, cx: &Context) -> RestView {
        RestView {
            rests: self.slot.rests,
            age: cx.now.since(self.slot.started),
            outputs: self.left_early() + cx.outputs.guard.len() as u32,
        }
    }

    /// Whether the secondary's guest rests in the slot that a sync for this `reason` begins. A guest that may have
    /// to lead in a moment runs.
    pub(super) fn lets_rest(&self, cx: &mut Context, reason: SyncReason) -> bool {
        let is_settled =
            reason != SyncReason::Join && self.join.is_none() && self.partner.is_none();
        if !cx.may_rest() || !is_settled || self.switchover.is_some() {
            return false;
        }
        let view = self.rest_view(cx);
        let Rules {
            slot,
            rest,
            matching,
            ..
        } = &mut cx.rules;
        rest.rests(&view, slot, matching)
    }

    /// Whether the slot has shown what it yields, and the secondary's guest usually rests.
    fn is_measured(&self, cx: &Context) -> bool {
        cx.may_rest() && cx.rules.rest.ends(&self.rest_view(cx), &cx.rules.slot)
    }

    /// Nothing is known of the new slot yet.
    pub(super) fn begin_slot(&mut self, cx: &mut Context) {
        self.slot.started = cx.now;
        cx.guest.activity.is_idle = false;
    }

    fn slot_view(&self, cx: &Context) -> SlotView {
        SlotView {
            age: cx.now.since(self.slot.started),
            // Console output is not compared, so a slot that waits for a match does not wait for it.
            outputs_held: !cx.outputs.guard.is_empty()
                || (self.slot.printed && cx.config.policy.sync != SyncWhen::Mismatch),
            idle: cx.guest.activity.is_idle,
            guard_full: cx.outputs.guard.is_full(),
            log_half_full: cx.is_log_half_full(),
        }
    }

    /// Whether the end of the slot depends on whether the guest is idle.
    pub(crate) fn waits_for_idleness(&self, cx: &Context) -> bool {
        cx.config.policy.sync.asks_for_idleness()
            && self.sync.is_none()
            && cx.guest.power == Power::Running
            && self.secondary(cx).is_some()
            && (self.slot.printed || !cx.outputs.guard.is_empty())
            && !self.waits_for_a_match(cx)
    }

    pub(super) fn slot_deadline(&self, cx: &Context) -> Micros {
        match &self.sync {
            Some(sync) if !sync.waits_for_secondary() => {
                let late_at = sync.run.last_progress + own_patience(cx) + Micros(1);
                if late_at > cx.now {
                    late_at
                } else {
                    Micros::NEVER
                }
            }
            Some(sync) => sync.run.last_progress + patience(cx) + Micros(1),
            None if self.may_end_slot(cx) && cx.guest.power == Power::Running => {
                let when = cx.config.policy.sync;
                let view = self.slot_view(cx);
                match self.match_view(cx) {
                    Some(found) => {
                        let matched = self.compared_slot_deadline(cx, &view, &found);
                        let printed = self
                            .slot
                            .printed
                            .then(|| self.slot.started + PRINTED_WITHIN);
                        matched.min(printed.unwrap_or(Micros::NEVER))
                    }
                    None => self.slot.started + when.age_max(&cx.rules.slot, &view),
                }
            }
            None => Micros::NEVER,
        }
    }
}
