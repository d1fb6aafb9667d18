//! Recovery: a replica that does not know where the group stands asks the others.
//!
//! In memory mode the log is in memory only, so a replica that restarts has forgotten what it
//! acknowledged. If it voted, a candidate could win with its vote and without the entries that are
//! committed only because it once acknowledged them. So it recovers first:
//!
//! ```text
//!   amnesiac -- Recovery{incarnation, round} to all, every timeout -->
//!            <-- RecoveryResponse{promised, Leading(last) | Voting | Empty{fresh}} --
//!
//!   Leading(last) of a view not below its durable promise:
//!            it accepts from that leader; once its log reaches `last`: FOLLOWING
//!   Empty from all: no replica holds the guest: GroupEmpty, once
//! ```
//!
//! # Why one leader's answer is enough
//!
//! In viewstamped replication (VR Revisited §4.3) a recovering replica asks f+1 others, because it
//! forgets its view as well. Here the promise outlives the process. All that replica R acknowledged,
//! it acknowledged in views up to its promise `p`. Take a leader of a view `v >= p` that answers
//! *this* incarnation of R. Entries that were committed in views below `v` are in its log, or it
//! would not lead. Entries that R acknowledged in `v` itself were proposed before the leader
//! answered, so they lie at or below `last`. Hence the log of R, once equal to the leader's up to
//! `last`, holds everything that R's lost acknowledgements could have helped to commit, and R may
//! vote. If the leader is already deposed, R is its backup like any other that has not noticed.
//! So a leader and an amnesiac replica can go on without the third, which may be gone for good.
//!
//! A replica whose state directory is empty may have lost its promise with it (a new disk), so one
//! answer is not enough. It waits for so many answers that one of them comes from any quorum that
//! it may have been part of, and then follows only the highest of the views that they promised.
//! Restarted replicas count there too, for they have kept their promises.

mod empty;

use crate::canary::canary;
use crate::message::{Message, Request, Response, Standing};
use crate::pair::Doubt;
use crate::{Apus, Role};
use crate::{Command, Config, Durability, Members, Start};
use plover_types::{Incarnation, Micros, ReplicaId, ReplicaSet, View, Viewstamp};
use std::collections::BTreeMap;

/// The state of a replica's recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// Names this start of the process.
    incarnation: u64,
    /// It has forgotten what it acknowledged: it does not vote.
    pub amnesiac: bool,
    /// It found no promise when it started, and may have made one.
    promise_unknown: bool,
    /// It knows that it has run before.
    ran: bool,
    /// The state on storage is not true any more: entries were lost, or milestones are not kept now.
    unrecorded: bool,
    /// No leader has heard of this start yet.
    restarted: bool,
    round: u32,
    /// A leader that sent something in this round has been asked again.
    asked_again: bool,
    /// When to ask next.
    pub ask_at: Micros,
    /// Answers of this round.
    answers: BTreeMap<ReplicaId, Answer>,
    /// Amnesiac: the view to recover from, and where its leader's log ended.
    source: Option<(View, Viewstamp)>,
    /// It was stopped, and the other one of the pair may have gone on alone meanwhile (see `pair`).
    pub doubt: Option<Doubt>,
    /// By the newest answers, no replica holds the guest.
    empty: bool,
    /// The empty group was reported to the caller.
    reported: bool,
}

/// A replica's answer.
#[derive(Clone, Copy, Debug)]
struct Answer {
    promised: View,
    members: Members,
    standing: Standing,
}

impl Recovery {
    pub(crate) fn new(config: &Config, start: &Start, now: Micros) -> Self {
        let amnesiac = match start {
            Start::Fresh | Start::PromiseLost { .. } => true,
            Start::Restarted {
                durable, forgotten, ..
            } => match config.durability {
                Durability::Memory => !canary!(config, VoteAfterAmnesia),
                Durability::Disk => *forgotten || durable.amnesiac,
            },
        };
        Self {
            incarnation: config.seed,
            amnesiac,
            promise_unknown: !matches!(start, Start::Restarted { .. }),
            ran: !matches!(start, Start::Fresh),
            unrecorded: match start {
                Start::Restarted {
                    durable, forgotten, ..
                } => {
                    // A milestone of a time with a log in memory would be out of date by then.
                    let outdated = durable.milestone.is_some();
                    *forgotten || outdated && config.durability == Durability::Disk
                }
                _ => false,
            },
            restarted: true,
            round: 0,
            asked_again: false,
            ask_at: now,
            answers: BTreeMap::new(),
            source: None,
            doubt: None,
            empty: false,
            reported: false,
        }
    }

