//! Whether two replicas ever sent as the guest at the same time.
//!
//! Two senders are the worst that can happen to a replicated guest. A capture at the switch
//! ([`crate::capture::Capture`]) gives the sender of each frame of the guest, in order. The traces give
//! the replicas that began to serve, in order: each such event begins a *reign*. A failover changes the
//! sender once. A replica that sends again after another one has begun must have been elected again. So
//! the senders must follow the reigns. A reign may have no frame, but a frame outside its sender's reign
//! is a violation.

use crate::capture::Captured;
use plover_lab::trace::TraceEvent;

/// The result of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Senders {
    /// Frames that were sent as the guest.
    pub frames: u64,
    /// The senders in order, without repetitions.
    pub order: Vec<u8>,
    /// Frames of a host whose reign was over or had not begun.
    pub out_of_turn: u64,
    /// Frames that the capture missed; a proof needs zero.
    pub missed: u64,
}

impl Senders {
    /// Compares the captured frames with the reigns in the traces.
    pub fn judge(captured: &Captured, events: &[TraceEvent]) -> Self {
        let reigns = events
            .iter()
            .filter(|event| event.what == "serving")
            .map(|e| e.replica);
        let mut judged = Self::follow(&captured.senders, &reigns.collect::<Vec<_>>());
        judged.missed = captured.lost.into();
        judged
    }

    fn follow(senders: &[u8], reigns: &[u8]) -> Self {
        let mut judged = Self::default();
        let mut reign = 0;
        for sender in senders {
            judged.frames += 1;
            if judged.order.last() != Some(sender) {
                judged.order.push(*sender);
            }
            match reigns[reign.min(reigns.len())..]
                .iter()
                .position(|ruler| ruler == sender)
            {
                Some(later) => reign += later,
                None => judged.out_of_turn += 1,
            }
        }
        judged
    }

    /// Whether the capture proves that there was one sender at a time.
    pub fn is_proof(&self) -> bool {
        self.frames > 0 && self.out_of_turn == 0 && self.missed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out_of_turn(senders: &[u8], reigns: &[u8]) -> u64 {
        Senders::follow(senders, reigns).out_of_turn
    }

    #[test]
    fn a_failover_is_one_change() {
        assert_eq!(out_of_turn(&[0, 0, 1, 1, 2], &[0, 1, 2]), 0);
        assert_eq!(
            out_of_turn(&[0, 2, 0], &[0, 1, 2, 0]),
            0,
            "a reign without a frame"
        );
        assert_eq!(Senders::follow(&[0, 0, 1], &[0, 1]).order, [0, 1]);
    }

    /// The failure to find: the old leader still sends when the new one has begun.
    #[test]
    fn a_frame_after_the_end_of_a_reign_is_found() {
        assert_eq!(out_of_turn(&[0, 0, 1, 0, 1], &[0, 1]), 1);
        assert_eq!(out_of_turn(&[0, 2], &[0, 1]), 1, "never elected");
        assert_eq!(out_of_turn(&[0], &[]), 1);
        assert!(!Senders::follow(&[0, 1, 0], &[0, 1]).is_proof());
        assert!(!Senders::default().is_proof(), "no frame proves nothing");
    }
}
