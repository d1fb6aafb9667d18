//! Two replicas without a third to decide between them (docs/decisions/0018).
//!
//! A majority of two is both, so a group of two that needed a majority would stop with either. The
//! systems of the papers have two hosts and go on with one (Remus, MC; COLO §3); the price is that a
//! cut between them makes two leaders. A *pair* does the same, and keeps every promise while the
//! link is not cut:
//!
//! ```text
//!   the leader                             its backup, in the in-sync set
//!   commits what all of the in-sync        hears nothing for a timeout: pre-vote
//!   set holds                                |  the other grants: an ordinary election
//!     |  heartbeats unanswered               |  silence for a heartbeat more
//!   in-sync set = itself:                  begins a new *generation* with its log, and leads it
//!   commits alone
//! ```
//!
//! # Why nothing is lost without a cut
//!
//! * *The backup takes over* only if its log names it, so it holds everything that the leader needed
//!   its acknowledgement for. The leader was silent while the backup ran, so it is dead or stopped.
//!   If it was stopped, its lease has run out, for the lease rests on the backup's answers. And it
//!   counts its own unanswered heartbeats, not the time, before it goes on alone: when it wakes, it
//!   hears of the new leader before it has counted enough. A leader that was stopped for that long
//!   *doubts*, for the backup may have taken over and died: it takes the backup for dead only after
//!   it has heard from it once more.
//! * *Removing a live peer from the in-sync set* takes that peer's acknowledgement. Until then the
//!   leader commits nothing.
//! * *The leader goes on alone* after as many unanswered heartbeats as fill a timeout. A backup that
//!   was only stopped must not take over afterwards, with old state. A backup that did not run for a
//!   timeout, and had heard its leader right before, doubts as well: it neither stands for election
//!   nor counts as holding the guest until the leader has told it where its log ends, and it has
//!   all of that. If that leader is gone, too, both have failed at once, and none serves.
//!
//! # With fencing
//!
//! Silence is no proof. With [`Config::fencing`](crate::Config::fencing) both places of the picture at which one of the two goes
//! on alone wait for a proof that the other one runs no more, and then neither cuts nor standstills make two leaders:
//!
//! ```text
//!   PeerOff         who powers hosts off, or ends processes, says that it is off
//!   ProcessDied     its host says that the process has ended
//!   Recovery        its next process asks where the group stands (a backup's leader)
//! ```
//!
//! A `PeerOff` counts until the other one is heard again: then it is another process, which holds no guest. For the same
//! reason it counts only if nothing has come from the other one since the caller began to look, nor for a timeout. No clock
//! matters any more, so nobody doubts: one that was stopped has not been succeeded, or it would have been ended.
//!
//! # After a cut
//!
//! With fencing, one of the two waits until it hears the other one again, or is ended. Without:
//!
//! Both lead. The replica that took over leads the higher view, and its log is of a newer generation.
//! When the two hear of each other, the other one drops its log and guest, as of any older generation
//! (`generation`), and comes back as a witness that gets a copy.

use crate::Command;
use crate::canary::canary;
use crate::election::{Election, Stage};
use crate::leading::Leadership;
use crate::peers::Peer;
use crate::recovery::Recovery;
use crate::{Apus, Role};
use plover_types::{Incarnation, Index, Micros, ReplicaId, View};
use std::collections::BTreeMap;

/// After so many heartbeats without a message a leader counts as silent.
const SILENT_BEATS: u64 = 2;

/// The replica was stopped for so long that the other one may have gone on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// When it ran again. A leader's doubt ends with an answer to what it has sent since.
    since: Micros,
    /// A backup's doubt ends when it has the log of the leader of this view up to here.
    until: Option<(View, Index)>,
}

/// The other one of a pair with fencing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Other {
    /// When something came from it last.
    heard_at: Micros,
    /// It is known to run no more, and nothing has come from it since.
    is_off: bool,
}

impl Recovery {
    /// The partner of this leader has answered what was sent at `stamp`, so it had not taken over.
    pub(crate) fn partner_answered(&mut self, stamp: Micros) {
        self.doubt = self.doubt.filter(|doubt| stamp < doubt.since);
    }
}

