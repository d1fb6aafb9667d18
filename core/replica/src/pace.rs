//! Inputs at the leader's pace: two guests that get the same frames at the same points of their work
//! do the same.
//!
//! A server reads whichever connection is ready. The order in which it serves two connections that share a
//! counter depends on the frames that have come when it looks. So it is not enough that both guests get the
//! same frames in the same order: a secondary that is behind gets some frames while it still answers the last
//! ones, and the leader's guest got them after that.
//!
//! The bytes that a guest has sent tell how far it is. So the leader notes with each input how many bytes
//! its guest had sent by then, and the secondary's guest gets the input when it has sent as many:
//!
//! ```text
//!  leader's guest     a b c ▸ A B ▸ d ▸ C ▸ e ▸ D          a … e: inputs; A … D: what it answers
//!  in the log         a,0 b,0 c,0   d,AB   e,ABC
//!  secondary's guest      a b c ▸ A ▸ B ▸ d ▸ C ▸ e ▸ D    d waits for B though it was there before
//! ```
//!
//! Nothing waits on the leader. On the secondary an input usually waits only while its guest has work to do.
//! If the two guests send different amounts, an input waits in vain once: the missing bytes are left out of
//! the account from then on. Payload bytes of TCP and UDP count, so neither segment boundaries nor
//! acknowledgements matter. Both sides count from the last syncvm on, and only slots whose outputs are
//! compared are paced. Correctness does not depend on pacing: a guest may get an input at any time.

use crate::context::Context;
use crate::guest::Power;
use plover_packets::payload_bytes;
use plover_types::{Frame, Micros};

/// An input waits at most this long for its moment. An emulated guest on a busy machine answers within 2
/// to 4 ms what 16 clients of a Redis ask at one time.
const PACE_WAIT_MAX: Micros = Micros::from_ms(5);

/// How far this side's guest is.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes that it has sent since the last syncvm.
    pub sent: u64,
    /// Bytes that the leader's has sent and ours will not.
    pub missing: u64,
}

impl Pace {
    /// A slot begins.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// The guest has sent these.
    pub fn on_sent(&mut self, frames: &[Frame]) {
        self.sent += frames.iter().map(payload_bytes).sum::<u64>();
    }
}

impl Context {
    /// Gives the guest the inputs that have waited for it to be as far as the leader's was. A guest that is not
    /// compared waits for nothing.
    pub(crate) fn tick_pace(&mut self, is_compared: bool) {
        if self.guest.power != Power::Running {
            return;
        }
        while let Some((since, until)) = self.guest.paced_until() {
            let pace = &mut self.guest.pace;
            let missing = until.saturating_sub(pace.sent.saturating_add(pace.missing));
            if is_compared && missing > 0 {
                if self.now.since(since) < PACE_WAIT_MAX {
                    return;
                }
                pace.missing = pace.missing.saturating_add(missing);
            }
            self.guest.activity.disturb();
            self.guest.take_paced(self.now, &mut self.out);
        }
    }

    /// When [`Self::tick_pace`] is due at the latest.
    pub(crate) fn pace_deadline(&self) -> Micros {
        match self.guest.paced_until() {
            Some((since, _)) if self.guest.power == Power::Running => since + PACE_WAIT_MAX,
            _ => Micros::NEVER,
        }
    }
}

#[cfg(test)]
mod tests;
