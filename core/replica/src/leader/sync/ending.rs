//! The end of a syncvm. If it is acknowledged, its outputs go; if it is given up, they stay held.

use super::{Cut, LeadSync, OwnGuest, Run, Stage};
use crate::api::{Action, ConsoleHold, Note};
use crate::canary::canary;
use crate::context::{Context, Rules};
use crate::guest::Power;
use crate::leader::Leader;
use plover_guard::HeldSlot;
use plover_policy::{SlotCost, SyncReason};
use plover_syncvm::Phase;
use plover_types::{ReplicaId, SyncNo, Unconsumed};

/// A secondary that gives up so many syncs in a row loses its place. Each is one that it could not put together, or was in
/// the way of an election, so a healthy one hardly gives up two.
const GIVEN_UP_MAX: u32 = 8;

impl Leader {
    /// The secondary holds all of it: the state of this slot cannot be lost any more.
    pub(crate) fn on_ack(&mut self, cx: &mut Context, from: ReplicaId, number: SyncNo) {
        let awaited = |sync: &mut LeadSync| {
            sync.run.is(from, number) && matches!(sync.stage, Stage::Acknowledging(..))
        };
        let Some(LeadSync {
            mut run,
            stage: Stage::Acknowledging(held, guest),
        }) = self.sync.take_if(awaited)
        else {
            return;
        };
        let (now, index, joins) = (cx.now, run.index, run.reason == SyncReason::Join);
        run.last_progress = now;
        run.enter(Phase::Release, now);
        cx.note_phase(number, Phase::Release);
        self.slot.is_retry = false;
        self.given_up = 0;
        self.partner.take_if(|partner| *partner == from);
        if !joins {
            self.is_proven = true;
            // A checkpoint may be acknowledged before the log names its secondary.
            if self.proposed.is_none() {
                cx.peers.forget_refusal(from);
            }
        }
        let replaces = joins && self.is_replacing();
        if !replaces {
            cx.memory.ledger.settle();
        }
        if replaces && !canary!(cx, ReplaceAtOnce) {
            // The old secondary may still have to lead, and its state does not explain these outputs.
            self.matching.stop();
            cx.outputs.guard.reopen(held);
            cx.out.push(Action::Console(ConsoleHold::Reopen));
            self.slot.is_due = true;
        } else {
            self.matching.acknowledged(number);
            self.clean.acknowledged = Some((from, number));
            self.operators_synced(cx, number);
            cx.out.push(Action::Console(ConsoleHold::Show(number)));
            run.report.outputs = self.clear_for_release(cx, held) as u32;
        }
        let stage = Stage::Acknowledged;
        self.sync = Some(LeadSync { run, stage });
        if !replaces {
            cx.group.core.trim(index);
        }
        if joins {
            self.join_synced(cx, from);
        }
        let runs = matches!(guest, OwnGuest::Runs);
        if let OwnGuest::Stands(refeed) = guest {
            self.begin_next_slot(cx, refeed);
        }
        self.release_what_is_safe(cx);
        if let Some(LeadSync { run, .. }) = &mut self.sync {
            run.enter(Phase::Resume, now);
        }
        if runs {
            self.finish_sync(cx);
        }
    }

    /// The next slot begins.
    pub(super) fn begin_next_slot(&mut self, cx: &mut Context, refeed: Unconsumed) {
        let reason = self.sync.as_ref().map(|sync| sync.run.reason);
        self.slot.rests = self.sync.as_ref().is_some_and(|sync| sync.run.rests);
        let before = cx.out.len();
        self.resume_guest(cx, refeed);
        // A guest that is fed now may answer at once, so its idleness is not put to the test.
        let fed = |action: &Action| matches!(action, Action::Feed(_) | Action::Operate(_));
        let idle = reason == Some(SyncReason::Idle);
        cx.guest.activity.is_unproven = idle && !cx.out.iter().skip(before).any(fed);
        self.begin_slot(cx);
        cx.guest.activity.disturb();
    }

