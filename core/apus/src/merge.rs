//! Taking over the best log of a quorum before leading.
//!
//! ```text
//!   a quorum has promised: is some log better than mine? --no--> LEADING, or stand down
//!               | yes
//!               -- Fetch{after} -->               (only while it has promised nothing higher)
//!               <-- Suffix{entries} --
//!               ... until my log ends where that log ends
//!   am I in the in-sync set that it names? --no--> FOLLOWING, until the log changes
//!               | yes
//!   LEADING
//! ```
//!
//! Merging truncates only where the better log differs, never back to the commit index first:
//! what this replica has acknowledged may be committed without its knowing, and between cutting
//! and fetching it would be lost. A better log contains all that is committed, so a conflict
//! with it proves that what goes was not.

use crate::api::{Command, Entry};
use crate::canvass::StoodDown;
use crate::election::Stage;
use crate::log::Accepted;
use crate::message::Message;
use crate::replicate::fit;
use crate::{Apus, Role};
use plover_types::{Micros, ReplicaId, View, Viewstamp};
use std::cmp::Reverse;

/// A piece of a better log.
#[derive(Debug)]
pub(crate) struct Suffix {
    pub after: Viewstamp,
    pub entries: Vec<Entry>,
    pub reclaimed: bool,
}

impl Apus {
    /// With a quorum of promises, our own included: take over the best log among them.
    pub(crate) fn merge_if_promised(&mut self, now: Micros, out: &mut Vec<Command>) {
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
        // The guest may have been lost since we stood.
        if !self.holds_state || !self.log.in_sync().contains(self.config.me) {
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
