//! Appending in the thread that drives the server's turns.

use crate::{Error, Server, ServerError, StateMachine};
use plover_types::Viewstamp;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Names one entry that was [submitted](Server::submit): 0 for the first, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The result of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Names the entry.
    pub ticket: Ticket,
    /// Where the entry stands in the log, once it is committed and applied here; or why it was not
    /// appended.
    pub result: Result<Viewstamp, Error>,
    /// The state machine's answer.
    pub answer: Vec<u8>,
}

/// Entries whose proposer drives the turns itself.
#[derive(Debug, Default)]
pub(crate) struct Submitted {
    pub next: u64,
    completions: VecDeque<Completion>,
}

impl Submitted {
    pub fn complete(&mut self, ticket: Ticket, result: Result<Viewstamp, Error>, answer: &[u8]) {
        let answer = answer.to_vec();
        self.completions.push_back(Completion {
            ticket,
            result,
            answer,
        });
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.completions.iter().position(|it| it.ticket == ticket)
    }
}

impl<M: StateMachine> Server<M> {
    /// The next completion of an entry that was [submitted](Self::submit).
    pub fn completed(&mut self) -> Option<Completion> {
        self.submitted.completions.pop_front()
    }

    /// Appends an entry and takes turns until it is committed and applied here, or `patience`
    /// has run out ([`Error::Unknown`]). Returns where it stands in the log, and the state machine's
    /// answer.
    ///
    /// # Errors
    ///
    /// The outer one ends the replica, the inner one is about this entry.
    pub fn append(
        &mut self,
        entry: &[u8],
        patience: Duration,
    ) -> Result<Result<(Viewstamp, Vec<u8>), Error>, ServerError> {
        let until = Instant::now() + patience;
        let ticket = loop {
            match self.submit(entry) {
                Ok(ticket) => break ticket,
                Err(Error::Full) if Instant::now() < until => {}
                Err(error) => return Ok(Err(error)),
            }
            self.turn(Some(until.saturating_duration_since(Instant::now())))?;
        };
        let left = until.saturating_duration_since(Instant::now());
        self.turn_until(left, |server| server.submitted.place(ticket).is_some())?;
        let place = self.submitted.place(ticket);
        let done = place.and_then(|place| self.submitted.completions.remove(place));
        Ok(done.map_or(Err(Error::Unknown), |done| {
            done.result.map(|at| (at, done.answer))
        }))
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
        // A turn sleeps, and what was asked for since the last one may be all that it takes.
        self.settle()?;
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
