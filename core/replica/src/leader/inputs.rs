//! Inputs on their way into the log: clients' frames, and operators' inputs once it is their turn ([`super::operators`]).
//!
//! While the guest is protected, the leader feeds its guest as soon as it has proposed an input. The guest's
//! outputs stay in the guard until the next syncvm is acknowledged, whose own entry stands behind the input
//! in the log. So no output that depends on an uncommitted input leaves, and consensus costs no latency on
//! the leader (docs/decisions/0002). Outputs that leave on a match: docs/decisions/0011 and 0066. Solo, outputs leave at once, so inputs are fed when they are committed.
//!
//! Under a policy that does not replicate inputs, they are fed at once and not logged. The next checkpoint
//! contains their effects, and the outputs wait for it. A failover loses the inputs after the last
//! checkpoint, as a network loses packets, and clients send them again.

use super::Leader;
use crate::api::Note;
use crate::context::Context;
use crate::guest::{Input, bytes_of};
use crate::log_ops::LogOp;
use apus::EntryKind;
use plover_policy::Input as Order;
use plover_types::Frame;

/// The part of the log, as a divisor, that inputs leave free: the syncvm that empties a full
/// log must find room in it, also after some that failed.
const KEPT_FREE_PART: usize = 8;

impl Leader {
    /// Clients' frames are proposed, or fed at once where the policy logs no inputs.
    pub(crate) fn on_frames(&mut self, cx: &mut Context, mut frames: Vec<Frame>) {
        if !self.serving {
            return;
        }
        self.refuse_doomed(&mut frames);
        if cx.config.policy.clean_replies {
            self.clean.heard(&frames);
        }
        self.take_frames(cx, frames);
    }

    /// Frames for the guest, from clients or in their names.
    pub(crate) fn take_frames(&mut self, cx: &mut Context, frames: Vec<Frame>) {
        if !self.serving || frames.is_empty() {
            return;
        }
        let count = frames.len();
        let kept = self.kept_frames.iter().flatten();
        let waiting = cx.guest.backlog_bytes() + kept.map(|it| bytes_of(it)).sum::<usize>();
        let taken = if waiting + bytes_of(&frames) > cx.config.input_bytes_max {
            false
        } else if let Some(kept) = &mut self.kept_frames {
            kept.push(frames);
            true
        } else if cx.config.policy.input == Order::None {
            cx.feed(Input::Frames(frames));
            true
        } else {
            let op = match self.bytes_sent_by_now(cx) {
                Some(after) => LogOp::Paced(after, frames),
                None => LogOp::Inputs(frames),
            };
            self.propose_input(cx, op)
        };
        if !taken {
            cx.note(Note::InputDropped { frames: count });
        }
    }

    /// Reclaims the log while this leader is solo and no syncvm does it. This side's own state covers the
    /// inputs that its guest was fed, and no other replica holds a state. A joiner that is about to be synced
    /// needs the inputs after its cut, so these are kept.
    fn reclaim_solo_log(&mut self, cx: &mut Context) {
        if self.is_solo(cx) && self.final_joiner().is_none() {
            cx.group.core.trim(cx.group.delivered);
        }
    }

    pub(super) fn propose_input(&mut self, cx: &mut Context, op: LogOp) -> bool {
        let before = self.last_input_proposed;
        let payload = op.encode(cx.group.usable_version());
        let log_bytes_max = cx.config.log_bytes_max;
        let room = log_bytes_max - log_bytes_max / KEPT_FREE_PART;
        let fits = |cx: &Context| {
            let status = cx.group.core.status();
            status.log_bytes.max(status.unstored_bytes) + payload.len() <= room
        };
        if cx.is_log_half_full() || !fits(cx) {
            self.reclaim_solo_log(cx);
        }
        if !fits(cx) {
            return false;
        }
        let Ok(viewstamp) = cx.propose(EntryKind::App, payload) else {
            return false;
        };
        self.last_input_proposed = viewstamp.index;
        if self.feeds_at_the_proposal(cx) && cx.guest.taken >= before {
            self.give_to_guest(cx, viewstamp.index, op);
        }
        true
    }

    /// Whether the leader may feed its guest before the commit: it may if every output that follows from these
    /// inputs is certain to wait for a syncvm.
    fn feeds_at_the_proposal(&self, cx: &Context) -> bool {
        cx.group.in_sync.len() > 1 && self.proposed.is_none() && !self.is_ordering()
    }

    /// The leader's guest gets frames as they came.
    pub(crate) fn give_to_guest(
        &mut self,
        cx: &mut Context,
        index: plover_types::Index,
        op: LogOp,
    ) {
        cx.guest.taken = index;
        if cx.guest.power == crate::guest::Power::Off {
            return;
        }
        match op {
            LogOp::Inputs(frames) | LogOp::Paced(_, frames) => cx.feed(Input::Frames(frames)),
            LogOp::Operator(input) => cx.feed(Input::Operator(input)),
            LogOp::Syncvm(_) | LogOp::SyncvmThenRest(_) => {}
        }
    }

    /// How many bytes the guest has sent since the last syncvm, to be told with an input; nothing if inputs
    /// are not paced.
    fn bytes_sent_by_now(&self, cx: &Context) -> Option<u64> {
        let ordered = cx.config.policy.input == Order::Total;
        if !ordered || !cx.config.matching.paced || !self.matching.compares() {
            None
        } else if cx.guest.is_gate_open() && !self.is_ordering() {
            Some(cx.guest.pace.sent)
        } else {
            // It is the first that the guest gets in the next slot.
            Some(0)
        }
    }
}
