//! How a view gets its leader.
//!
//! ```text
//!   candidate                                     voter
//!   CANVASSING  -- Canvass{nonce} -->             refuses while it leads, or has heard a
//!               <-- Grant --                      leader within the timeout
//!   a quorum would: promise own view durably
//!   ELECTING    -- Prepare{view} -->              refuses a view not above its promise, and
//!               <-- Promise{last, commit, base}   while a leader lives; else promises durably
//!   a quorum has: is some log better than mine?
//!               -- Fetch{after} -->               (only while it has promised nothing higher)
//!               <-- Suffix{entries} --
//!   my log is as good as any of them: am I in the in-sync set that it names?
//!   LEADING     -- Append{Noop} -->
//! ```
//!
//! Canvassing costs a round trip and saves a healthy leader: a replica that was cut off comes
//! back asking, not with a high view that everyone must yield to.
//!
//! A voter's refusal while a leader lives is not politeness. The leader's lease rests on it
//! ([`Apus::lease_until`]), so it is checked at `Prepare` as well, where a promise is made.
//!
//! Merging truncates only where the better log differs, never back to the commit index first:
//! what this replica has acknowledged may be committed without its knowing, and between cutting
//! and fetching it would be lost. A better log contains all that is committed, so a conflict
//! with it proves that what goes was not.

use crate::api::{Command, Entry};
use crate::leading::fit;
use crate::log::Accepted;
use crate::message::Message;
use crate::{Apus, Role};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Asking whether an election would be won.
#[derive(Debug)]
pub(crate) struct Canvass {
    nonce: u64,
    granted: ReplicaSet,
    repeat_at: Micros,
    give_up_at: Micros,
}

impl Canvass {
    pub(crate) fn deadline(&self) -> Micros {
        self.repeat_at.min(self.give_up_at)
    }
}

/// What a voter says of its log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vote {
    pub last: Viewstamp,
    pub commit: Viewstamp,
    pub base: Index,
}

/// A piece of a better log.
#[derive(Debug)]
pub(crate) struct Suffix {
    pub after: Viewstamp,
    pub entries: Vec<Entry>,
    pub reclaimed: bool,
}

/// How far an election has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Storage does not have our own promise yet.
    Promising,
    /// The same, for the first view of a group without a guest, which needs no votes.
    Beginning,
    /// Votes come in.
    Collecting,
    /// A voter's log is better than ours.
    Merging {
        /// The voter.
        from: ReplicaId,
        /// The end of its log.
        target: Viewstamp,
        /// What we have of it.
        after: Viewstamp,
    },
}

/// An attempt to lead the view that is promised.
#[derive(Debug)]
pub(crate) struct Election {
    pub stage: Stage,
    votes: BTreeMap<ReplicaId, Vote>,
    repeat_at: Micros,
    give_up_at: Micros,
}

impl Election {
    pub(crate) fn new(stage: Stage) -> Self {
        let never = Micros::NEVER;
        Self {
            stage,
            votes: BTreeMap::new(),
            repeat_at: never,
            give_up_at: never,
        }
    }

    pub(crate) fn deadline(&self) -> Micros {
        self.repeat_at.min(self.give_up_at)
    }
}

/// The memory of an election that was won and not taken up.
#[derive(Debug)]
pub(crate) struct StoodDown {
    /// The log that ruled us out; another may not.
    last: Viewstamp,
    /// When to try again with the same log.
    until: Micros,
}

impl Apus {
    /// Sets the next look for a leader: after the timeout, spread so that rivals rarely meet.
    pub(crate) fn arm_election(&mut self, now: Micros) {
        self.election_at = now + self.spread_timeout();
    }

    fn spread_timeout(&mut self) -> Micros {
        let timeout = self.config.timeout.0;
        Micros(self.random.range(timeout, timeout.saturating_mul(2)))
    }

    fn leader_is_alive(&self, now: Micros) -> bool {
        now < self.heard_at + self.config.timeout
    }

    fn may_stand(&self, now: Micros) -> bool {
        self.holds_guest()
            && !self.bearings.amnesiac
            && !self.leader_is_alive(now)
            && self
                .stood_down
                .as_ref()
                .is_none_or(|stood| stood.last != self.log.last() || now >= stood.until)
    }

    pub(crate) fn tick_following(&mut self, now: Micros, out: &mut Vec<Command>) {
        if now < self.election_at {
            return;
        }
        self.arm_election(now);
        if let Role::Following(follower) = &mut self.role {
            if follower.leader.take().is_some() {
                self.tell(None, out);
            }
        }
        if self.may_stand(now) {
            self.canvass(now, out);
        }
    }

    fn canvass(&mut self, now: Micros, out: &mut Vec<Command>) {
        let canvass = Canvass {
            nonce: self.random.next_u64(),
            granted: ReplicaSet::of([self.config.me]),
            repeat_at: now + self.config.heartbeat,
            give_up_at: now + self.spread_timeout(),
        };
        self.transition(Role::Canvassing(canvass));
        self.tell(None, out);
        self.repeat_to_all(out);
        self.elect_if_granted(now, out);
    }

