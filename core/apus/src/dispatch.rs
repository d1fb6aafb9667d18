//! From events to the parts of the protocol that they concern.

use crate::message::{self, Batch, Message};
use crate::{Apus, Role};
use crate::{Command, Contradiction, DurableState};
use plover_types::{Micros, ReplicaId};

impl Apus {
    pub(crate) fn tick(&mut self, now: Micros, out: &mut Vec<Command>) {
        match self.role {
            Role::Following(_) => self.tick_following(now, out),
            Role::PreVoting(_) => self.tick_pre_voting(now, out),
            Role::Electing(_) => self.tick_electing(now, out),
            Role::Leading(_) => self.tick_leading(now, out),
        }
        if self.is_asking() && now >= self.recovery.ask_at {
            self.ask_all(now, out);
        }
    }

    pub(crate) fn received(
        &mut self,
        now: Micros,
        from: ReplicaId,
        bytes: &[u8],
        out: &mut Vec<Command>,
    ) {
        if from == self.config.me {
            self.rejected += 1;
            return;
        }
        let Some((message, entries)) = message::decode(bytes, from, self.versions()) else {
            return self.refuse(from, Contradiction::Malformed, out);
        };
        if let Err(why) = self.check_round(now, from, message.round()) {
            return self.refuse(from, why, out);
        }
        self.other_is_heard(now);
        let known = self.round_max;
        self.take(now, from, (message, entries), out);
        self.raised.note(from, self.round_max - known);
    }

    fn take(
        &mut self,
        now: Micros,
        from: ReplicaId,
        (message, entries): (Message, Batch<'_>),
        out: &mut Vec<Command>,
    ) {
        match message {
            Message::Append(append) => self.on_append(now, from, append, entries, out),
            Message::Ack(ack) => self.on_ack(now, from, ack, out),
            Message::Gap(gap) => self.on_gap(now, from, gap, out),
            Message::Refuse { view, promised } => self.on_refuse(now, view, promised, out),
            Message::PreVote { nonce, last, dead } => {
                if let Some(process) = dead {
                    self.process_died(now, process, out);
                }
                self.on_pre_vote(now, from, (nonce, last), out);
            }
            Message::Grant(grant) => self.on_grant(now, from, grant, out),
            Message::Prepare { view } => self.on_prepare(now, from, view, out),
            Message::Promise { view, vote } => self.on_promise(now, from, view, vote, out),
            Message::Fetch { view, after } => self.on_fetch(from, view, after, out),
            Message::Suffix(suffix) => self.on_suffix(now, from, suffix, entries, out),
            Message::Recovery(request) => self.on_recovery(now, from, request, out),
            Message::RecoveryResponse(response) => {
                self.on_recovery_response(now, from, response, out);
            }
            Message::Resigned { view, stays } => self.on_resigned(now, view, stays, out),
        }
    }

    pub(crate) fn link(&mut self, now: Micros, peer: ReplicaId, up: bool, out: &mut Vec<Command>) {
        if !up {
            self.down.insert(peer);
            self.forget_versions(peer);
            return;
        }
        self.down.remove(peer);
        if peer == self.config.me {
            return;
        }
        match self.role {
            Role::Following(_) if self.is_asking() => self.ask(peer, out),
            Role::Following(_) => {}
            Role::PreVoting(_) | Role::Electing(_) => self.repeat_to(peer, out),
            Role::Leading(_) => self.resend_after_cut(now, peer, out),
        }
    }

    /// Storage has this state: sends the messages that waited for it.
    pub(crate) fn state_persisted(
        &mut self,
        now: Micros,
        state: DurableState,
        out: &mut Vec<Command>,
    ) {
        self.durable = self.durable.max(state.promised.min(self.promised));
        self.milestones.stored = self.milestones.stored.max(state.milestone);
        if self.durable < self.promised {
            return;
        }
        match self.role {
            Role::Following(_) => self.promise_is_durable(now, out),
            Role::Electing(_) => self.candidacy_is_durable(now, out),
            Role::Leading(_) => self.advance_commit(now, out),
            Role::PreVoting(_) => {}
        }
    }
}
