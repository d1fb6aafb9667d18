//! A syncvm ends: acknowledged, and its outputs go, or given up, and they stay.

use super::{LeadSync, Stage};
use crate::api::{Action, Canary, Note};
use crate::guest::Power;
use crate::replica::Replica;
use plover_policy::SlotCost;
use plover_syncvm::Phase;
use plover_types::{ReplicaId, SyncNo};

impl Replica {
    /// The secondary holds all of it: the state of this slot cannot be lost any more.
    pub(crate) fn lead_ack(&mut self, from: ReplicaId, number: SyncNo) {
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
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
        self.note_phase(number, Phase::Release);
        self.ledger.settle();
        self.retry = false;
        self.matching.acknowledged(number);
        if let Some(held) = held {
            let outputs = self.clear_for_release(held) as u32;
            if let Some(sync) = &mut self.lead {
                sync.report.outputs = outputs;
            }
        }
        self.apus.trim(index);
        if join {
            self.join_synced(peer);
        }
        if self.guest.power == Power::Paused {
            self.lead_resume();
        }
        self.release_what_is_safe();
        if let Some(sync) = &mut self.lead {
            sync.enter(Phase::Resume, now);
        }
        self.finish_lead();
    }

    /// The next slot begins.
    pub(super) fn lead_resume(&mut self) {
        let Some(sync) = &mut self.lead else { return };
        let refeed = std::mem::take(&mut sync.refeed);
        let (idle, before) = (sync.idle, self.out.len());
        self.resume_guest(refeed);
        // What it is fed now it may answer at once.
        let fed = |action: &Action| matches!(action, Action::Feed(_) | Action::Operate(_));
        self.idleness_unproven = idle && !self.out.iter().skip(before).any(fed);
        self.begin_slot();
        self.idle.disturb();
    }

    /// The guest runs again.
    pub(crate) fn lead_resumed(&mut self) {
        let now = self.now;
        let Some(sync) = self
            .lead
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
        self.finish_lead();
    }

    /// The sync is over when it is acknowledged and the guest runs.
    pub(super) fn finish_lead(&mut self) {
        let over = |s: &LeadSync| s.runs && s.stage == Stage::Acknowledged;
        if !self.lead.as_ref().is_some_and(over) {
            return;
        }
        let Some(mut sync) = self.lead.take() else {
            return;
        };
        sync.enter(Phase::Idle, self.now);
        let report = &sync.report;
        let cost = SlotCost {
            slot: report.slot,
            pause: report.pause,
            outputs: report.outputs + report.matched,
        };
        self.slot_rule.learn(&cost);
        if !sync.join && !sync.retry {
            // A retried sync says nothing about this slot, so the controller does not learn from it.
            self.matching.learn(&cost);
        }
        self.note(Note::Synced(Box::new(sync.report)));
    }

    /// Gives a running sync up: the guest goes on, nothing is released, nothing forgotten.
    pub(crate) fn abort_lead(&mut self, why: &str) {
        let Some(mut sync) = self.lead.take() else {
            return;
        };
        if sync.stage == Stage::Acknowledged {
            // Only the confirmation that the guest runs was missing.
            return;
        }
        self.note(Note::SyncFailed {
            sync: sync.sync,
            why: why.to_string(),
        });
        self.retry = true;
        // Perhaps; if not, the next slot is a short one.
        self.printed = true;
        self.matching.stop();
        if let Some(held) = sync.held.take() {
            self.guard.reopen(held);
        }
        if self.canary(Canary::DirtyBitsLost) {
            self.ledger.settle();
        }
        self.begin_slot();
        match self.guest.power {
            Power::Pausing => self.guest.resume_when_paused = true,
            Power::Paused => self.resume_guest(sync.refeed),
            Power::Off | Power::Starting | Power::Running => {}
        }
    }
}
