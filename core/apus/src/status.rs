//! The questions that a caller asks between two events.

use crate::{Apus, Configuration, Entry, Phase, Role, Status};
use plover_types::{Index, Micros, View, Viewstamp};

impl Apus {
    /// When the next [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Micros {
        let role = match &self.role {
            Role::Following(_) => self.election_at.min(self.look_at()),
            Role::PreVoting(pre_vote) => pre_vote.deadline(),
            Role::Electing(election) => election.deadline(),
            Role::Leading(leadership) if self.config.pair => leadership.deadline(Micros::NEVER),
            Role::Leading(leadership) => leadership.deadline(self.config.timeout),
        };
        if self.is_asking() {
            role.min(self.recovery.ask_at)
        } else {
            role
        }
    }

    /// This replica's phase, view, log and counters, for people and tests.
    pub fn status(&self) -> Status {
        let (phase, leader) = match &self.role {
            Role::Following(follower) if self.recovery.amnesiac => {
                (Phase::Recovering, follower.leader)
            }
            Role::Following(follower) => (Phase::Following, follower.leader),
            Role::PreVoting(_) => (Phase::PreVoting, None),
            Role::Electing(_) => (Phase::Electing, None),
            Role::Leading(_) => (Phase::Leading, Some(self.config.me)),
        };
        Status {
            phase,
            view: self.promised,
            leader,
            in_sync: self.log.configuration().in_sync,
            members: self.members(),
            last: self.log.last(),
            commit: self.log.commit(),
            base: self.log.base().index,
            forgot: self.forgot(),
            log_bytes: self.log.bytes(),
            unstored_bytes: match &self.role {
                Role::Leading(leadership) => leadership.unstored.bytes(),
                _ => 0,
            },
            suspected_after: self.suspected_after(),
            version: self.version(),
            doubts: self.recovery.doubt.is_some(),
            awaits_off: self.awaits_off(),
            rejected: self.rejected,
        }
    }

    /// The newest entry that was trimmed away.
    pub fn base(&self) -> Index {
        self.log.base().index
    }

    /// The configuration there. A process that starts with a log is not told of it by an entry.
    pub fn configuration_at_base(&self) -> Configuration {
        self.log.configuration_at_base()
    }

    /// The entry at `index`, while the log holds it. For tests that compare logs.
    pub fn entry(&self, index: Index) -> Option<&Entry> {
        self.log.get(index)
    }

    /// The viewstamp at `index`, if the log holds that entry, or it is the last one that was trimmed.
    pub fn viewstamp(&self, index: Index) -> Option<Viewstamp> {
        self.log.at(index)
    }

    /// The view in which the group's present generation began, as far as this replica knows.
    pub fn generation(&self) -> View {
        self.generation
    }
}
