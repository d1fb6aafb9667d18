//! A process that dies on a living host: the host says so, and nobody waits for a timeout.
//!
//! ```text
//!   a parent outlives the process (`plover-node`, `supervisor`), and reports its death to all peers
//!       |
//!   ProcessDied{replica, number}     is this the process that was heard last?  no: ignored
//!       | yes
//!   a backup    the leader counts as dead: it stands for election at once, if it may; and votes
//!   the leader  the backup counts as dead, as after a timeout
//! ```
//!
//! # Why the vote needs no timeout
//!
//! A voter refuses its vote for a timeout after it heard a leader because that leader's lease may
//! rest on its answer. A lease is worth something only to a process that can release outputs. Once
//! that process is gone, its lease protects nothing, and the voter may vote.
//!
//! The voter knows nothing of leaders that it heard before. It need not: the leader that it heard
//! last was elected by a majority in which every voter knew the lease of the one before to be over.
//!
//! # Why no other process is hit
//!
//! Every process draws a number at random when it starts, and names it in each `Append` and `Ack`. A
//! report that names another process than the one heard last is late, or repeated, or of a process
//! that was never heard; it is ignored. What a dead process has written may arrive after the report.
//! It is dropped, as if it were lost: it is no sign of life.
//!
//! A candidate names the dead leader in its `PreVote`: the report may not have reached every voter.
//!
//! In a pair without fencing the leader ignores such reports. Its partner may have taken over before it died, and
//! only unanswered heartbeats tell the leader that it did not (`pair`).

use crate::canary::canary;
use crate::resign::Resigned;
use crate::silence::Silence;
use crate::{Apus, Command, Role};
use plover_types::{Incarnation, Micros};

/// The leader that was heard last, and the process that was reported dead last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// When a leader was last heard, or when the process started.
    pub at: Micros,
    /// For how long it may be silent from then on.
    pub span: Micros,
    /// Until when no vote is given, because the leader's lease may rest on an answer of this replica, or
    /// of the process before it.
    pub until: Micros,
    /// That leader.
    pub from: Option<Incarnation>,
    /// This process stood still when that leader's silence would have ended, and gave it another moment.
    pub is_excused: bool,
    /// How that leader's messages have come.
    pub silence: Silence,
    /// The last process known here that was reported dead.
    dead: Option<Incarnation>,
    /// The leader of this view, the newest one heard of, has resigned.
    pub resigned: Option<Resigned>,
}

impl Heard {
    pub(crate) fn new(now: Micros, timeout: Micros) -> Self {
        Self {
            at: now,
            span: timeout,
            until: now + timeout,
            from: None,
            is_excused: false,
            silence: Silence::new(now),
            dead: None,
            resigned: None,
        }
    }

    /// The leader's `process` is heard, and may be silent for `span` now.
    pub(crate) fn leader(&mut self, now: Micros, process: Incarnation, span: Micros) {
        if self.from == Some(process) {
            self.silence.ended(now, now.since(self.at));
        } else {
            self.silence = Silence::new(now);
        }
        self.at = now;
        self.is_excused = false;
        self.span = span;
        self.until = self.until.max(now + span);
        self.from = Some(process);
    }

    /// Whether the leader that was heard last has been reported dead.
    pub(crate) fn leader_is_dead(&self) -> bool {
        self.from.is_some() && self.from == self.dead
    }

    /// That leader, if it is dead.
    pub(crate) fn dead_leader(&self) -> Option<Incarnation> {
        self.dead.filter(|_| self.leader_is_dead())
    }

    /// Whether this process has been reported dead.
    pub(crate) fn is_dead(&self, process: Incarnation) -> bool {
        self.dead == Some(process)
    }
}

impl Apus {
    /// Whether this replica has heard the process as a leader or, leading, as a follower, so that its death would mean
    /// something here.
    pub fn has_heard(&self, process: Incarnation) -> bool {
        let answered = match &self.role {
            Role::Leading(leadership) => leadership.peers.get(&process.replica),
            _ => None,
        };
        let answered = answered.and_then(|peer| peer.answered_by());
        [self.heard.from, self.heard.dead, answered].contains(&Some(process))
    }

    /// A process of a peer has died.
    pub(crate) fn process_died(
        &mut self,
        now: Micros,
        process: Incarnation,
        out: &mut Vec<Command>,
    ) {
        let any_number = canary!(self.config, MournTheLiving);
        let is_meant =
            |known: Incarnation| known == process || any_number && known.replica == process.replica;
        if let Role::Leading(leadership) = &mut self.role {
            let peer = leadership.peers.get_mut(&process.replica);
            if self.config.fencing {
                let known = peer
                    .and_then(|peer| peer.answered_by())
                    .filter(|it| is_meant(*it));
                if known.is_some() {
                    self.heard.dead = known;
                    self.other_is_off(now, process.replica, out);
                }
                return;
            }
            let meant = peer.filter(|peer| {
                peer.is_alive() && peer.answered_by().is_some_and(is_meant) && !self.config.pair
            });
            if let Some(peer) = meant {
                self.heard.dead = peer.answered_by();
                peer.dead();
                leadership.selection.suspend();
                out.push(Command::PeerAlive {
                    peer: process.replica,
                    alive: false,
                });
            }
        } else if self.heard.from.is_some_and(is_meant) && !self.heard.leader_is_dead() {
            self.heard.dead = self.heard.from;
            self.leader_died(now, out);
        }
    }

    /// The leader that this replica heard last is dead: looks for another one at once.
    fn leader_died(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Following(follower) = &mut self.role else {
            // It suspects the leader already, and asks for votes.
            return;
        };
        follower.leader = None;
        self.tell(None, out);
        if self.is_the_only_candidate() {
            self.election_at = now;
        } else {
            let heartbeat = self.config.heartbeat.0;
            let soon = now + Micros(self.random.range(0, heartbeat));
            self.election_at = self.election_at.min(soon);
        }
        self.tick_following(now, out);
    }
}
