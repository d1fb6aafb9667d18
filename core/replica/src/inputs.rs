//! Inputs from the log into the guest. ([`crate::leader`] has the way into the log.)

use crate::api::{Note, Role};
use crate::guest::{Arrange, Cut, Input, Power};
use crate::log_ops::LogOp;
use crate::phase::Phase;
use crate::replica::Replica;
use apus::{Entry, EntryKind};
use plover_packets::by_connection;
use plover_policy::Input as Order;
use plover_types::{Index, Unconsumed, wire};

impl Replica {
    /// A committed entry. On the leader the input may have been fed at its proposal, on the secondary when it was
    /// accepted.
    pub(crate) fn on_deliver(&mut self, entry: Entry) {
        self.deliver(entry);
        self.feed_ahead();
    }

    fn deliver(&mut self, entry: Entry) {
        let index = entry.viewstamp.index;
        self.cx.group.delivered = index;
        match entry.kind {
            EntryKind::Noop | EntryKind::Version(_) => {}
            EntryKind::Members(members) => {
                self.on_members(members, entry.viewstamp, &entry.payload);
            }
            EntryKind::InSync(set) => self.on_in_sync(set, entry.viewstamp),
            EntryKind::App if self.was_fed_ahead(entry.viewstamp) => {}
            EntryKind::App => match wire::decode::<LogOp>(&entry.payload) {
                Ok(LogOp::Syncvm(sync)) => {
                    self.on_syncvm_entry(sync, entry.viewstamp, false);
                }
                Ok(LogOp::SyncvmThenRest(sync)) => {
                    self.on_syncvm_entry(sync, entry.viewstamp, true);
                }
                Ok(op) if index > self.cx.guest.taken => self.give_to_guest(index, op),
                Ok(_) => {}
                Err(error) => {
                    let from = self.cx.config.me;
                    let why = format!("log entry {index}: {error}");
                    self.cx.note(Note::Rejected { from, why });
                }
            },
        }
    }

    pub(crate) fn give_to_guest(&mut self, index: Index, op: LogOp) {
        if let Some((leader, cx)) = self.leading() {
            return leader.give_to_guest(cx, index, op);
        }
        self.cx.guest.taken = index;
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
            LogOp::Paced(after, frames) => Input::Paced(after, frames),
            LogOp::Operator(input) => Input::Operator(input),
            LogOp::Syncvm(_) | LogOp::SyncvmThenRest(_) => return,
        };
        self.cx.feed(input);
    }

    /// The leader's guest gets frames as they came. Where only each connection has an order, the secondary's
    /// guest gets them one connection after the other.
    fn arrange(&self) -> Arrange {
        let free = self.cx.config.policy.input == Order::PerConnection;
        if free && self.role() != Role::Leader {
            Arrange::ByConnection
        } else {
            Arrange::AsTheyCame
        }
    }

    /// Lets a paused guest run; `first` is fed before the waiting inputs.
    pub(crate) fn resume_guest(&mut self, first: Unconsumed) {
        let cut = self.cx.resume_guest(first, self.arrange());
        self.carry_out(cut);
    }

    /// Lets waiting inputs through to a guest that runs.
    pub(crate) fn open_gate(&mut self) {
        let cut = self.cx.open_gate(self.arrange());
        self.carry_out(cut);
    }

    /// A cut has been reached in the input order. Cuts of other views have no leader to carry
    /// them out any more, and one before another that waits was given up by its leader.
    fn carry_out(&mut self, mut cut: Option<Cut>) {
        let arrange = self.arrange();
        while let Some(next) = cut {
            let follows = matches!(self.phase, Phase::Secondary(_));
            let is_newest = self.cx.guest.newest_cut().is_none();
            if follows && is_newest && self.begin_follow_if_due(next) {
                return;
            }
            cut = self.cx.open_gate(arrange);
        }
    }

    /// Whether this side's guest takes part in the input order: it holds the state, or it is
    /// about to receive a state that ends before this input.
    fn guest_in_step(&self) -> bool {
        self.cx.guest.power != Power::Off && (self.holds_state() || self.follow.is_some())
    }
}
