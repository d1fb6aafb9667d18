//! Outputs: from the guest into the guard, in every phase. A leader decides when they leave
//! ([`crate::leader`]), a secondary reports them ([`crate::secondary`]).

use crate::api::Note;
use crate::guest::Power;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_guard::Guard;
use plover_matching::Outgoing;
use plover_types::{Frame, SyncNo};
use std::collections::VecDeque;

/// Frames that the guest has sent and clients have not got.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub guard: Guard,
    /// Outputs whose state is safe, waiting for the lease.
    pub cleared: VecDeque<(SyncNo, Vec<Frame>)>,
}

impl Outputs {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            guard: Guard::new(bytes_max),
            cleared: VecDeque::new(),
        }
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
        for frame in frames {
            match cx.guest.translator.outgoing(cx.now, frame) {
                Outgoing::Passes(frame) if cx.outputs.guard.has_room() => {
                    if let Phase::Leader(leader) = phase {
                        let no = cx.outputs.guard.next_no();
                        leader.matching.sent(no, &frame);
                        leader.clean.sent(no, &frame);
                    }
                    cx.outputs.guard.hold(cx.now, frame);
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
            }
            Phase::Secondary(secondary) => secondary.report_outputs(cx, dropped > 0),
            _ => {}
        }
        if dropped > 0 {
            cx.note(Note::OutputDropped { frames: dropped });
        }
    }
}