    /// A leader was heard, or a replica that holds the guest: a report of an empty group no longer
    /// holds, and would be repeated.
    pub(crate) fn not_empty(&mut self) {
        self.empty = false;
        self.reported = false;
    }

    /// Whether no replica holds the guest, by the newest answers.
    pub(crate) fn group_is_empty(&self) -> bool {
        self.empty
    }

    /// This replica begins a new generation: there is nothing to recover.
    pub(crate) fn need_none(&mut self) {
        self.amnesiac = false;
        self.promise_unknown = false;
        self.restarted = false;
        self.not_empty();
    }
}

impl Apus {
    /// Whether this replica asks the others where the group stands: after a start until a
    /// leader knows of it, and whenever there is no leader and it cannot become one.
    pub(crate) fn is_asking(&self) -> bool {
        let Role::Following(follower) = &self.role else {
            return false;
        };
        let lost = follower.leader.is_none() && !self.holds_guest();
        let unsure = self.recovery.amnesiac || self.recovery.doubt.is_some();
        unsure || self.recovery.restarted || lost
    }

    /// Whether the group may go on with this replica's guest: it has one, or loads one, in a generation that a leader
    /// has named; the best log of a quorum did not just say that others went on without it; and it
    /// was not stopped, as one of a pair, for so long that the other may have.
    pub(crate) fn holds_guest(&self) -> bool {
        let stood = self.stood_down.as_ref();
        let ruled_out =
            !self.is_eligible() && stood.is_some_and(|stood| stood.last == self.log.last());
        let unsure = ruled_out || self.recovery.doubt.is_some();
        self.generation > View::NONE && (self.has_state() || self.expects_state) && !unsure
    }

    /// Begins a round of asking. Answers of earlier rounds are dropped, so that all answers together
    /// describe nearly one moment.
    pub(crate) fn ask_all(&mut self, now: Micros, out: &mut Vec<Command>) {
        if std::mem::take(&mut self.recovery.unrecorded) {
            // From now on storage gets copied entries, and the next start could take them for a
            // whole log. So storage first records the amnesia.
            self.persist_state(out);
        }
        self.recovery.round = self.recovery.round.wrapping_add(1);
        self.recovery.ask_at = now + self.config.timeout;
        // Also those that have joined while this replica was away, and of which it knows by the last round's answers.
        let everyone = self.everyone_named().0 | self.everyone_known().0;
        self.recovery.answers.clear();
        self.recovery.asked_again = false;
        for peer in ReplicaSet(everyone).iter() {
            self.ask(peer, out);
        }
        self.report_if_empty(out);
    }

    pub(crate) fn ask(&mut self, peer: ReplicaId, out: &mut Vec<Command>) {
        let request = Request {
            incarnation: self.recovery.incarnation,
            round: self.recovery.round,
            promised: self.promised,
            last: self.log.last(),
            commit: self.log.committed(),
            restarted: self.recovery.restarted,
        };
        self.send(peer, &Message::Recovery(request), out);
    }

    pub(crate) fn on_recovery(
        &mut self,
        now: Micros,
        from: ReplicaId,
        request: Request,
        out: &mut Vec<Command>,
    ) {
        self.round_max = self.round_max.max(request.promised.round());
        let is_member = self.members().all().contains(from);
        if is_member && matches!(self.role, Role::Leading(_)) && request.promised > self.promised {
            // A member has promised a higher view and can only follow that or a newer one.
            self.follow(now, out);
        }
        let response = Response {
            incarnation: request.incarnation,
            round: request.round,
            promised: self.promised,
            members: self.members(),
            standing: self.standing(),
        };
        self.send(from, &Message::RecoveryResponse(response), out);
        self.resend_from_its_end(now, from, &request, out);
        let process = Incarnation {
            replica: from,
            number: request.incarnation,
        };
        self.leader_has_restarted(now, process, out);
    }

