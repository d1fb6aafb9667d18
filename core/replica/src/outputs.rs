//! Outputs: from the guest into the guard, in every phase. A leader decides when they leave
//! ([`crate::leader`]), a secondary reports them ([`crate::secondary`]).

use crate::api::Note;
use crate::guest::Power;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_guard::Guard;
use plover_matching::Outgoing;
use plover_types::{Frame, Index, SyncNo};
use std::collections::VecDeque;

/// Frames that the guest has sent and clients have not got.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub guard: Guard,
    /// Outputs whose state is safe, waiting for the lease.
    pub cleared: VecDeque<Cleared>,
}

/// Outputs that another replica's state explains.
#[derive(Debug)]
pub(crate) struct Cleared {
    /// The slot in which the guest has sent them.
    pub slot: SyncNo,
    /// The entry of the log that has to be committed before they leave.
    pub follows: Index,
    pub frames: Vec<Frame>,
}

impl Outputs {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            guard: Guard::new(bytes_max),
            cleared: VecDeque::new(),
        }
    }

    /// The state behind these frames is safe once the log is committed up to `follows`.
    pub fn clear(&mut self, slot: SyncNo, follows: Index, frames: Vec<Frame>) {
        if !frames.is_empty() {
            self.cleared.push_back(Cleared {
                slot,
                follows,
                frames,
            });
        }
    }

    /// The next that may leave where the log is committed up to `delivered`.
    pub fn take_committed(&mut self, delivered: Index) -> Option<Cleared> {
        let next = self.cleared.front()?;
        if next.follows > delivered {
            return None;
        }
        self.cleared.pop_front()
    }

    /// The state that has sent them is gone.
    pub fn discard_all(&mut self) {
        self.guard.discard_all();
        self.cleared.clear();
    }
}

impl Replica {
    /// The guest has sent frames. All go into the guard first; solo empties it at the end of the turn.
    pub(crate) fn on_outputs(&mut self, frames: Vec<Frame>) {
        let holds_state = self.holds_state();
        let Self { cx, phase, .. } = self;
        cx.guest.pace.on_sent(&frames);
        cx.guest.activity.sent();
        if cx.guest.power == Power::Off || !holds_state {
            return;
        }
        let mut dropped = 0;
        let mut to_guest = Vec::new();
        for frame in frames {
            if let Phase::Leader(leader) = phase {
                if !leader.resets.passes(&frame, &mut to_guest) {
                    continue;
                }
            } else {
                cx.guest.streams.sent(&frame);
            }
            match cx.guest.translator.outgoing(cx.now, frame) {
                Outgoing::Passes(frame) if cx.outputs.guard.has_room() => {
                    if let Phase::Leader(leader) = phase {
                        let no = cx.outputs.guard.next_no();
                        leader.matching.sent(no, &frame);
                        if cx.config.policy.clean_replies {
                            leader.clean.sent(no, &frame);
                        }
                    }
                    cx.outputs.guard.hold(cx.now, cx.guest.taken, frame);
                }
                Outgoing::Waits => {}
                Outgoing::Passes(_) | Outgoing::Dropped => {
                    dropped += 1;
                    if let Phase::Leader(leader) = phase {
                        leader.matching.dropped();
                    }
                }
            }
        }
        match phase {
            Phase::Leader(leader) => {
                leader.report_syns(cx);
                // Before the policy asks whether an output waits.
                leader.clear_what_is_clean(cx);
                leader.tell_guest(cx, to_guest);
            }
            Phase::Secondary(secondary) => secondary.report_outputs(cx, dropped > 0),
            _ => {}
        }
        if dropped > 0 {
            cx.note(Note::OutputDropped { frames: dropped });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_have_sent_waits_for_the_commit_of_what_it_follows_from() {
        let mut outputs = Outputs::new(1000);
        outputs.clear(SyncNo(1), Index(5), vec![Frame(vec![1])]);
        outputs.clear(SyncNo(1), Index(0), vec![Frame(vec![2])]);
        assert!(outputs.take_committed(Index(4)).is_none());
        let mut slots = || Some(outputs.take_committed(Index(5))?.frames);
        assert_eq!(slots(), Some(vec![Frame(vec![1])]));
        assert_eq!(slots(), Some(vec![Frame(vec![2])]), "in their order");
        assert_eq!(slots(), None);
    }
}