    /// The guest runs again. With that an acknowledged sync is over.
    pub(crate) fn on_resumed(&mut self, cx: &mut Context) {
        // One that was elected while its guest was being paused.
        self.serve_if_ready(cx);
        let now = cx.now;
        let Some(LeadSync { run, stage }) = &mut self.sync else {
            return;
        };
        let (guest, next) = match stage {
            Stage::Sending(_, sending) => (&mut sending.guest, Phase::Transfer),
            Stage::Acknowledging(_, guest) => (guest, Phase::Apply),
            Stage::Acknowledged => {
                run.report.pause = now.since(run.started);
                return self.finish_sync(cx);
            }
            _ => return,
        };
        if matches!(guest, OwnGuest::Resuming) {
            *guest = OwnGuest::Runs;
            run.report.pause = now.since(run.started);
            run.enter(next, now);
        }
    }

    fn finish_sync(&mut self, cx: &mut Context) {
        let Some(LeadSync { mut run, .. }) = self.sync.take() else {
            return;
        };
        run.enter(Phase::Idle, cx.now);
        let report = &run.report;
        let cost = SlotCost {
            slot: report.slot,
            pause: report.pause,
            outputs: report.outputs + report.matched,
        };
        cx.rules.slot.learn(&cost);
        if !matches!(run.reason, SyncReason::Join | SyncReason::Retry) {
            // A retried sync says nothing about this slot, so the controller does not learn from it.
            if !run.rested {
                self.matching.learn(&cost, &mut cx.rules.matching);
            }
            if cx.may_rest() {
                let Rules { slot, rest, .. } = &mut cx.rules;
                let cost = SlotCost {
                    outputs: cost.outputs + run.report.clean,
                    ..cost
                };
                let early = run.report.matched + run.report.clean;
                rest.learn(run.rested, &cost, early, slot);
            }
        }
        cx.note(Note::Synced(Box::new(run.report)));
    }

    /// The secondary could not complete this syncvm. Its guest goes on, so the next one repairs that; a joiner's
    /// guest has never run, so its join begins anew. A secondary that completes none is of no use: clients would wait for ever.
    pub(crate) fn on_gave_up(
        &mut self,
        cx: &mut Context,
        from: ReplicaId,
        number: SyncNo,
        why: &str,
    ) {
        if self.running_with(from, number).is_none() {
            return;
        }
        if self.join.as_ref().is_some_and(|join| join.peer == from) {
            self.fail_join(cx, why);
            return;
        }
        self.abort_sync(cx, why);
        self.given_up += 1;
        if self.given_up >= GIVEN_UP_MAX {
            self.lose_peer(cx, from, why);
        }
    }

    /// Gives a running sync up: the guest goes on, nothing is released, nothing forgotten.
    pub(crate) fn abort_sync(&mut self, cx: &mut Context, why: &str) {
        // Of an acknowledged one, only the confirmation that the guest runs is missing.
        if let Some(sync) = self.sync.take().filter(|sync| !sync.is_acknowledged()) {
            let number = sync.run.sync;
            let (held, refeed) = sync.into_parts();
            self.give_up(cx, number, (held, refeed), why);
        }
    }

    /// As [`Leader::abort_sync`], of one that was taken out.
    pub(super) fn fail_sync(&mut self, cx: &mut Context, run: &Run, cut: Cut, why: &str) {
        self.give_up(cx, run.sync, (Some(cut.held), cut.refeed), why);
    }

    fn give_up(
        &mut self,
        cx: &mut Context,
        sync: SyncNo,
        (held, refeed): (Option<HeldSlot>, Unconsumed),
        why: &str,
    ) {
        cx.out.push(Action::Console(ConsoleHold::Reopen));
        let why = why.to_string();
        cx.note(Note::SyncFailed { sync, why });
        self.slot.is_retry = true;
        // We assume that console output is pending. If none is, the only cost is one short slot.
        self.slot.printed = true;
        self.matching.stop();
        if let Some(held) = held {
            cx.outputs.guard.reopen(held);
        }
        if canary!(cx, DirtyBitsLost) {
            cx.memory.ledger.settle();
        }
        self.begin_slot(cx);
        match cx.guest.power {
            Power::Pausing => cx.guest.resume_when_paused = true,
            Power::Paused => self.resume_guest(cx, refeed),
            Power::Off | Power::Starting | Power::Running => {}
        }
    }
}