    fn standing(&self) -> Standing {
        match &self.role {
            Role::Leading(_) => Standing::Leading(self.log.last()),
            Role::Following(follower) if follower.leader.is_none() && !self.holds_guest() => {
                Standing::Empty(self.what_is_left())
            }
            _ => Standing::Voting,
        }
    }

    pub(crate) fn on_recovery_response(
        &mut self,
        now: Micros,
        from: ReplicaId,
        response: Response,
        out: &mut Vec<Command>,
    ) {
        let recovery = &mut self.recovery;
        if (response.incarnation, response.round) != (recovery.incarnation, recovery.round) {
            return;
        }
        self.round_max = self.round_max.max(response.promised.round());
        let answer = Answer {
            promised: response.promised,
            members: response.members,
            standing: response.standing,
        };
        recovery.answers.insert(from, answer);
        if !matches!(response.standing, Standing::Empty(_)) {
            recovery.not_empty();
        }
        if self.is_asking() {
            self.find_leader(now, out);
            self.report_if_empty(out);
        }
    }

    /// Looks for a leader to recover from among the answers.
    fn find_leader(&mut self, now: Micros, out: &mut Vec<Command>) {
        let answers = &self.recovery.answers;
        let leading = answers.values().filter_map(|answer| match answer.standing {
            Standing::Leading(last) => Some((answer.promised, last)),
            _ => None,
        });
        let Some((view, last)) = leading.max().filter(|(view, _)| *view >= self.promised) else {
            return;
        };
        if self.recovery.promise_unknown {
            // One member of any quorum that this replica may have been part of has answered, by the members that those name
            // who answer: the configured ones may have been replaced since.
            let is_enough = |named: Members| {
                let voters = answers.keys().filter(|id| named.voters.contains(**id));
                voters.count() > named.voters.len() - named.quorum()
            };
            let highest = answers.values().map(|answer| answer.promised).max();
            let all = answers.values().all(|answer| is_enough(answer.members));
            if !all || highest > Some(view) {
                return;
            }
        }
        self.recovery.restarted = false;
        if view == self.promised {
            self.leader_told(view, last.index);
        }
        if self.recovery.amnesiac && self.recovery.source.is_none_or(|(old, _)| old != view) {
            self.recovery.source = Some((view, last));
            if view > self.promised {
                self.promise(view, out);
                self.follow(now, out);
            }
        }
    }

    /// Whether entries of `view` may be accepted: always, unless this replica has forgotten what it
    /// accepted before. Then only from a leader that has answered this incarnation; another one is
    /// asked at once, without waiting for the next round.
    pub(crate) fn may_accept_from(&mut self, view: View, out: &mut Vec<Command>) -> bool {
        if !self.recovery.amnesiac || self.recovery.source.is_some_and(|(known, _)| known == view) {
            return true;
        }
        if let Some(leader) = view.leader() {
            if !std::mem::replace(&mut self.recovery.asked_again, true) {
                self.ask(leader, out);
            }
        }
        false
    }

    /// Ends the amnesia once the log holds everything that this replica may have acknowledged. In disk mode storage
    /// has to hold it: the next start trusts what it finds there.
    pub(crate) fn check_recovered(&mut self, out: &mut Vec<Command>) {
        self.check_doubt();
        let Role::Following(follower) = &self.role else {
            return;
        };
        let Some((view, last)) = self.recovery.source else {
            return;
        };
        let stored = match self.config.durability {
            Durability::Disk if !canary!(self.config, RecoverBeforeDisk) => self.log.confirmed(),
            Durability::Disk | Durability::Memory => self.counted(),
        };
        let held = follower.matched.min(stored);
        if view == self.promised && view == self.durable && held >= last.index {
            self.recovery.amnesiac = false;
            // A lost promise is known again; storage does not have it yet.
            let had_none = std::mem::take(&mut self.recovery.promise_unknown);
            self.recovery.source = None;
            let begins = self.begin_milestones();
            let disk = self.config.durability == Durability::Disk;
            if begins || disk || (had_none && self.recovery.ran) {
                // The next start may trust the log on storage.
                self.persist_state(out);
            }
        }
    }
}
