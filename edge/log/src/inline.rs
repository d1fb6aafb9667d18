//! The proposer that drives the server's turns itself.

use crate::client::{Completion, Ticket};
use crate::{Error, Server, ServerError, StateMachine};
use plover_types::Viewstamp;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Its completions.
#[derive(Debug, Default)]
pub(crate) struct Inline {
    next: u64,
    completions: VecDeque<Completion>,
    /// Whose answer is kept, and the answer.
    wanted: Option<Ticket>,
    answer: Vec<u8>,
}

impl Inline {
    pub fn next_ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next - 1)
    }

    pub fn complete(&mut self, ticket: Ticket, result: Result<Viewstamp, Error>, answer: &[u8]) {
        if self.wanted == Some(ticket) {
            self.answer.clear();
            self.answer.extend_from_slice(answer);
        }
        self.completions.push_back(Completion { ticket, result });
    }
}

impl<M: StateMachine> Server<M> {
    /// The next completion of an entry that was [submitted](Self::submit).
    pub fn completed(&mut self) -> Option<Completion> {
        self.inline.completions.pop_front()
    }

    /// Appends an entry and takes turns until it is committed and applied here, or `patience`
    /// has run out ([`Error::Unknown`]).
    ///
    /// # Errors
    ///
    /// The outer one ends the replica, the inner one is about this entry.
    pub fn append(
        &mut self,
        entry: &[u8],
        patience: Duration,
    ) -> Result<Result<Viewstamp, Error>, ServerError> {
        self.call(entry, patience, &mut Vec::new())
    }

    /// [`append`](Self::append), and appends the state machine's answer to `answer`.
    pub fn call(
        &mut self,
        entry: &[u8],
        patience: Duration,
        answer: &mut Vec<u8>,
    ) -> Result<Result<Viewstamp, Error>, ServerError> {
        let until = Instant::now() + patience;
        let ticket = loop {
            match self.submit(entry) {
                Ok(ticket) => break ticket,
                Err(Error::Full) if Instant::now() < until => {}
                Err(error) => return Ok(Err(error)),
            }
            self.turn(Some(until.saturating_duration_since(Instant::now())))?;
        };
        self.inline.wanted = Some(ticket);
        self.settle()?;
        loop {
            let mut completions = self.inline.completions.iter();
            if let Some(place) = completions.position(|it| it.ticket == ticket) {
                let completion = self.inline.completions.remove(place);
                answer.extend_from_slice(&self.inline.answer);
                return Ok(completion.expect("it was found there").result);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err(Error::Unknown));
            }
            self.turn(Some(left))?;
        }
    }

    /// Takes turns until this replica leads and can append, or `patience` has run out. True if
    /// it leads.
    pub fn wait_until_leading(&mut self, patience: Duration) -> Result<bool, ServerError> {
        self.turn_until(patience, |server| server.leads())
    }

    /// Takes turns until `happened`, or until `patience` has run out: then false.
    pub fn turn_until(
        &mut self,
        patience: Duration,
        mut happened: impl FnMut(&Self) -> bool,
    ) -> Result<bool, ServerError> {
        let until = Instant::now() + patience;
        while !happened(self) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.turn(Some(left))?;
        }
        Ok(true)
    }
}
