//! The end of a syncvm. If it is acknowledged, its outputs go; if it is given up, they stay held.

use super::{LeadSync, Stage};
use crate::api::{Action, ConsoleHold, Note};
use crate::canary::canary;
use crate::context::Context;
use crate::guest::Power;
use crate::leader::Leader;
use plover_policy::SlotCost;
use plover_syncvm::Phase;
use plover_types::{ReplicaId, SyncNo};

impl Leader {
    /// The secondary holds all of it: the state of this slot cannot be lost any more.
    pub(crate) fn on_ack(&mut self, cx: &mut Context, from: ReplicaId, number: SyncNo) {
        let now = cx.now;
        let Some(sync) = self.sync_with(from, number) else {
            return;
        };
        if sync.stage != Stage::Acknowledging {
            return;
        }
        sync.stage = Stage::Acknowledged;
        sync.last_progress = now;
        sync.enter(Phase::Release, now);
        let (index, join, peer) = (sync.index, sync.join, sync.peer);
        let held = sync.held.take();
        cx.note_phase(number, Phase::Release);
        cx.memory.ledger.settle();
        self.slot.is_retry = false;
        self.matching.acknowledged(number);
        if let Some(held) = held {
            let outputs = self.clear_for_release(cx, held) as u32;
            if let Some(sync) = &mut self.sync {
                sync.report.outputs = outputs;
            }
        }
        cx.group.core.trim(index);
        if join {
            self.join_synced(cx, peer);
        }
        if cx.guest.power == Power::Paused {
            self.begin_next_slot(cx);
        }
        self.release_what_is_safe(cx);
        if let Some(sync) = &mut self.sync {
            sync.enter(Phase::Resume, now);
        }
        self.finish_sync(cx);
    }

    /// The next slot begins.
    pub(super) fn begin_next_slot(&mut self, cx: &mut Context) {
        let Some(sync) = &mut self.sync else { return };
        let refeed = std::mem::take(&mut sync.refeed);
        let (idle, before) = (sync.idle, cx.out.len());
        self.resume_guest(cx, refeed);
        // A guest that is fed now may answer at once, so its idleness is not put to the test.
        let fed = |action: &Action| matches!(action, Action::Feed(_) | Action::Operate(_));
        cx.guest.activity.is_unproven = idle && !cx.out.iter().skip(before).any(fed);
        self.begin_slot(cx);
        cx.guest.activity.disturb();
    }

    /// The guest runs again.
    pub(crate) fn on_resumed(&mut self, cx: &mut Context) {
        let now = cx.now;
        let Some(sync) = self
            .sync
            .as_mut()
            .filter(|s| s.stage >= Stage::Transferring)
        else {
            return;
        };
        if !sync.runs {
            sync.runs = true;
            sync.report.pause = now.since(sync.started);
            let next = if sync.stage == Stage::Transferring {
                Phase::Transfer
            } else {
                Phase::Apply
            };
            sync.enter(next, now);
        }
        self.finish_sync(cx);
    }

    /// The sync is over when it is acknowledged and the guest runs.
    pub(super) fn finish_sync(&mut self, cx: &mut Context) {
        let over = |s: &LeadSync| s.runs && s.stage == Stage::Acknowledged;
        if !self.sync.as_ref().is_some_and(over) {
            return;
        }
        let Some(mut sync) = self.sync.take() else {
            return;
        };
        sync.enter(Phase::Idle, cx.now);
        let report = &sync.report;
        let cost = SlotCost {
            slot: report.slot,
            pause: report.pause,
            outputs: report.outputs + report.matched,
        };
        cx.rules.slot.learn(&cost);
        if !sync.join && !sync.retry {
            // A retried sync says nothing about this slot, so the controller does not learn from it.
            self.matching.learn(&cost, &mut cx.rules.matching);
        }
        cx.out.push(Action::Console(ConsoleHold::Show(sync.sync)));
        cx.note(Note::Synced(Box::new(sync.report)));
    }

    /// Gives a running sync up: the guest goes on, nothing is released, nothing forgotten.
    pub(crate) fn abort_sync(&mut self, cx: &mut Context, why: &str) {
        let Some(mut sync) = self.sync.take() else {
            return;
        };
        if sync.stage == Stage::Acknowledged {
            // Only the confirmation that the guest runs was missing.
            return;
        }
        cx.out.push(Action::Console(ConsoleHold::Reopen));
        cx.note(Note::SyncFailed {
            sync: sync.sync,
            why: why.to_string(),
        });
        self.slot.is_retry = true;
        // We assume that console output is pending. If none is, the only cost is one short slot.
        self.slot.printed = true;
        self.matching.stop();
        if let Some(held) = sync.held.take() {
            cx.outputs.guard.reopen(held);
        }
        if canary!(cx, DirtyBitsLost) {
            cx.memory.ledger.settle();
        }
        self.begin_slot(cx);
        match cx.guest.power {
            Power::Pausing => cx.guest.resume_when_paused = true,
            Power::Paused => self.resume_guest(cx, sync.refeed),
            Power::Off | Power::Starting | Power::Running => {}
        }
    }
}
