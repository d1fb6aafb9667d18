//! Inputs at the leader's pace: two guests that get the same frames at the same points of their work
//! do the same.
//!
//! A server reads whichever connection is ready. In which order it serves two that share a counter
//! depends on what has come in when it looks, and the kernel keeps a connection's place among the ready
//! ones until it has looked once more. So it is not enough that both guests get the same frames in the
//! same order: a secondary that is behind gets some while it still answers the last ones, and the
//! leader's guest got them after.
//!
//! What a guest sends tells how far it is. So the leader notes with each input how many bytes its guest
//! had sent by then, and the secondary's guest gets it when that has sent as many:
//!
//! ```text
//!  leader's guest     a b c ▸ A B ▸ d ▸ C ▸ e ▸ D          a … e: inputs; A … D: what it answers
//!  in the log         a,0 b,0 c,0   d,AB   e,ABC
//!  secondary's guest      a b c ▸ A ▸ B ▸ d ▸ C ▸ e ▸ D    d waits for B though it was there before
//! ```
//!
//! Nothing waits on the leader. On the secondary what waits is for a guest that has work, and if not,
//! because the two have sent different amounts, then once: what is missing is left out of the account
//! from then on. Bytes are those of TCP and UDP, so how they are cut into segments, and acknowledgements
//! alone, do not count. Both sides count from the last syncvm on, and only slots whose outputs are
//! compared are paced. Nothing rests on it: an input is the guest's whenever it gets it.

use crate::api::Role;
use crate::guest::Power;
use crate::replica::Replica;
use plover_packets::payload_bytes;
use plover_policy::Input;
use plover_types::{Frame, Micros};

/// An input waits at most so long for its moment. An emulated guest on a busy machine answers within 2
/// to 4 ms what 16 clients of a Redis ask at one time.
const PACE_WAIT_MAX: Micros = Micros::from_ms(5);

/// How far this side's guest is.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes that it has sent since the last syncvm.
    sent: u64,
    /// Bytes that the leader's has sent and ours will not.
    missing: u64,
}

impl Pace {
    /// A slot begins.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// The guest has sent these.
    pub fn sent(&mut self, frames: &[Frame]) {
        self.sent += frames.iter().map(payload_bytes).sum::<u64>();
    }
}

impl Replica {
    /// How far the leader's guest is, to be told with an input; nothing if inputs are not paced.
    pub(crate) fn pace(&self) -> Option<u64> {
        let ordered = self.config.policy.input == Input::Total;
        if !ordered || !self.config.matching.paced || !self.matching.compares() {
            None
        } else if self.guest.is_gate_open() && !self.is_ordering() {
            Some(self.pace.sent)
        } else {
            // It is the first that the guest gets in the next slot.
            Some(0)
        }
    }

