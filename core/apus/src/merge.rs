//! Taking over the best log of a quorum before leading.
//!
//! ```text
//!   a quorum has promised: is another log better? --no--> LEADING, or stand down
//!               | yes
//!               -- Fetch{after} -->               (only while the voter has promised nothing higher)
//!               <-- Suffix{entries} --
//!               ... until the candidate's log ends where that log ends
//!   does its in-sync set name the candidate? --no--> wait for the votes of the others as well;
//!               | yes                                then FOLLOWING, until the log changes
//!   is the quorum one of the members that it names? --no--> ask on
//!               | yes
//!   LEADING
//! ```
//!
//! Merging truncates only where the better log differs. It does not cut back to the commit index
//! first: entries that this replica has acknowledged may be committed although it does not know
//! that yet, and would be lost between the cut and the fetch. A better log contains all committed
//! entries, so an entry that conflicts with it is not committed.

use crate::Command;
use crate::canary::canary;
use crate::election::Stage;
use crate::log::Accepted;
use crate::message::{Batch, Message, Suffix};
use crate::pre_vote::StoodDown;
use crate::replicate::fit;
use crate::{Apus, Contradiction, Role};
use plover_types::{Index, Micros, ReplicaId, View, Viewstamp};
use std::cmp::Reverse;

impl Apus {
    /// With a quorum of promises, this replica's own included, takes over the best log among them.
    pub(crate) fn merge_if_promised(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Electing(election) = &self.role else {
            return;
        };
        // Of equally good logs, takes the one that reaches back farthest.
        let best = election
            .votes
            .iter()
            .filter(|(_, vote)| vote.forgot.is_none())
            .max_by_key(|(_, vote)| (vote.last, Reverse(vote.base)));
        let better = best.filter(|(_, vote)| vote.last > self.log.last());
        let better = better.map(|(from, vote)| (*from, *vote));
        let merged = better.map_or(self.log.last(), |(_, vote)| vote.last);
        let voters = election.voters(merged);
        // A majority of the newer members is enough: a majority of the older ones may be gone for
        // good.
        let newer = better.is_some_and(|(_, vote)| self.is_quorum_by(vote.members, voters));
        if !newer && !self.is_quorum(voters) {
            return;
        }
        let Some((from, vote)) = better else {
            self.lead_if_in_sync(now, out);
            return;
        };
        // The logs may agree up to the end of this one. If they do not, `on_suffix` falls back to
        // what is certainly common.
        let after = self.log.last();
        if vote.base > after.index {
            self.stand_down(now, out);
            return;
        }
        if let Role::Electing(election) = &mut self.role {
            election.stage = Stage::Merging {
                from,
                target: vote.last,
                after,
            };
        }
        self.repeat_to(from, out);
    }

    pub(crate) fn on_fetch(
        &mut self,
        from: ReplicaId,
        view: View,
        after: Viewstamp,
        out: &mut Vec<Command>,
    ) {
        // This log is the one that the promise described only while nothing higher is promised.
        // Afterwards it may change, and the candidate would merge a mixture of two logs.
        let promised = view == self.promised && self.durable == view && !self.recovery.amnesiac;
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
        if !self.is_log_kept_from(from) {
            let message = Message::Suffix(Suffix {
                view,
                after,
                reclaimed,
                count: entries.iter().len() as u64,
            });
            let bytes = message.encode(entries.iter(), Vec::new());
            out.push(Command::Write { to: from, bytes });
        }
    }

    pub(crate) fn on_suffix(
        &mut self,
        now: Micros,
        from: ReplicaId,
        suffix: Suffix,
        entries: Batch<'_>,
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
        if suffix.view != self.promised || from != *source || suffix.after != *after {
            return;
        }
        if suffix.reclaimed {
            // Committed entries are common to both logs. The entry at which that log begins is
            // committed as well, so it is common if this log holds it; the voter checks that.
            let base = election.votes.get(&from).map_or(Index(0), |vote| vote.base);
            let committed = self.log.committed();
            let latest = self.log.at(base.max(committed.index));
            let common = latest.unwrap_or(committed);
            if *after == common {
                self.stand_down(now, out);
            } else {
                *after = common;
                self.repeat_to(from, out);
            }
            return;
        }
        let Some(last) = entries.iter().last().map(|entry| entry.viewstamp) else {
            return;
        };
        let target = *target;
        *after = last;
        election.give_up_at = give_up_at;
        let committed = self.log.commit();
        let accepted = match self.accept(suffix.after, entries, committed) {
            Ok(accepted) => accepted,
            Err(why) => return self.refuse_voter(from, why, out),
        };
        match accepted {
            Accepted::Gap => {
                unreachable!("the entry before the suffix is committed or just merged")
            }
            Accepted::Unchanged => {}
            Accepted::ChangedAfter(changed) => self.persist_after(changed, None, out),
        }
        if last < target {
            self.repeat_to(from, out);
        } else {
            self.lead_if_in_sync(now, out);
        }
    }

    /// The log of a voter contradicts this one. Without its vote the election goes on.
    fn refuse_voter(&mut self, from: ReplicaId, why: Contradiction, out: &mut Vec<Command>) {
        if let Role::Electing(election) = &mut self.role {
            election.votes.remove(&from);
        }
        self.collect_more(out);
        self.refuse(from, why, out);
    }

    /// This log is as good as any of the quorum's. Leads, unless the log says that others have gone
    /// on without this replica's guest.
    fn lead_if_in_sync(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Electing(election) = &self.role else {
            return;
        };
        let promisers = election.voters(self.log.last());
        let named = self.is_eligible();
        // The log that names this replica may be that of a voter that has not answered yet.
        let more_may_tell = !named && self.voters_without(promisers) > 0;
        // The promisers may be no majority of the members that the merged log names.
        let elected = self.is_quorum(promisers) || canary!(self.config, OldMajorityElects);
        if more_may_tell || !elected {
            self.collect_more(out);
            return;
        }
        // The guest may have been lost since the election began.
        if !named || !self.has_state() {
            self.stand_down(now, out);
            return;
        }
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        let votes = std::mem::take(&mut election.votes);
        // The merged log contains every entry that a voter knows to be committed.
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

    /// Asks the members that have not promised yet for their promise.
    fn collect_more(&mut self, out: &mut Vec<Command>) {
        if let Role::Electing(election) = &mut self.role {
            let merged = matches!(election.stage, Stage::Merging { .. });
            election.stage = Stage::Collecting;
            if merged {
                self.repeat_to_all(out);
            }
        }
    }

    pub(crate) fn stand_down(&mut self, now: Micros, out: &mut Vec<Command>) {
        let until = now + Micros(self.config.timeout.0.saturating_mul(10));
        self.stood_down = Some(StoodDown {
            last: self.log.last(),
            until,
        });
        self.follow(now, out);
    }
}