    pub(crate) fn tick_canvassing(&mut self, now: Micros, out: &mut Vec<Command>) {
        let heartbeat = self.config.heartbeat;
        let Role::Canvassing(canvass) = &mut self.role else {
            return;
        };
        if now >= canvass.give_up_at {
            // Grants age: ask anew rather than add old ones to new ones.
            if self.may_stand(now) {
                self.canvass(now, out);
            } else {
                self.follow(now, out);
            }
        } else if now >= canvass.repeat_at {
            canvass.repeat_at = now + heartbeat;
            self.repeat_to_all(out);
        }
    }

    fn repeat_to_all(&mut self, out: &mut Vec<Command>) {
        for peer in self.others().iter() {
            self.repeat_to(peer, out);
        }
    }

    /// Says again what `peer` has not answered yet.
    pub(crate) fn repeat_to(&mut self, peer: ReplicaId, out: &mut Vec<Command>) {
        let view = self.promised;
        let message = match &self.role {
            Role::Canvassing(canvass) if !canvass.granted.contains(peer) => Message::Canvass {
                nonce: canvass.nonce,
            },
            Role::Electing(election) => match election.stage {
                Stage::Collecting if !election.votes.contains_key(&peer) => {
                    Message::Prepare { view }
                }
                Stage::Merging { from, after, .. } if from == peer => {
                    Message::Fetch { view, after }
                }
                _ => return,
            },
            _ => return,
        };
        self.send(peer, &message, out);
    }

    pub(crate) fn on_canvass(
        &mut self,
        now: Micros,
        from: ReplicaId,
        nonce: u64,
        out: &mut Vec<Command>,
    ) {
        let leads = matches!(self.role, Role::Leading(_));
        if leads || self.bearings.amnesiac || self.leader_is_alive(now) {
            return;
        }
        self.send(
            from,
            &Message::Grant {
                nonce,
                promised: self.promised,
            },
            out,
        );
    }

    pub(crate) fn on_grant(
        &mut self,
        now: Micros,
        from: ReplicaId,
        nonce: u64,
        promised: View,
        out: &mut Vec<Command>,
    ) {
        self.round_max = self.round_max.max(promised.round());
        if let Role::Canvassing(canvass) = &mut self.role {
            if canvass.nonce == nonce {
                canvass.granted.insert(from);
                self.elect_if_granted(now, out);
            }
        }
    }

    fn elect_if_granted(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Canvassing(canvass) = &self.role else {
            return;
        };
        if canvass.granted.len() < self.quorum || !self.may_stand(now) {
            return;
        }
        self.transition(Role::Electing(Election::new(Stage::Promising)));
        self.promise(View::new(self.round_max + 1, self.config.me), out);
        self.tell(None, out);
    }

    /// Storage has the promise of our own view: now others may be asked for theirs.
    pub(crate) fn candidacy_is_durable(&mut self, now: Micros, out: &mut Vec<Command>) {
        let give_up_at = now + self.spread_timeout();
        let repeat_at = now + self.config.heartbeat;
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        match election.stage {
            Stage::Promising => {
                election.stage = Stage::Collecting;
                election.repeat_at = repeat_at;
                election.give_up_at = give_up_at;
                self.repeat_to_all(out);
                self.merge_if_promised(now, out);
            }
            Stage::Beginning => self.begin_life(now, out),
            Stage::Collecting | Stage::Merging { .. } => {}
        }
    }

    pub(crate) fn tick_electing(&mut self, now: Micros, out: &mut Vec<Command>) {
        let heartbeat = self.config.heartbeat;
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        if now >= election.give_up_at {
            self.give_up(now, out);
        } else if now >= election.repeat_at {
            election.repeat_at = now + heartbeat;
            self.repeat_to_all(out);
        }
    }

    /// Lets the attempt go and tries again before long; whoever may be in the way is given a
    /// random head start.
    fn give_up(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.follow(now, out);
        let timeout = self.config.timeout.0;
        self.election_at = now + Micros(self.random.range(timeout / 4, timeout));
    }

    pub(crate) fn on_prepare(
        &mut self,
        now: Micros,
        from: ReplicaId,
        view: View,
        out: &mut Vec<Command>,
    ) {
        if self.bearings.amnesiac {
            return;
        }
        if view == self.promised && self.durable == self.promised {
            // Our answer was lost.
            self.send_promise(out);
            return;
        }
        let leads = matches!(self.role, Role::Leading(_)) && now < self.lease_until();
        if view < self.promised || leads || self.leader_is_alive(now) {
            self.send(
                from,
                &Message::Refuse {
                    view,
                    promised: self.promised,
                },
                out,
            );
            return;
        }
        if view > self.promised {
            self.promise(view, out);
            self.follow(now, out);
        }
        if let Role::Following(follower) = &mut self.role {
            follower.owes_promise = true;
        }
    }