impl Apus {
    /// The other replica, if this leader needs its acknowledgement: the in-sync set names it, or has
    /// just ceased to, and it may have taken over instead of agreeing. A live peer may be removed,
    /// because it is slow, for example; only a dead one is not asked.
    pub(crate) fn partner<'a>(&self, leadership: &'a Leadership) -> Option<&'a Peer> {
        let in_sync = self.log.configuration().in_sync;
        let (id, peer) = leadership.peers.iter().next()?;
        let took_over = self.generation == self.promised;
        let changes = self.log.in_sync_at() > self.log.commit();
        let asks = match peer.liveness() {
            Some(true) => true,
            Some(false) => {
                let ended = peer.answered_by().is_some_and(|it| self.heard.is_dead(it));
                self.config.fencing && !self.is_off() && !ended
            }
            None => !took_over,
        };
        let asked = changes && asks;
        (in_sync.contains(*id) || asked).then_some(peer)
    }

    /// The last index that this leader of a pair may commit: its own copy counts, and its partner, if it
    /// needs one, has acknowledged it.
    pub(crate) fn held_by_pair(&self, leadership: &Leadership) -> Index {
        let partner = self.partner(leadership);
        partner.map_or(self.counted(), |peer| peer.matched.min(self.counted()))
    }

    /// After how many unanswered heartbeats the partner counts as dead: as many as fill the timeout
    /// of a leader that has only just begun to run again.
    pub(crate) fn beats_to_death(&self) -> u64 {
        if canary!(self.config, ClockAlone) {
            return 0;
        }
        self.config.timeout.0.div_ceil(self.config.heartbeat.0) + 1
    }

    /// When a follower looks at the clock, to notice whether it was stopped.
    pub(crate) fn look_at(&self) -> Micros {
        if self.config.pair && self.holds_state {
            self.awake_at + self.config.heartbeat
        } else {
            Micros::NEVER
        }
    }

    /// An event comes at `now`. This replica doubts its state if it was stopped since the last event
    /// for as long as the other one needs to go on without it.
    pub(crate) fn wake(&mut self, now: Micros) {
        let slept_since = std::mem::replace(&mut self.awake_at, now);
        let slept = now.since(slept_since) >= self.config.timeout;
        let may_doubt = self.config.pair && !self.config.fencing && self.holds_state;
        if slept && may_doubt && self.heard_other_until(slept_since) {
            self.recovery.doubt = Some(Doubt {
                since: now,
                until: None,
            });
            self.recovery.ask_at = now;
        }
    }

    /// Whether the other replica was not silent yet at `then`, so that it may have gone on alone since.
    fn heard_other_until(&self, then: Micros) -> bool {
        match &self.role {
            Role::Following(follower) => {
                let beats = Micros(self.config.heartbeat.0 * SILENT_BEATS);
                follower.leader.is_some()
                    && then < self.heard.at + beats
                    && !canary!(self.config, NeverDoubt)
            }
            Role::Leading(leadership) => {
                let partner = self.partner(leadership);
                partner.is_some_and(|peer| peer.unanswered < SILENT_BEATS)
                    && !canary!(self.config, ClockAlone)
            }
            Role::PreVoting(_) | Role::Electing(_) => false,
        }
    }

    /// The partner of this leader has started again. With a promise of the leader's own view it has
    /// never taken over, or it would have promised more.
    pub(crate) fn partner_restarted(&mut self, promised: View) {
        if promised == self.promised {
            self.recovery.doubt = None;
        }
    }

    /// The leader of `view` has answered, after any stop of this replica, that its log ends at
    /// `last`.
    pub(crate) fn leader_told(&mut self, view: View, last: Index) {
        if let Some(doubt) = &mut self.recovery.doubt {
            doubt.until = Some((view, last));
        }
        self.check_doubt();
    }

    /// Ends the doubt once the log has all that the leader had.
    pub(crate) fn check_doubt(&mut self) {
        let Role::Following(follower) = &self.role else {
            return;
        };
        let until = self.recovery.doubt.and_then(|doubt| doubt.until);
        if until.is_some_and(|(view, last)| view == self.promised && follower.matched >= last) {
            self.recovery.doubt = None;
        }
    }

    /// The other one of a pair with fencing that is silent, if this replica would go on were it known to be off.
    pub(crate) fn awaits_off(&self) -> Option<ReplicaId> {
        let waits = match &self.role {
            Role::Leading(leadership) => self.partner(leadership).is_some_and(Peer::is_dead),
            Role::PreVoting(_) => self.has_state() && self.is_eligible() && !self.may_go_alone(),
            _ => false,
        };
        let other = self.others().iter().next();
        other.filter(|_| self.config.fencing && waits)
    }

    /// Whether the other one of a pair has been silent since `seen_at`, and for a timeout. A report that it is off
    /// ([`Event::PeerOff`](crate::Event::PeerOff)) is ignored if not.
    pub fn other_is_silent(&self, now: Micros, seen_at: Micros) -> bool {
        seen_at >= self.other.heard_at && now >= self.other.heard_at + self.config.timeout
    }

    fn is_off(&self) -> bool {
        self.other.is_off || canary!(self.config, NeverFence)
    }

    /// Something has come from the other replica.
    pub(crate) fn other_is_heard(&mut self, now: Micros) {
        self.other = Other {
            heard_at: now,
            is_off: false,
        };
    }

    /// A report that the other one of a pair runs no more, by somebody who began to look at `seen_at`. It may be wrong, so
    /// messages that still come from the other one are heard.
    pub(crate) fn peer_is_off(
        &mut self,
        now: Micros,
        peer: ReplicaId,
        seen_at: Micros,
        out: &mut Vec<Command>,
    ) {
        let counts = self.other_is_silent(now, seen_at) || canary!(self.config, OldFencing);
        if self.config.fencing && peer != self.config.me && counts {
            self.other_is_off(now, peer, out);
        }
    }

    /// The other one of a pair with fencing runs no more. A backup has perhaps waited for that.
    pub(crate) fn other_is_off(&mut self, now: Micros, peer: ReplicaId, out: &mut Vec<Command>) {
        self.other.is_off = true;
        if let Role::Leading(leadership) = &mut self.role {
            let backup = leadership.peers.get_mut(&peer);
            if let Some(backup) = backup.filter(|it| !it.is_dead()) {
                backup.dead();
                out.push(Command::PeerAlive { peer, alive: false });
            }
        }
        self.advance_commit(now, out);
    }

    /// This process asks where the group stands. If it is of the leader that was heard last, and another one than that, the
    /// other one has ended: a state directory has one process at a time. (A copy of it elsewhere is what no replica can see
    /// that hears only one of the two.)
    pub(crate) fn leader_has_restarted(
        &mut self,
        now: Micros,
        process: Incarnation,
        out: &mut Vec<Command>,
    ) {
        let last = self.heard.from.filter(|it| it.replica == process.replica);
        if let Some(ended) = last.filter(|it| self.config.fencing && *it != process) {
            self.process_died(now, ended, out);
        }
    }

    /// Whether a backup of a pair may lead without the other's vote.
    pub(crate) fn may_go_alone(&self) -> bool {
        let is_proven = self.is_off() || self.heard.leader_is_dead();
        self.config.pair && (is_proven || !self.config.fencing)
    }

    /// A pre-vote in a pair had no answer: goes on alone, if the log allows it.
    pub(crate) fn go_alone(&mut self, now: Micros, out: &mut Vec<Command>) {
        if !self.is_eligible() {
            self.stand_down(now, out);
            return;
        }
        self.transition(Role::Electing(Election::new(Stage::Alone)));
        self.promise(View::new(self.round_max + 1, self.config.me), out);
        self.tell(None, out);
    }

    /// Storage has the promise of the view that this replica leads without the other's vote.
    pub(crate) fn begin_alone(&mut self, now: Micros, out: &mut Vec<Command>) {
        if !self.is_eligible() || !self.has_state() {
            self.stand_down(now, out);
            return;
        }
        self.generation = self.promised;
        self.persist_state(out);
        self.lead(now, &BTreeMap::new(), out);
    }

    /// The other one of a pair is in a newer generation: drops this replica's log and guest.
    pub(crate) fn yield_to(&mut self, now: Micros, generation: View, out: &mut Vec<Command>) {
        self.follow(now, out);
        self.adopt_generation(generation, out);
    }
}
