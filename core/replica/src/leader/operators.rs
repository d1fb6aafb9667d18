//! Operators' inputs on their way into the log. An operator is told what has become of each one, once that is certain.
//!
//! ```text
//!   given ──▶ waits ── there is room in the log ──▶ open ── committed ──▶ Ok
//!               │                                    │
//!               ├── not within WAITS_MAX ──▶ NoRoom  └── this replica leads no more ──▶ Unsure
//!               └── this replica leads no more ──▶ NotLeading
//! ```
//!
//! | what happens | consequence |
//! |---|---|
//! | this leader does not serve yet, or its log is full | the input waits, in order, for [`WAITS_MAX`]; then it is refused |
//! | the leader is deposed | what waited was not carried out; what was open may be in the next leader's log or not |
//! | the process ends | nobody answers; the node's caller finds that its connection has ended |
//!
//! Under a policy that does not replicate inputs there is no entry. The input is safe with the next checkpoint that has its
//! effects, or at once if there is no secondary and no joiner that takes a checkpoint.

use super::Leader;
use crate::api::{Action, NotTaken, OperatorInput, Ticket};
use crate::context::Context;
use crate::guest::Input;
use crate::log_ops::LogOp;
use crate::replica::Replica;
use plover_policy::Input as Order;
use plover_types::{Index, Micros, SyncNo};
use std::collections::VecDeque;

/// How long an input waits for its turn. Less than the node's clients wait for an answer.
const WAITS_MAX: Micros = Micros::from_ms(1_500);

/// The most inputs that wait at a time.
const WAITING_MAX: usize = 256;

/// An input that is safe once this has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Safe {
    /// This entry is committed.
    Entry(Index),
    /// This checkpoint is acknowledged; `None` until one cuts behind the input.
    Checkpoint(Option<SyncNo>),
}

/// The inputs of a leader's operators that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Operators {
    waiting: VecDeque<(Micros, Ticket, OperatorInput)>,
    open: VecDeque<(Ticket, Safe)>,
}

impl Operators {
    /// The guest is ordered to pause for this checkpoint, which will have the effects of all that it was given until now.
    pub fn cut(&mut self, number: SyncNo) {
        for (_, safe) in &mut self.open {
            if let Safe::Checkpoint(cut) = safe {
                cut.get_or_insert(number);
            }
        }
    }

    /// Answers the inputs that have become safe.
    fn answer(&mut self, out: &mut Vec<Action>, mut is_safe: impl FnMut(Safe) -> bool) {
        self.open.retain(|(ticket, safe)| {
            let (ticket, result) = (*ticket, Ok(()));
            let safe = is_safe(*safe);
            if safe {
                out.push(Action::Answer { ticket, result });
            }
            !safe
        });
    }
}

impl Leader {
    /// An operator's input goes the way of clients' frames.
    pub(crate) fn on_operator(&mut self, cx: &mut Context, ticket: Ticket, input: OperatorInput) {
        if cx.operators.waiting.len() >= WAITING_MAX {
            let why = NotTaken::TooMany(cx.config.me, WAITING_MAX);
            return cx.answer(ticket, Err(why));
        }
        let has = cx.group.usable_version();
        let since = input.since();
        if since > has {
            return cx.answer(ticket, Err(NotTaken::TooOld { has, since }));
        }
        cx.operators.waiting.push_back((cx.now, ticket, input));
    }

    /// Takes the inputs whose turn it is, before the entries are delivered that this event has committed: room in the log is
    /// made of older ones.
    pub(crate) fn take_operators(&mut self, cx: &mut Context) {
        while let Some((since, ticket, input)) = cx.operators.waiting.pop_front() {
            match self.take_operator(cx, &input) {
                Ok(safe) => cx.operators.open.push_back((ticket, safe)),
                Err(why) if cx.now.since(since) >= WAITS_MAX => cx.answer(ticket, Err(why)),
                Err(_) => return cx.operators.waiting.push_front((since, ticket, input)),
            }
        }
    }

    /// Answers the inputs that are safe by now.
    fn answer_safe(&self, cx: &mut Context) {
        let delivered = cx.group.delivered;
        // A joiner that acknowledges the checkpoint under way may lead without what came behind its cut.
        let alone = self.is_solo(cx) && self.sync.is_none();
        cx.operators.answer(&mut cx.out, |safe| match safe {
            Safe::Entry(index) => index <= delivered,
            Safe::Checkpoint(_) => alone,
        });
    }

    fn take_operator(&mut self, cx: &mut Context, input: &OperatorInput) -> Result<Safe, NotTaken> {
        let me = cx.config.me;
        if !self.serving {
            return Err(NotTaken::NotServing(me));
        }
        if cx.config.policy.input == Order::None {
            cx.feed(Input::Operator(input.clone()));
            return Ok(Safe::Checkpoint(None));
        }
        match self.propose_input(cx, LogOp::Operator(input.clone())) {
            true => Ok(Safe::Entry(self.last_input_proposed)),
            false => Err(NotTaken::NoRoom(me)),
        }
    }

    /// A checkpoint is acknowledged.
    pub(super) fn operators_synced(&mut self, cx: &mut Context, number: SyncNo) {
        let is_safe = |safe| matches!(safe, Safe::Checkpoint(Some(cut)) if cut <= number);
        cx.operators.answer(&mut cx.out, is_safe);
    }

    /// When an input has waited for too long.
    pub(super) fn operators_deadline(&self, cx: &Context) -> Micros {
        let first = cx.operators.waiting.front();
        first.map_or(Micros::NEVER, |(since, ..)| *since + WAITS_MAX)
    }
}

impl Context {
    fn answer(&mut self, ticket: Ticket, result: Result<(), NotTaken>) {
        self.out.push(Action::Answer { ticket, result });
    }
}

impl Replica {
    /// An operator's input to the guest.
    pub(crate) fn on_operator(&mut self, ticket: Ticket, input: OperatorInput) {
        let me = self.cx.config.me;
        match self.leading() {
            Some((leader, cx)) => leader.on_operator(cx, ticket, input),
            None => self.cx.answer(ticket, Err(NotTaken::NotLeading(me))),
        }
    }

    /// Answers the inputs whose fate is certain. If this replica leads no more, they are in the hands of the next leader, or
    /// lost.
    pub(crate) fn answer_operators(&mut self) {
        if let Some((leader, cx)) = self.leading() {
            return leader.answer_safe(cx);
        }
        let Operators { waiting, open } = std::mem::take(&mut self.cx.operators);
        let me = self.cx.config.me;
        for (ticket, _) in open {
            self.cx.answer(ticket, Err(NotTaken::Unsure(me)));
        }
        for (_, ticket, _) in waiting {
            self.cx.answer(ticket, Err(NotTaken::NotLeading(me)));
        }
    }
}

#[cfg(test)]
mod tests;
