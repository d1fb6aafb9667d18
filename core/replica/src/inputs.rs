//! Inputs: from clients and operators into the log, and from the log into the guest.
//!
//! While the guest is protected the leader feeds itself as soon as it has proposed: what the
//! guest makes of an input stays in the guard until a syncvm, whose own entry stands behind the
//! input in the log, is acknowledged. So nothing that rests on an uncommitted input gets out,
//! and consensus costs no latency on the leader (docs/decisions/0002). Solo, outputs leave at
//! once, so inputs are fed when they are committed.
//!
//! Under a policy that does not replicate inputs they are fed at once and not logged. What the
//! guest makes of one is in the next checkpoint, and its outputs wait for that; a failover loses
//! what came after the last checkpoint, as a network loses packets, and clients send it again.

use crate::api::{Note, OperatorInput, Role};
use crate::guest::{Arrange, Cut, Input, Power};
use crate::log_ops::LogOp;
use crate::replica::Replica;
use apus::{Entry, EntryKind};
use plover_packets::by_connection;
use plover_policy::Input as Order;
use plover_types::{Frame, Index, Unconsumed, wire};

/// The part of the log, as a divisor, that inputs leave free: the syncvm that empties a full
/// log must find room in it, also after some that failed.
const KEPT_FREE_PART: usize = 8;

impl Replica {
    /// Clients' frames: the leader proposes them; anybody else's TAP is not the guest's face.
    pub(crate) fn on_frames(&mut self, frames: Vec<Frame>) {
        if self.role != Role::Leader || !self.serving || frames.is_empty() {
            return;
        }
        let count = frames.len();
        if self.guest.backlog_frames() + count > self.config.input_frames_max {
            self.note(Note::InputDropped { frames: count });
            return;
        }
        if self.config.policy.input == Order::None {
            self.feed(Input::Frames(frames));
            return;
        }
        let op = match self.pace() {
            Some(after) => LogOp::Paced(after, frames),
            None => LogOp::Inputs(frames),
        };
        if !self.propose_input(op) {
            self.note(Note::InputDropped { frames: count });
        }
    }

    /// An operator's input goes the same way.
    pub(crate) fn on_operator(&mut self, input: OperatorInput) {
        if self.role != Role::Leader || !self.serving {
            return;
        }
        if self.config.policy.input == Order::None {
            self.feed(Input::Operator(input));
        } else {
            self.propose_input(LogOp::Operator(input));
        }
    }

    fn feed(&mut self, input: Input) {
        if std::mem::take(&mut self.idleness_unproven) {
            self.idle.was_timely();
        }
        self.idle.disturb();
        self.guest_idle = false;
        let cut = self.guest.give(self.now, input, &mut self.out);
        assert_eq!(cut, None, "an input is no cut");
    }

    /// Solo, no syncvm reclaims the log, and none has to: this side's own state covers what its
    /// guest was fed, and nobody else holds one. A joiner that is about to be synced needs what
    /// comes after its cut, so that is kept.
    fn reclaim_solo_log(&mut self) {
        if self.is_solo() && self.final_joiner().is_none() && self.is_log_half_full() {
            self.apus.trim(self.delivered);
        }
    }

    fn propose_input(&mut self, op: LogOp) -> bool {
        self.reclaim_solo_log();
        let before = self.last_input_proposed;
        let payload = wire::encode(&op);
        let log_bytes_max = self.config.log_bytes_max;
        let kept_free = log_bytes_max / KEPT_FREE_PART;
        if self.apus.status().log_bytes + payload.len() > log_bytes_max - kept_free {
            return false;
        }
        let Ok(viewstamp) = self.propose(EntryKind::App, payload) else {
            return false;
        };
        self.last_input_proposed = viewstamp.index;
        if self.speculates() && self.guest.taken >= before {
            self.give_to_guest(viewstamp.index, op);
        }
        true
    }

    /// Whether the leader may feed its guest before the commit: every output of what it feeds
    /// is certain to wait for a syncvm.
    fn speculates(&self) -> bool {
        self.in_sync.len() > 1 && self.pending_in_sync.is_none() && !self.is_ordering()
    }

    /// A committed entry. On the leader the input may have been fed at its proposal.
    pub(crate) fn on_deliver(&mut self, entry: Entry) {
        let index = entry.viewstamp.index;
        self.delivered = index;
        match entry.kind {
            // A protected guest's group stays as it was configured.
            EntryKind::Noop | EntryKind::Members(_) => {}
            EntryKind::InSync(set) => self.on_in_sync(set, index),
            EntryKind::App => match wire::decode::<LogOp>(&entry.payload) {
                Ok(LogOp::Syncvm(sync)) => self.on_syncvm_entry(sync, entry.viewstamp),
                Ok(op) => {
                    if index > self.guest.taken {
                        self.give_to_guest(index, op);
                    }
                }
                Err(error) => {
                    let from = self.config.me;
                    self.note(Note::Rejected {
                        from,
                        why: format!("log entry {index}: {error}"),
                    });
                }
            },
        }
    }

    pub(crate) fn give_to_guest(&mut self, index: Index, op: LogOp) {
        self.guest.taken = index;
        if !self.guest_in_step() {
            return;
        }
        let input = match op {
            LogOp::Inputs(mut frames) => {
                if self.arrange() == Arrange::ByConnection {
                    by_connection(&mut frames);
                }
                Input::Frames(frames)
            }
            LogOp::Paced(_, frames) if self.role == Role::Leader => Input::Frames(frames),
            LogOp::Paced(after, frames) => Input::Paced(after, frames),
            LogOp::Operator(input) => Input::Operator(input),
            LogOp::Syncvm(_) => return,
        };
        self.feed(input);
    }

    /// The leader's guest gets frames as they came; where connections are free of each other the
    /// secondary's does not.
    fn arrange(&self) -> Arrange {
        if self.config.policy.input == Order::PerConnection && self.role != Role::Leader {
            Arrange::ByConnection
        } else {
            Arrange::AsTheyCame
        }
    }

    /// Lets a paused guest run, `first` fed before what waits.
    pub(crate) fn resume_guest(&mut self, first: Unconsumed) {
        let arrange = self.arrange();
        let cut = self.guest.resume(self.now, first, arrange, &mut self.out);
        self.carry_out(cut);
    }

    /// Lets what waits through to a guest that runs.
    pub(crate) fn open_gate(&mut self) {
        let arrange = self.arrange();
        let cut = self
            .guest
            .open_gate(self.now, Unconsumed::default(), arrange, &mut self.out);
        self.carry_out(cut);
    }

    /// A cut has been reached in the input order. Cuts of other views have no leader to carry
    /// them out any more.
    fn carry_out(&mut self, mut cut: Option<Cut>) {
        let arrange = self.arrange();
        while let Some(Cut { sync, at }) = cut {
            if at.view == self.view && self.role == Role::Secondary && self.leader.is_some() {
                return self.begin_follow(sync);
            }
            cut = self
                .guest
                .open_gate(self.now, Unconsumed::default(), arrange, &mut self.out);
        }
    }

    /// Whether this side's guest takes part in the input order: it holds the state, or it is
    /// about to receive a state that ends before this input.
    fn guest_in_step(&self) -> bool {
        self.guest.power != Power::Off && (self.holds_state || self.follow.is_some())
    }
}
