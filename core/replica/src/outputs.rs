//! Outputs: from the guest into the guard, and out to clients when their state is safe.

use crate::api::{Action, Note, Role};
use crate::guest::Power;
use crate::replica::Replica;
use plover_guard::HeldSlot;
use plover_matching::Outgoing;
use plover_policy::UnprotectedOutput;
use plover_types::Frame;

impl Replica {
    /// The guest has sent frames. Everybody's go into the guard first; solo empties it at the
    /// end of the turn.
    pub(crate) fn on_outputs(&mut self, frames: Vec<Frame>) {
        self.pace.sent(&frames);
        if std::mem::take(&mut self.idleness_unproven) {
            self.idle.was_early();
        }
        if self.guest.power != Power::Off && self.holds_state {
            let mut dropped = 0;
            for frame in frames {
                match self.guest.translator.outgoing(self.now, frame) {
                    Outgoing::Passes(frame) if self.guard.has_room() => {
                        self.matching.sent(self.guard.next_no(), &frame);
                        self.guard.hold(self.now, frame);
                    }
                    Outgoing::Waits => {}
                    Outgoing::Passes(_) | Outgoing::Dropped => dropped += 1,
                }
            }
            self.tell_syns();
            self.say(dropped > 0);
            if dropped > 0 {
                self.note(Note::OutputDropped { frames: dropped });
            }
        }
    }

    /// The slot's syncvm is acknowledged: its outputs may go as soon as the lease allows.
    pub(crate) fn clear_for_release(&mut self, held: HeldSlot) -> usize {
        let count = held.len();
        let slot = held.slot();
        let frames = held.release();
        if !frames.is_empty() {
            self.cleared.push_back((slot, frames));
        }
        count
    }

    /// Sends what may be sent. A leader that was stopped for a while (SIGSTOP, a stalled host)
    /// may have been replaced without knowing; the lease says how long that is impossible.
    pub(crate) fn release_what_is_safe(&mut self) {
        self.clear_what_is_matched();
        if self.role != Role::Leader || self.now >= self.apus.lease_until() {
            return;
        }
        while let Some((slot, frames)) = self.cleared.pop_front() {
            self.out.push(Action::Release { slot, frames });
        }
        self.tell_done();
        if self.releases_at_once() && !self.guard.is_empty() {
            let slot = self.sync_no.next();
            let frames = self.guard.release_all();
            self.out.push(Action::Release { slot, frames });
        }
    }

    /// Whether what the guest prints may be shown as it comes. Otherwise it is held: at the pause of a
    /// syncvm ([`Phase::Scan`]) it belongs to that, and is shown with [`Note::Synced`]; a secondary's is
    /// forgotten with what it applies.
    ///
    /// [`Phase::Scan`]: plover_syncvm::Phase::Scan
    pub fn prints_at_once(&self) -> bool {
        let leads = self.role == Role::Leader && self.now < self.apus.lease_until();
        leads && self.releases_at_once()
    }

    /// Solo: this replica's state is the only one, and explains whatever its guest says.
    fn releases_at_once(&self) -> bool {
        self.serving
            && self.is_solo()
            && self.lead.is_none()
            && (self.config.members.len() == 1
                || self.config.unprotected_output == UnprotectedOutput::Release)
    }

    /// Whether the agreed in-sync set is this replica alone and no other set is under way.
    pub(crate) fn is_solo(&self) -> bool {
        self.pending_in_sync.is_none()
            && self.in_sync.len() == 1
            && self.in_sync.contains(self.config.me)
    }
}
