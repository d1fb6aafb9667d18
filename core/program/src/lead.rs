//! What only the leader does: it cuts off the clients of the leader before it, asks for checkpoints, and trims
//! the log behind them.

use crate::api::Action;
use crate::canary::canary;
use crate::checkpoints::REPEAT;
use crate::phase::Quiet;
use crate::replica::{Replica, propose};
use crate::{Entrance, Entry, Phase};
use plover_types::{Micros, ReplicaId, View};

impl Replica {
    /// This replica leads `view`.
    pub(crate) fn lead(&mut self, view: View) {
        let keeps = canary!(self.config, KeepConnections);
        self.phase.enter(Phase::Leading {
            view,
            asked: false,
            opened: keeps.then_some(self.log.last),
            quiet: Quiet::Reads,
        });
    }

    /// Does what is due.
    pub(crate) fn advance_lead(&mut self, now: Micros, out: &mut Vec<Action>) {
        let Phase::Leading {
            asked,
            opened,
            quiet,
            ..
        } = &mut self.phase
        else {
            return;
        };
        if opened.is_none() {
            // It is repeated only if it was lost, because a second one cuts off new clients.
            let is_lost = self.feed.next > self.log.last.index && now >= self.repeat_at;
            if !*asked || is_lost {
                *asked = true;
                self.repeat_at = now + REPEAT;
                out.push(propose(&Entry::Cut(None)));
            }
            return;
        }
        if !self.config.checkpoints || self.checkpoints.waits(now, self.log.linked) {
            return;
        }
        let bytes = self.feed.bytes;
        let is_quiet = self.feed.open.is_empty();
        let is_due = self.checkpoints.needed
            || *quiet != Quiet::Reads
            || (is_quiet && bytes >= self.config.checkpoint_bytes)
            || bytes >= self.config.checkpoint_bytes_max;
        if is_due && now >= self.repeat_at {
            // Input that the program reads behind the cut would be of connections that are over.
            let is_fed = self.config.entrance == Entrance::Fed || canary!(self.config, CutUnquiet);
            if !is_fed && !matches!(quiet, Quiet::Done(_)) {
                if *quiet == Quiet::Reads {
                    *quiet = Quiet::Asked;
                    out.push(Action::Quiesce);
                }
                return;
            }
            if !is_fed && self.feed.next <= self.log.last.index {
                // The cut may be among these.
                return;
            }
            let pause = if is_fed {
                self.checkpoints.pause()
            } else {
                REPEAT
            };
            self.repeat_at = now + pause;
            let by = self.next_taker();
            out.push(propose(&Entry::Cut(Some(by))));
        }
    }

    /// The replica that takes the next checkpoint: the followers take turns. A leader without followers takes it
    /// itself.
    fn next_taker(&mut self) -> ReplicaId {
        let me = self.config.me;
        let members = self.config.members.iter().filter(|id| *id != me);
        let linked: Vec<_> = members.filter(|id| self.log.linked.contains(*id)).collect();
        self.checkpoints.attempts += 1;
        let place = self.checkpoints.attempts % linked.len().max(1);
        linked.get(place).copied().unwrap_or(me)
    }

    /// Trims the log behind what a majority holds.
    pub(crate) fn trim(&mut self, out: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Leading { .. }) {
            return;
        }
        let early = canary!(self.config, TrimEarly);
        let to = self.checkpoints.trim_to(early);
        if let Some(to) = to.filter(|to| *to > self.log.base) {
            out.push(Action::Trim(to));
        }
    }
}
