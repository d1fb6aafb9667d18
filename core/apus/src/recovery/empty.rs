//! Whether any replica has a guest to go on with, or a log, when nobody leads.

use crate::message::{Empty, Standing};
use crate::{Apus, Command, Configuration};
use plover_types::{ReplicaId, ReplicaSet, View};

impl Apus {
    /// The state that this replica has left when there is no leader.
    pub(super) fn what_is_left(&self) -> Empty {
        Empty {
            fresh: self.never_ran(),
            guest: self.generation > View::NONE && (self.has_state() || self.expects_state),
            last: self.log.last(),
            configuration: self.log.configuration(),
        }
    }

    fn never_ran(&self) -> bool {
        let recovery = &self.recovery;
        recovery.promise_unknown && !recovery.ran && self.promised == View::NONE
    }

    /// The replicas that must have answered before the group is taken for empty. One that has answered may know of members
    /// that joined while this replica was away.
    pub(super) fn everyone_known(&self) -> ReplicaSet {
        let mut known = self.everyone_named();
        if self.keeps_members() {
            // A learner has no guest to go on with.
            known.0 &= !self.members().learners.0;
            for answer in self.recovery.answers.values() {
                known.0 |= answer.members.voters.0;
            }
            known.0 &= !self.gone().0;
        }
        self.without_me(known)
    }

    /// Tells the caller if there is no guest to go on with: all replicas have answered, and the best
    /// of all logs names no replica that still has a guest. A replica whose own log does not name it
    /// cannot know that without the others.
    pub(super) fn report_if_empty(&mut self, out: &mut Vec<Command>) {
        let answers = &self.recovery.answers;
        let mut left = vec![(self.config.me, self.what_is_left())];
        let empty = answers.iter().filter_map(|(id, said)| match said.standing {
            Standing::Empty(empty) => Some((*id, empty)),
            _ => None,
        });
        left.extend(empty);
        let heard = |id: ReplicaId| left.iter().any(|(from, _)| *from == id);
        let votes = match self.keeps_members() {
            true => self.settled_members().voters.contains(self.config.me),
            false => self.is_voter(),
        };
        if !self.everyone_known().iter().all(heard) || !votes || self.holds_guest() {
            return;
        }
        let best = left
            .iter()
            .map(|(_, empty)| empty)
            .max_by_key(|empty| empty.last);
        let configuration = best.map_or(Configuration::default(), |best| best.configuration);
        let named = if self.config.any_voter_stands {
            configuration.members.voters
        } else {
            configuration.in_sync
        };
        if left
            .iter()
            .any(|(id, empty)| empty.guest && named.contains(*id))
        {
            // The named replica will stand for election again, and merge the best log.
            return self.recovery.not_empty();
        }
        let fresh = left.iter().all(|(_, empty)| empty.fresh);
        self.recovery.empty = true;
        if !std::mem::replace(&mut self.recovery.reported, true) {
            out.push(Command::GroupEmpty { fresh });
        }
    }
}