    /// Gives the guest what has waited for it to be as far as the leader's was.
    pub(crate) fn tick_pace(&mut self) {
        if self.guest.power != Power::Running {
            return;
        }
        while let Some((since, until)) = self.guest.paced_until() {
            let missing = until.saturating_sub(self.pace.sent + self.pace.missing);
            if self.role == Role::Secondary && self.saying.is_some() && missing > 0 {
                if self.now.since(since) < PACE_WAIT_MAX {
                    return;
                }
                self.pace.missing += missing;
            }
            self.idle.disturb();
            self.guest_idle = false;
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

    /// How many inputs wait for this side's guest to be as far as the leader's was; to be looked at
    /// from outside.
    pub fn inputs_paced(&self) -> usize {
        self.guest.paced_inputs()
    }

    /// How many bytes inputs of this slot have been waited for in vain; to be looked at from outside.
    pub fn paced_in_vain(&self) -> u64 {
        self.pace.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Action, Warm};
    use crate::guest::Arrange;
    use crate::join::tests::witness;
    use crate::log_ops::LogOp;
    use plover_policy::Preset;
    use plover_types::{Index, SyncNo, Unconsumed};

    /// A secondary whose guest runs and is compared.
    fn secondary() -> Replica {
        let policy = Preset::find("hybrid").unwrap().policy;
        let mut replica = witness(policy, Warm::Full);
        replica.set_role(Role::Joining);
        replica.set_role(Role::Secondary);
        replica.holds_state = true;
        replica.guest.power = Power::Paused;
        let nothing = Unconsumed::default();
        let cut = replica
            .guest
            .resume(Micros(1), nothing, Arrange::AsTheyCame, &mut replica.out);
        assert_eq!(cut, None);
        replica.begin_saying(SyncNo(1), true);
        replica.out.clear();
        replica
    }

    /// A datagram with so many bytes.
    fn datagram(bytes: u8) -> Frame {
        let mut frame = vec![0; 42 + usize::from(bytes)];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[17] = 28 + bytes;
        frame[23] = 17;
        frame[39] = 8 + bytes;
        Frame(frame)
    }

    fn paced(replica: &mut Replica, after: u64, name: u8) {
        let op = LogOp::Paced(after, vec![Frame(vec![name])]);
        replica.give_to_guest(Index(u64::from(name)), op);
        replica.tick_pace();
    }

    /// The names of what the guest got since this was last asked.
    fn fed(replica: &mut Replica) -> Vec<u8> {
        let actions = std::mem::take(&mut replica.out);
        let feeds = actions.into_iter().filter_map(|action| match action {
            Action::Feed(frames) => Some(frames),
            _ => None,
        });
        feeds.flatten().map(|frame| frame.0[0]).collect()
    }

    #[test]
    fn an_input_waits_until_the_guest_is_as_far_as_the_leaders() {
        let mut replica = secondary();
        paced(&mut replica, 0, 1);
        paced(&mut replica, 10, 2);
        paced(&mut replica, 15, 3);
        assert_eq!(fed(&mut replica), [1]);
        replica.on_outputs(vec![datagram(4), datagram(6)]);
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [2]);
        let nothing_more = LogOp::Inputs(vec![Frame(vec![4])]);
        replica.give_to_guest(Index(4), nothing_more);
        assert_eq!(fed(&mut replica), [], "inputs keep their order");
        replica.on_outputs(vec![datagram(5)]);
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [3, 4]);
        assert_eq!(replica.pace_deadline(), Micros::NEVER);
    }

    #[test]
    fn a_guest_that_sends_less_is_waited_for_once() {
        let mut replica = secondary();
        paced(&mut replica, 10, 1);
        let deadline = replica.pace_deadline();
        assert_eq!(deadline, replica.now + PACE_WAIT_MAX);
        replica.now = deadline;
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [1]);
        assert_eq!(replica.paced_in_vain(), 10);
        paced(&mut replica, 10, 2);
        assert_eq!(fed(&mut replica), [2]);
        paced(&mut replica, 11, 3);
        assert_eq!(fed(&mut replica), []);
    }

    #[test]
    fn no_input_waits_for_longer_than_it_may_because_others_waited_before_it() {
        let mut replica = secondary();
        paced(&mut replica, 10, 1);
        paced(&mut replica, 20, 2);
        replica.now = replica.now + PACE_WAIT_MAX;
        replica.tick_pace();
        assert_eq!(fed(&mut replica), [1, 2]);
    }

    #[test]
    fn who_is_not_compared_or_takes_over_waits_for_nothing() {
        for takes_over in [false, true] {
            let mut replica = secondary();
            paced(&mut replica, 10, 1);
            assert_eq!(fed(&mut replica), []);
            if takes_over {
                replica.set_role(Role::Leader);
            } else {
                replica.saying = None;
            }
            replica.tick_pace();
            assert_eq!(fed(&mut replica), [1]);
            assert_eq!(replica.paced_in_vain(), 0);
        }
    }

    /// What is before a cut is the guest's before it is paused.
    #[test]
    fn a_cut_does_not_wait() {
        let mut replica = secondary();
        paced(&mut replica, 10, 1);
        paced(&mut replica, 20, 2);
        let at = plover_types::Viewstamp::default();
        let sync = SyncNo(2);
        let cut = crate::guest::Input::Cut(crate::guest::Cut { sync, at });
        let reached = replica.guest.give(replica.now, cut, &mut replica.out);
        assert!(reached.is_some());
        assert_eq!(fed(&mut replica), [1, 2]);
    }
}
