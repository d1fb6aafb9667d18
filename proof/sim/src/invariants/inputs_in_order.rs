//! A guest whose outputs are released has consumed the committed inputs in the log's order,
//! none twice and none left out. The same holds for what was typed on the console; between the
//! two there is no order, since a guest has a queue for each.
//!
//! One exception: a leader feeds its guest before the commit while the outputs are held anyway.
//! If it is deposed, and wins again before anybody else has served, such inputs may have lost
//! their places in the log. Its guest's is then the only state there is, and they are part of it.

use super::logs_agree::CommittedLog;
use super::{Check, Violation};
use crate::guest::Request;
use crate::history::{Histories, History, Step};
use plover_types::{Frame, ReplicaId, wire};
use std::collections::{HashMap, HashSet};

/// How far the history that clients have seen was checked.
#[derive(Debug, Default)]
pub struct InputsInOrder {
    /// What is due after each history that was checked. Only looked up.
    checked: HashMap<History, Due>,
    /// The frame with each number.
    frames: HashMap<u64, Vec<u8>>,
    /// Inputs that each replica was offered since it last won an election.
    offered: HashMap<ReplicaId, Vec<Step>>,
    /// Those that were not committed when it won again.
    excused: HashSet<Step>,
}

/// The places, among all that was committed, of the next frame and the next line typed.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    frame: u64,
    line: u64,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "inputs_in_order",
        section: "PLOVER §3.1, §4.1",
        message,
    }
}

impl InputsInOrder {
    /// The places of a new life are counted anew.
    pub fn new_life(&mut self) {
        self.checked.clear();
        self.excused.clear();
    }

    /// A client sends a frame.
    pub fn sent(&mut self, frame: &[u8]) {
        if let Ok(request) = wire::decode::<Request>(frame) {
            self.frames.insert(request.number, frame.to_vec());
        }
    }

    /// Frames reach a replica that may feed them before their commit.
    pub fn offered(&mut self, who: ReplicaId, frames: &[Frame]) {
        let requests = frames
            .iter()
            .filter_map(|frame| wire::decode::<Request>(&frame.0).ok());
        self.offered
            .entry(who)
            .or_default()
            .extend(requests.map(|request| Step::Input(request.number)));
    }

    /// A line is typed at a replica that may hand it to its guest before its commit.
    pub fn offered_line(&mut self, who: ReplicaId, line: &[u8]) {
        if let Ok(number) = line.try_into().map(u64::from_le_bytes) {
            self.offered
                .entry(who)
                .or_default()
                .push(Step::Typed(number));
        }
    }

    /// A replica has won an election.
    pub fn elected(&mut self, who: ReplicaId, log: &CommittedLog) {
        for step in self.offered.remove(&who).unwrap_or_default() {
            if self.place(step, log).is_none() {
                self.excused.insert(step);
            }
        }
    }

    fn place(&self, step: Step, log: &CommittedLog) -> Option<u64> {
        match step {
            Step::Input(number) => log.place_of(self.frames.get(&number)?),
            Step::Typed(number) => log.place_of_line(&number.to_le_bytes()),
            Step::Boot | Step::Other => None,
        }
    }

    /// An output that `at` explains is released.
    pub fn released(
        &mut self,
        who: ReplicaId,
        at: History,
        all: &Histories,
        log: &CommittedLog,
    ) -> Check {
        let mut due = Due::default();
        let mut path = Vec::new();
        for (place, step) in all.back(at) {
            if let Some(after) = self.checked.get(&place) {
                due = *after;
                break;
            }
            path.push((place, step));
        }
        for (place, step) in path.into_iter().rev() {
            let next = match step {
                Step::Input(_) => Some(&mut due.frame),
                Step::Typed(_) => Some(&mut due.line),
                Step::Boot | Step::Other => None,
            };
            if let Some(due) = next {
                let Some(found) = self.place(step, log) else {
                    if self.excused.contains(&step) {
                        continue;
                    }
                    return Err(violation(format!(
                        "{who} releases what follows from {step:?}, which is not committed"
                    )));
                };
                if found != *due {
                    let what = if found < *due { "again" } else { "too early" };
                    return Err(violation(format!(
                        "{who}'s guest has consumed {step:?}, the {found}th of its kind, {what}: \
                         the {due}th was due"
                    )));
                }
                *due += 1;
            }
            self.checked.insert(place, due);
        }
        Ok(())
    }
}
