//! The processes of a peer: a restarted one is told from a second one.
//!
//! Each start of a replica draws a number, and the greeting names it. A peer that was restarted greets under another number
//! than before, and so does a second process with the same id and key, on a cloned host for example. The difference is the
//! process before: after a restart it is gone, and beside a second process it lives.
//!
//! ```text
//!   process Q greets, and the link to process P of the same replica is up
//!     │ the end of that link waits to be read ─────────────────────────────► P is gone: Q is welcome
//!     │ P is challenged; Q's connection is closed, and Q dials again
//!     ├─ P's host acknowledges: the kernel there has P's socket open ───────► P lives: Q is refused
//!     ├─ P's host resets the connection: it knows nothing of P ─────────────► P is gone: Q is welcome
//!     └─ nothing is heard within a second, or the link goes down before ────► Q is welcome
//!   process P greets, and another one was welcome after it ─────────────────► P is refused: it was no restart
//! ```
//!
//! A process closes its sockets when it ends, however it ends, and before anybody can know that it has ended. So a socket
//! that is open proves that the process lives, though it may be stopped.
//!
//! A process that a peer has refused so, and that was never linked with that peer, takes no part at all
//! ([`Fabric::twin`](crate::Fabric::twin)).

use crate::hello::{Refusal, Session};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time in which a process with a link has to show that it lives. A host that answers does so within 0.2 s, which is
/// the longest that its kernel holds back an acknowledgement. One that is cut off costs its link after 0.5 s (`socket.rs`).
pub const SHOWN_WITHIN: Duration = Duration::from_secs(1);

/// A refusal holds for so long without another challenge: a handshake greets on several connections.
const HOLDS_FOR: Duration = Duration::from_millis(100);

/// The most processes that are remembered of one peer. A replica that is restarted more often has no older one left.
const REPLACED_MAX: usize = 64;

/// The number of a process; zero for one that does not name it, as those of earlier releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process(pub u64);

/// The number of a process that starts now: no other one has it.
pub fn draw_process() -> u64 {
    Session::fresh().0
}

impl Process {
    /// Whether both are named, and are the same.
    pub fn is(self, other: Self) -> bool {
        self != Self::default() && self == other
    }
}

/// A peer's processes, as far as they are known.
#[derive(Debug, Default)]
pub struct Processes {
    /// The one that was welcome last.
    last: Process,
    /// Those before it.
    replaced: VecDeque<Process>,
    /// The one that was refused last because another one has taken its place.
    pub refused: Process,
    contest: Option<Contest>,
}

/// A second process has greeted.
#[derive(Debug)]
struct Contest {
    second: Process,
    since: Instant,
    /// The first one has shown that it lives.
    decided: Option<Instant>,
}

/// The fate of a process that greets while another one has a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first one is gone.
    Welcome,
    /// The first one has some time left to show that it lives.
    Wait,
    /// There are two.
    Refused,
}

impl Processes {
    /// Whether no process of this peer was ever welcome.
    pub fn is_new(&self) -> bool {
        self.last == Process::default()
    }

    /// Notes that `process` is welcome.
    pub fn welcome(&mut self, process: Process) {
        self.contest = None;
        if process == self.last || process == Process::default() {
            return;
        }
        if !self.is_new() {
            self.replaced.truncate(REPLACED_MAX - 1);
            self.replaced.push_front(self.last);
        }
        self.last = process;
    }

    /// The reason against `process`, if another one has taken its place.
    pub fn objection(&mut self, process: Process) -> Option<Refusal> {
        let is_replaced = self.replaced.iter().any(|it| it.is(process));
        is_replaced.then(|| {
            self.refused = process;
            Refusal::Replaced
        })
    }

    /// Whether `process` is another one than the one that has the link.
    pub fn is_second(&self, process: Process) -> bool {
        !self.is_new() && process != Process::default() && process != self.last
    }

    /// Since when the contest with `second` lasts, and whether it begins now: then the first one is to be challenged.
    pub fn contest(&mut self, second: Process, now: Instant) -> (Instant, bool) {
        let lasts = |it: &&Contest| {
            let is_over = |at: Instant| now >= at + HOLDS_FOR;
            it.second == second && !it.decided.is_some_and(is_over)
        };
        if let Some(contest) = self.contest.as_ref().filter(lasts) {
            return (contest.since, false);
        }
        self.contest = Some(Contest {
            second,
            since: now,
            decided: None,
        });
        (now, true)
    }

    /// Decides the contest, if that can be done now. `lives` says whether the first one has shown since its beginning that it
    /// lives.
    pub fn decide(&mut self, lives: bool, now: Instant) -> Verdict {
        let Some(contest) = &mut self.contest else {
            return Verdict::Welcome;
        };
        if lives || contest.decided.is_some() {
            contest.decided.get_or_insert(now);
            Verdict::Refused
        } else if now >= contest.since + SHOWN_WITHIN {
            Verdict::Welcome
        } else {
            Verdict::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Process = Process(1);
    const Q: Process = Process(2);

    fn linked_to_p() -> Processes {
        let mut known = Processes::default();
        assert!(known.is_new() && !known.is_second(P));
        known.welcome(P);
        known
    }

    #[test]
    fn a_second_one_waits_for_the_first_to_show_that_it_lives() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut known = linked_to_p();
        assert!(known.is_second(Q) && !known.is_second(P));
        assert!(
            !known.is_second(Process(0)),
            "an earlier release names none"
        );
        assert_eq!(known.contest(Q, at(0)), (at(0), true));
        assert_eq!(known.decide(false, at(0)), Verdict::Wait);
        assert_eq!(known.contest(Q, at(250)), (at(0), false));
        assert_eq!(known.decide(true, at(250)), Verdict::Refused);
        assert_eq!(
            known.decide(false, at(251)),
            Verdict::Refused,
            "on each of its connections"
        );
        // It tries again; the first one may have ended meanwhile, and has to show itself anew.
        assert_eq!(known.contest(Q, at(2250)), (at(2250), true));
        assert_eq!(known.decide(false, at(2250)), Verdict::Wait);
    }

    #[test]
    fn one_that_shows_nothing_is_replaced_after_a_while() {
        let start = Instant::now();
        let mut known = linked_to_p();
        known.contest(Q, start);
        let bound = start + SHOWN_WITHIN;
        let before = bound.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(known.decide(false, before), Verdict::Wait);
        assert_eq!(known.decide(false, bound), Verdict::Welcome);
        known.welcome(Q);
        assert_eq!(known.objection(Q), None);
        assert_eq!(known.objection(P), Some(Refusal::Replaced));
        assert_eq!(known.refused, P);
    }

    /// Restarts are no second processes, however many there are, and an earlier release that comes between is none.
    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = Processes::default();
        for number in 1..=1000 {
            assert_eq!(known.objection(Process(number)), None);
            known.welcome(Process(number));
            known.welcome(Process(number));
            known.welcome(Process(0));
        }
        assert_eq!(known.replaced.len(), REPLACED_MAX);
        assert_eq!(known.objection(Process(999)), Some(Refusal::Replaced));
        assert_eq!(known.objection(Process(0)), None);
    }
}
