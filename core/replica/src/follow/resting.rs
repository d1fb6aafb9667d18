//! A secondary's guest that rests for a slot (docs/decisions/0049).
//!
//! ```text
//!  SyncvmThenRest ─▶ … ─▶ Loading ─▶ rests ─┬─▶ SyncvmThenRest ─▶ Scanning ─▶ … ─▶ Loading ─▶ rests
//!                                           ├─▶ Syncvm ─────────▶ Scanning ─▶ … ─▶ Loading ─▶ runs
//!                                           └─▶ this replica leads ────────────────────────▶ runs
//! ```
//!
//! It has the state of the last syncvm, and inputs since then wait behind its gate with the cuts between them. A
//! syncvm takes its place among them when its end mark has come: from then on its state contains the inputs before
//! its cut. Until then they stay, since a replica that takes over executes them from the last state.

use crate::api::Note;
use crate::canary::canary;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_types::Unconsumed;

impl Replica {
    /// A state is loaded: the guest goes on from it, or `rests` if this replica still follows. `first` is what it
    /// gets first.
    pub(super) fn go_on(&mut self, first: Unconsumed, rests: bool) {
        let Phase::Secondary(secondary) = &mut self.phase else {
            return self.resume_guest(first);
        };
        if !rests {
            secondary.rests = None;
            return self.resume_guest(first);
        }
        secondary.rests = Some(first);
        // The leader's next slot may have ended while the state was loaded.
        if let Some(cut) = self.cx.guest.newest_cut() {
            self.begin_follow_if_due(cut);
        }
    }

    /// This replica leads, and its guest has rested until now: it executes what was logged since its state.
    pub(crate) fn wake(&mut self, first: Unconsumed) {
        let inputs = self.cx.guest.backlog_inputs();
        self.cx.note(Note::Wakes { inputs });
        if canary!(self.cx, WakeWithoutInputs) {
            self.cx.guest.forget_backlog();
        }
        self.resume_guest(first);
    }
}

#[cfg(test)]
mod tests;