    /// Gives the candidate our vote for the view that we have promised it.
    pub(crate) fn send_promise(&mut self, out: &mut Vec<Command>) {
        assert_eq!(
            self.durable, self.promised,
            "a promise that a crash would break"
        );
        let (view, log) = (self.promised, &self.log);
        let (last, commit, base) = (log.last(), log.committed(), log.base().index);
        if let Some(candidate) = view.leader() {
            self.send(
                candidate,
                &Message::Promise {
                    view,
                    last,
                    commit,
                    base,
                },
                out,
            );
        }
    }

    pub(crate) fn on_refuse(
        &mut self,
        now: Micros,
        view: View,
        promised: View,
        out: &mut Vec<Command>,
    ) {
        self.round_max = self.round_max.max(promised.round());
        if view != self.promised || promised <= view {
            return;
        }
        match self.role {
            // A member has promised a higher view and will never acknowledge us again.
            Role::Leading(_) => self.follow(now, out),
            Role::Electing(_) => self.give_up(now, out),
            Role::Following(_) | Role::Canvassing(_) => {}
        }
    }

    pub(crate) fn on_promise(
        &mut self,
        now: Micros,
        from: ReplicaId,
        view: View,
        vote: Vote,
        out: &mut Vec<Command>,
    ) {
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        if view != self.promised || !matches!(election.stage, Stage::Collecting) {
            return;
        }
        election.votes.insert(from, vote);
        self.merge_if_promised(now, out);
    }

    /// With a quorum of promises, our own included: take over the best log among them.
    fn merge_if_promised(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        if election.votes.len() + 1 < self.quorum {
            return;
        }
        // Of equally good logs the one that reaches back farthest.
        let best = election
            .votes
            .iter()
            .max_by_key(|(_, vote)| (vote.last, Reverse(vote.base)));
        let Some((&from, &vote)) = best.filter(|(_, vote)| vote.last > self.log.last()) else {
            self.lead_if_in_sync(now, out);
            return;
        };
        let after = self.log.committed();
        if vote.base > after.index {
            self.stand_down(now, out);
            return;
        }
        election.stage = Stage::Merging {
            from,
            target: vote.last,
            after,
        };
        self.repeat_to(from, out);
    }

    pub(crate) fn on_fetch(
        &mut self,
        from: ReplicaId,
        view: View,
        after: Viewstamp,
        out: &mut Vec<Command>,
    ) {
        // What we showed in our promise stands only while nothing higher is promised; a log
        // pieced together from before and after would be nobody's.
        let promised = view == self.promised && self.durable == view && !self.bearings.amnesiac;
        if !promised || !matches!(self.role, Role::Following(_)) {
            return;
        }
        let reclaimed = !self.log.has(after);
        let mut entries = self.log.nothing();
        if !reclaimed && after.index < self.log.last().index {
            let first = after.index.next();
            let (end, _) = fit(&self.log, first, self.config.message_bytes_max);
            entries = self.log.slice(first, end);
        }
        if !self.down.contains(from) {
            let message = Message::Suffix {
                view,
                after,
                entries,
                reclaimed,
            };
            out.push(Command::Write {
                to: from,
                bytes: message.encode(),
            });
        }
    }

    pub(crate) fn on_suffix(
        &mut self,
        now: Micros,
        from: ReplicaId,
        view: View,
        suffix: Suffix,
        out: &mut Vec<Command>,
    ) {
        let give_up_at = now + self.spread_timeout();
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        let Stage::Merging {
            from: source,
            target,
            after,
        } = &mut election.stage
        else {
            return;
        };
        if view != self.promised || from != *source || suffix.after != *after {
            return;
        }
        if suffix.reclaimed {
            self.stand_down(now, out);
            return;
        }
        let Some(last) = suffix.entries.last().map(|entry| entry.viewstamp) else {
            return;
        };
        let target = *target;
        *after = last;
        election.give_up_at = give_up_at;
        match self.log.accept(suffix.after, suffix.entries) {
            Accepted::Gap => unreachable!("what precedes the suffix is committed or just merged"),
            Accepted::Unchanged => {}
            Accepted::ChangedAfter(changed) => self.persist_after(changed, out),
        }
        if last < target {
            self.repeat_to(from, out);
        } else {
            self.lead_if_in_sync(now, out);
        }
    }

    /// Our log is as good as any of the quorum's. Leads, unless the log says that others have
    /// gone on without our guest.
    fn lead_if_in_sync(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        let votes = std::mem::take(&mut election.votes);
        if !self.log.in_sync().contains(self.config.me) {
            self.stand_down(now, out);
            return;
        }
        // A merged log contains whatever any voter knows to be committed.
        let known = votes
            .values()
            .map(|vote| vote.commit)
            .filter(|commit| self.log.has(*commit));
        let known = known.map(|commit| commit.index).max();
        self.lead(now, &votes, out);
        if let Some(known) = known.filter(|known| *known > self.log.commit()) {
            self.commit_to(known, out);
        }
    }

    fn stand_down(&mut self, now: Micros, out: &mut Vec<Command>) {
        let until = now + Micros(self.config.timeout.0.saturating_mul(10));
        self.stood_down = Some(StoodDown {
            last: self.log.last(),
            until,
        });
        self.follow(now, out);
    }
}
