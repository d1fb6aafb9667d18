//! When a syncvm begins, and when a running one is given up.

use super::Stage;
use crate::Role;
use crate::guest::Power;
use crate::replica::Replica;
use plover_policy::{SlotView, SyncReason, SyncWhen};
use plover_types::Micros;

/// A sync that makes no progress for this many election timeouts has lost its secondary.
const PATIENCE_TIMEOUTS: u64 = 10;

/// Where slots wait for matches, one with something printed in it ends at this age: a tenth of a second
/// is not felt by who looks at a console.
const PRINTED_WITHIN: Micros = Micros::from_ms(100);

impl Replica {
    /// The slot rule, the failed-sync repetition and the patience with a running one.
    pub(crate) fn tick_lead(&mut self) {
        if self.role != Role::Leader {
            return;
        }
        if let Some(sync) = &self.lead {
            let patience = Micros(self.config.timeout.0 * PATIENCE_TIMEOUTS);
            if sync.stage < Stage::Acknowledged && self.now.since(sync.last_progress) > patience {
                let peer = sync.peer;
                self.abort_lead("the secondary made no progress");
                self.lose_peer(peer, "a syncvm made no progress");
            }
            return;
        }
        if self.secondary().is_none() || self.pending_in_sync.is_some_and(|s| s.len() < 2) {
            return;
        }
        let view = self.slot_view();
        let reason = match self.match_view() {
            _ if self.much_written => Some(SyncReason::Written),
            Some(_) if self.printed && view.age >= PRINTED_WITHIN => Some(SyncReason::Output),
            Some(found) => self.compared_slot_ends(&view, &found),
            None => self.config.policy.sync.ends(&self.slot_rule, &view),
        };
        if let Some(reason) = reason {
            self.start_sync(if self.retry {
                SyncReason::Retry
            } else {
                reason
            });
        }
    }

    /// Nothing is known of the new slot yet.
    pub(super) fn begin_slot(&mut self) {
        self.slot_started = self.now;
        self.guest_idle = false;
    }

    fn slot_view(&self) -> SlotView {
        SlotView {
            age: self.now.since(self.slot_started),
            // What is printed is not compared, so a slot that waits for a match does not wait for it.
            outputs_held: !self.guard.is_empty()
                || (self.printed && self.config.policy.sync != SyncWhen::Mismatch),
            idle: self.guest_idle,
            guard_full: self.guard.is_full(),
            log_half_full: self.is_log_half_full(),
        }
    }

    pub(crate) fn is_log_half_full(&self) -> bool {
        self.apus.status().log_bytes * 2 > self.config.log_bytes_max
    }

    pub(crate) fn lead_deadline(&self) -> Micros {
        if self.role != Role::Leader {
            return Micros::NEVER;
        }
        match &self.lead {
            Some(sync) => {
                sync.last_progress + Micros(self.config.timeout.0 * PATIENCE_TIMEOUTS + 1)
            }
            None if self.secondary().is_some() && self.guest.power == Power::Running => {
                let when = self.config.policy.sync;
                let view = self.slot_view();
                match self.match_view() {
                    Some(found) => {
                        let matched = self.compared_slot_deadline(&view, &found);
                        let printed = self.printed.then(|| self.slot_started + PRINTED_WITHIN);
                        matched.min(printed.unwrap_or(Micros::NEVER))
                    }
                    None => self.slot_started + when.age_max(&self.slot_rule, &view),
                }
            }
            None => Micros::NEVER,
        }
    }
}
