//! An operator is told of each input what has become of it: once, soon, and truly. A line that was said to be safe is in
//! the log for ever.
//!
//! If the replica's process ends, nobody answers. A bootstrap begins without the log.

use super::logs_agree::CommittedLog;
use super::{Check, Violation};
use plover_replica::Ticket;
use plover_types::{Micros, ReplicaId};
use std::collections::BTreeMap;

/// An input waits for 1.5 s at most until it is in the log. Consensus hears of a majority that is gone in less.
const TOLD_WITHIN: Micros = Micros(5_000_000);

/// An input that is not answered.
#[derive(Clone, Debug)]
pub struct Given {
    /// The replica that has it, and the incarnation of its process.
    pub to: (ReplicaId, u64),
    /// When it was given.
    pub at: Micros,
    /// The line, if it is one that was typed.
    pub line: Option<Vec<u8>>,
}

/// The inputs that were given.
#[derive(Debug, Default)]
pub struct OperatorsAreTold {
    given: BTreeMap<Ticket, Given>,
    safe: Vec<Vec<u8>>,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "operators_are_told",
        section: "PLOVER §3.1",
        message,
    }
}

impl OperatorsAreTold {
    /// An operator gives an input.
    pub fn given(&mut self, ticket: Ticket, given: Given) {
        self.given.insert(ticket, given);
    }

    /// It is answered.
    pub fn told(&mut self, who: ReplicaId, ticket: Ticket, is_safe: bool) -> Check {
        let Some(given) = self.given.remove(&ticket) else {
            return Err(violation(format!("{who} answers {ticket:?} once more")));
        };
        self.safe.extend(given.line.filter(|_| is_safe));
        Ok(())
    }

    /// A new generation knows nothing of the one before.
    pub fn new_generation(&mut self) {
        self.safe.clear();
    }

    /// The run is over: these processes run, and this is the log, if inputs go there.
    pub fn over(
        &self,
        now: Micros,
        runs: impl Fn((ReplicaId, u64)) -> bool,
        log: Option<&CommittedLog>,
    ) -> Check {
        let late = |given: &Given| now.since(given.at) > TOLD_WITHIN && runs(given.to);
        if let Some((ticket, given)) = self.given.iter().find(|(_, given)| late(given)) {
            return Err(violation(format!(
                "{ticket:?} was never answered: {given:?}"
            )));
        }
        let is_lost = |line: &&Vec<u8>| log.is_some_and(|log| log.place_of_line(line).is_none());
        match self.safe.iter().find(is_lost) {
            Some(line) => Err(violation(format!(
                "the line {line:?} was said to be safe, and is in no log"
            ))),
            None => Ok(()),
        }
    }
}
