//! A guest whose outputs are released has consumed the committed frames in the log's order, none
//! twice and none left out. The same holds for lines typed on the console. There is no order between
//! frames and lines, because a guest has a queue for each.
//!
//! One exception: a leader feeds its guest before the commit, because the outputs are held anyway.
//! If it is deposed, and wins again before another replica has served, such inputs may have lost
//! their places in the log. They are allowed, because its guest's state is then the only one.
//!
//! Where outputs are released on match, such a leader may release outputs before the inputs behind
//! them are committed: the other guest has sent the same, and was fed committed inputs only
//! (`external_consistency` checks that). The input must still be committed at the place at which it
//! was consumed. The next output checks this. In disk mode it is committed (docs/decisions/0066).
//!
//! A guest that was reset has lost what it had been given and had not consumed.
//!
//! A policy that orders inputs by connection promises this for the frames of each client. A policy
//! that does not replicate inputs promises only that a guest consumes frames that a client has
//! sent, and none twice.

use super::logs_agree::CommittedLog;
use super::{Check, Violation};
use crate::history::{Histories, History, Step};
use crate::request::Request;
use plover_policy::Input as Order;
use plover_types::{Frame, ReplicaId, ReplicaSet};
use std::collections::{HashMap, HashSet};

/// How far the history that clients have seen was checked.
#[derive(Debug)]
pub struct InputsInOrder {
    /// The inputs due after each history that was checked. Never iterated.
    checked: HashMap<History, Due>,
    /// The frame with each number.
    frames: HashMap<u64, Frame>,
    /// Inputs that each replica was offered since it last won an election, and that its guest may have consumed.
    offered: HashMap<ReplicaId, Vec<Step>>,
    /// Inputs that were not committed when the replica that was offered them won again.
    excused: HashSet<Step>,
    /// The order that the policy promises.
    promised: Order,
    /// The nodes at which each input was consumed. Never iterated.
    consumed: HashMap<Step, Vec<History>>,
}

/// How many connections are counted apart.
const CONNECTIONS: usize = 8;

/// The places, among all that was committed, of the next frame and the next line typed.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// One count for each client; only the first, for all frames, if their order is total.
    frames: [Next; CONNECTIONS],
    line: Next,
}

/// The next place of a kind of inputs.
#[derive(Clone, Copy, Debug, Default)]
struct Next {
    place: u64,
    /// A reset of the guest has lost those that it had not consumed, so a later one may come next.
    may_skip: bool,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "inputs_in_order",
        section: "PLOVER §3.1, §4.1",
        message,
    }
}

impl InputsInOrder {
    /// For a policy that promises this order.
    pub fn new(promised: Order) -> Self {
        Self {
            checked: HashMap::new(),
            frames: HashMap::new(),
            offered: HashMap::new(),
            excused: HashSet::new(),
            promised,
            consumed: HashMap::new(),
        }
    }

    /// The places of a new generation are counted anew.
    pub fn new_generation(&mut self) {
        self.checked.clear();
        self.consumed.clear();
        self.excused.clear();
    }

    /// A client sends a frame.
    pub fn sent(&mut self, frame: &Frame) {
        if let Some(request) = Request::of(frame) {
            self.frames.insert(request.number, frame.clone());
        }
    }

    /// Frames reach a replica that may feed them before their commit.
    pub fn offered(&mut self, who: ReplicaId, frames: &[Frame]) {
        let requests = frames.iter().filter_map(Request::of);
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

    /// A replica faces clients. The guests of replicas that are not `in_sync` count for nothing from now on. One that is
    /// in sync may still win again with the guest that it has: a predecessor that stays in step, before its first sync.
    pub fn serves(&mut self, who: ReplicaId, in_sync: ReplicaSet) {
        self.offered
            .retain(|id, _| *id == who || in_sync.contains(*id));
    }

    /// A replica's guest is gone, or has another state.
    pub fn guest_replaced(&mut self, who: ReplicaId) {
        self.offered.remove(&who);
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
            Step::Input(number) => {
                let frame = self.frames.get(&number)?;
                match self.promised {
                    Order::PerConnection => log.place_in_connection(&frame.0),
                    Order::Total | Order::None => log.place_of(&frame.0),
                }
            }
            Step::Typed(number) => log.place_of_line(&number.to_le_bytes()),
            Step::Boot | Step::Reset | Step::Other => None,
        }
    }

    /// An output that `at` explains is released; `on_match` if another replica's guest may
    /// explain it as well.
    pub fn released(
        &mut self,
        who: ReplicaId,
        at: History,
        on_match: bool,
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
            if self.promised == Order::None {
                self.consumed_once(who, place, step, all)?;
                self.checked.insert(place, due);
                continue;
            }
            let next = match step {
                Step::Input(number) => Some(&mut due.frames[self.lane(number)]),
                Step::Typed(_) => Some(&mut due.line),
                Step::Reset => {
                    due.line.may_skip = true;
                    due.frames.iter_mut().for_each(|next| next.may_skip = true);
                    None
                }
                Step::Boot | Step::Other => None,
            };
            if let Some(due) = next {
                let Some(found) = self.place(step, log) else {
                    if self.excused.contains(&step) {
                        continue;
                    }
                    if on_match {
                        // The next output checks it again.
                        return Ok(());
                    }
                    return Err(violation(format!(
                        "{who} releases what follows from {step:?}, which is not committed"
                    )));
                };
                let Next { place, may_skip } = *due;
                if found < place || (found > place && !may_skip) {
                    let what = if found < place { "again" } else { "too early" };
                    return Err(violation(format!(
                        "{who}'s guest has consumed {step:?}, the {found}th of its kind, {what}: \
                         the {place}th was due"
                    )));
                }
                *due = Next {
                    place: found + 1,
                    may_skip: false,
                };
            }
            self.checked.insert(place, due);
        }
        Ok(())
    }

    /// The place in [`Due::frames`] of a frame's count.
    fn lane(&self, number: u64) -> usize {
        let request = self.frames.get(&number).and_then(Request::of);
        match (self.promised, request) {
            (Order::PerConnection, Some(request)) => usize::from(request.client) % CONNECTIONS,
            _ => 0,
        }
    }

    fn consumed_once(
        &mut self,
        who: ReplicaId,
        place: History,
        step: Step,
        all: &Histories,
    ) -> Check {
        let was_sent = match step {
            Step::Input(number) => self.frames.contains_key(&number),
            Step::Typed(_) => true,
            Step::Boot | Step::Reset | Step::Other => return Ok(()),
        };
        let before = self.consumed.entry(step).or_default();
        if !was_sent || before.iter().any(|before| all.contains(place, *before)) {
            let what = if was_sent {
                "again"
            } else {
                "that nobody sent"
            };
            return Err(violation(format!(
                "{who}'s guest has consumed {step:?} {what}"
            )));
        }
        before.push(place);
        Ok(())
    }
}
