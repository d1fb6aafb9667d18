//! Taking over the best log of a quorum before leading.
//!
//! ```text
//!   a quorum has promised: is some log better than mine? --no--> LEADING, or stand down
//!               | yes
//!               -- Fetch{after} -->               (only while it has promised nothing higher)
//!               <-- Suffix{entries} --
//!               ... until my log ends where that log ends
//!   am I in the in-sync set that it names? --no--> wait for the votes of the others as well;
//!               | yes                              then FOLLOWING, until the log changes
//!   is that quorum one of the group that it names? --no--> ask on
//!               | yes
//!   LEADING
//! ```
//!
//! Merging truncates only where the better log differs, never back to the commit index first:
//! what this replica has acknowledged may be committed without its knowing, and between cutting
//! and fetching it would be lost. A better log contains all that is committed, so a conflict
//! with it proves that what goes was not.

use crate::Command;
use crate::canary::canary;
use crate::election::Stage;
use crate::log::Accepted;
use crate::message::{Batch, Message, Suffix};
use crate::pre_vote::StoodDown;
use crate::replicate::fit;
use crate::{Apus, Role};
use plover_types::{Index, Micros, ReplicaId, View, Viewstamp};
use std::cmp::Reverse;

impl Apus {
    /// With a quorum of promises, our own included: take over the best log among them.
    pub(crate) fn merge_if_promised(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Electing(election) = &self.role else {
            return;
        };
        let voters = election.voters();
        // Of equally good logs the one that reaches back farthest.
        let best = election
            .votes
            .iter()
            .max_by_key(|(_, vote)| (vote.last, Reverse(vote.base)));
        let better = best.filter(|(_, vote)| vote.last > self.log.last());
        let better = better.map(|(from, vote)| (*from, *vote));
        // Our own majority may show us a newer group; and the newer group's majority is enough,
        // for ours may be gone for good.
        let newer = better.is_some_and(|(_, vote)| self.is_quorum_by(vote.members, voters));
        if !newer && !self.is_quorum(voters) {
            return;
        }
        let Some((from, vote)) = better else {
            self.lead_if_in_sync(now, out);
            return;
        };
        // Where an attempt that a rival cut short had come to, or any other place up to which the
        // logs may agree; if they do not, from what is sure to be common.
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
        // What we showed in our promise stands only while nothing higher is promised; a log
        // pieced together from before and after would be nobody's.
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
        if !self.down.contains(from) {
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
            // What is committed is common, and so is, if we hold it, the entry where that log begins,
            // which is committed, too. Its owner looks whether it is.
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
        match self.log.accept(suffix.after, entries, &mut self.pool) {
            Accepted::Gap => unreachable!("what precedes the suffix is committed or just merged"),
            Accepted::Unchanged => {}
            Accepted::ChangedAfter(changed) => self.persist_after(changed, None, out),
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
        let Role::Electing(election) = &self.role else {
            return;
        };
        let promisers = election.voters();
        let named = self.is_eligible();
        // The log that names us may be that of one who has not answered yet.
        let more_may_tell = !named && self.voters_without(promisers) > 0;
        // And the merged log may name another group, whose majority this is not.
        let elected = self.is_quorum(promisers) || canary!(self.config, OldMajorityElects);
        if more_may_tell || !elected {
            self.collect_more(out);
            return;
        }
        // The guest may have been lost since we stood.
        if !named || !self.has_state() {
            self.stand_down(now, out);
            return;
        }
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        let votes = std::mem::take(&mut election.votes);
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

    /// Asks those of the group for their promise that have not given it.
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
