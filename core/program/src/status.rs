//! The answers of a replica to its caller: whether it may lead, whether it takes input, when it is due, where it stands.

use crate::api::{Entrance, Own, Taint};
use crate::phase::Quiet;
use crate::replica::Replica;
use crate::{Phase, Progress};
use plover_types::{Index, Micros};

/// A leader accepts no more input while this many entries wait for its program.
const BACKLOG_MAX: u64 = 1024;

/// Where a replica stands, for people and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its phase.
    pub phase: &'static str,
    /// Entries up to here were given to the program.
    pub executed: Index,
    /// Connections that are open at the program.
    pub connections: usize,
    /// Its program leaves input unread.
    pub stalled: bool,
    /// How its program keeps up with the log.
    pub progress: Progress,
    /// It leads, and takes no input until the programs of its followers have caught up.
    pub waits: bool,
    /// It leads, and the followers whose programs are in step are too few for a majority: clients of a leader after it would wait.
    pub too_few: bool,
    /// The index of its checkpoint.
    pub checkpoint: Option<Index>,
    /// The group's newest checkpoint.
    pub newest: Option<Index>,
    /// Why its program was stopped, and is not restored yet.
    pub taint: Option<Taint>,
}

impl Replica {
    /// Whether this replica may stand for election, and go on leading. A caller asks after every event, and
    /// tells consensus.
    pub fn may_lead(&self) -> bool {
        let leads = self.log.leads.is_some();
        match &self.phase {
            Phase::Leading { .. } => !self.stalled,
            Phase::Following => {
                // A checkpoint may take long, and clients would wait for it.
                self.feed.ahead.is_none()
                    && self.feed.checkpoint.is_none()
                    && !self.stalled
                    && (leads || self.pace.own.is == Progress::InStep)
            }
            // A group whose replicas all start elects one of them, and does not wait for its program. Those that know of
            // entries that it lacks leave it to others.
            Phase::Restoring { from } => {
                let last = from.map_or(Index(0), |it| it.index);
                self.failures == 0 && (leads || self.log.commit <= last)
            }
            // It has a checkpoint and does not know the log. If the others have no program either, nobody else would lead, and
            // it would never know.
            Phase::Looking { .. } => self.failures == 0 && self.waits_for_the_log(),
            Phase::Tainted { .. } | Phase::Fetching { .. } => false,
        }
    }

    /// Whether clients are accepted and their input is read.
    pub fn accepts(&self) -> bool {
        let is_open = matches!(
            self.phase,
            Phase::Leading {
                opened: Some(_),
                quiet: Quiet::Reads,
                ..
            }
        );
        // A program that reads its clients itself first notices the end of the connections before them.
        let is_ready = self.config.entrance == Entrance::Fed || self.feed.is_read();
        is_open
            && is_ready
            && !self.pace.waits
            && !self.is_full()
            && self.feed.checkpoint.is_none()
            && self.log.last.index.0.saturating_sub(self.feed.next.0) < BACKLOG_MAX
    }

    /// Whether the log takes no input of clients: a checkpoint has to come first.
    pub fn is_full(&self) -> bool {
        self.log.bytes > self.config.room
    }

    /// Whether clients are served, although perhaps none of their input is read just now.
    pub fn serves(&self) -> bool {
        matches!(
            self.phase,
            Phase::Leading {
                opened: Some(_),
                ..
            }
        )
    }

    /// Whether its program has to answer before it is told of the end of a connection.
    pub fn holds_end(&self) -> bool {
        self.feed.end_due() != Micros::NEVER
    }

    /// The checkpoint on this replica's disk. The caller reports what the log has at its index
    /// ([`LogState::at_own`]).
    pub fn own(&self) -> Option<&Own> {
        self.checkpoints.own.as_ref()
    }

    /// The phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// When the next [`Event::Log`] is due at the latest.
    pub fn deadline(&self) -> Micros {
        let until = match &self.phase {
            Phase::Tainted { until, .. } => *until,
            _ => Micros::NEVER,
        };
        let stall = if self.stalled {
            Micros::NEVER
        } else {
            self.feed.stalls_at(self.config.stall)
        };
        let say = if self.confesses.is_some() || self.refuses {
            self.say_at
        } else {
            Micros::NEVER
        };
        let repeat = if matches!(self.phase, Phase::Looking { .. }) {
            self.repeat_at
        } else {
            Micros::NEVER
        };
        let claims = if self.is_full() {
            Micros::NEVER
        } else {
            self.check.deadline()
        };
        until
            .min(stall)
            .min(repeat)
            .min(say)
            .min(claims)
            .min(self.checkpoint_due())
            .min(self.feed.end_due())
            .min(self.checkpoints.deadline())
            .min(self.pace.deadline(self.is_full()))
    }

    /// Where this replica stands.
    pub fn status(&self) -> Status {
        let executed = Index(self.feed.next.0 - 1);
        Status {
            phase: self.phase.name(),
            executed: if self.phase.executes() {
                executed
            } else {
                Index(0)
            },
            connections: self.feed.open.len(),
            stalled: self.stalled,
            progress: self.pace.own.is,
            waits: self.pace.waits,
            too_few: self.pace.are_too_few,
            checkpoint: self.own().map(|it| it.at.index),
            newest: self.checkpoints.newest().map(|it| it.index),
            taint: match &self.phase {
                Phase::Tainted { why, .. } => Some(why.clone()),
                _ => None,
            },
        }
    }
}
