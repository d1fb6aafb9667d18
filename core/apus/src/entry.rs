//! Log entries, and the configuration of the group that they name.

use plover_types::{Index, ReplicaSet, View, Viewstamp};
use serde::{Deserialize, Serialize};

/// The kind of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// Starts a view; carries nothing.
    Noop,
    /// Bytes of the application.
    App,
    /// The in-sync set from here on: the only replicas that may lead (PLOVER §4.2). In force as soon
    /// as a replica has the entry in its log.
    InSync(ReplicaSet),
    /// The group's members from here on. In force as soon as a replica has the entry in its log.
    /// The payload is the caller's, such as the addresses of newcomers.
    Members(Members),
    /// The group's version from here on (see `version`). In force where the entry is committed.
    Version(u8),
}

/// The replicas of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// A majority of them elects and commits; 1 to 9.
    pub voters: ReplicaSet,
    /// Replicas that are sent the log, but do not vote or count: they catch up before they vote.
    pub learners: ReplicaSet,
}

impl Members {
    /// A group of voters alone.
    pub fn of(voters: ReplicaSet) -> Self {
        let learners = ReplicaSet::EMPTY;
        Self { voters, learners }
    }

    /// Voters and learners.
    pub fn all(self) -> ReplicaSet {
        ReplicaSet(self.voters.0 | self.learners.0)
    }

    /// How many voters are a majority.
    pub fn quorum(self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Whether these can be a group: 1 to 9 voters, and no replica is voter and learner.
    pub fn are_sane(self) -> bool {
        (1..=VOTERS_MAX).contains(&self.voters.len()) && self.voters.0 & self.learners.0 == 0
    }
}

/// The members by a committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldMembers {
    /// The generation of the group in which it was committed.
    pub generation: View,
    /// Its place in that generation's log.
    pub index: Index,
    /// The members.
    pub members: Members,
    /// The replicas that had left by then.
    pub gone: ReplicaSet,
}

/// The most voters of a group.
pub const VOTERS_MAX: usize = 9;

/// The configuration at one place of the log: the newest [`EntryKind::InSync`],
/// [`EntryKind::Members`] and [`EntryKind::Version`] up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The in-sync set.
    pub in_sync: ReplicaSet,
    /// The members.
    pub members: Members,
    /// The group's version, 0 if none was named.
    pub version: u8,
}

impl Configuration {
    /// Takes in an entry of this kind.
    pub fn note(&mut self, kind: EntryKind) {
        match kind {
            EntryKind::InSync(set) => self.in_sync = set,
            EntryKind::Members(members) => self.members = members,
            EntryKind::Version(version) => self.version = self.version.max(version),
            EntryKind::Noop | EntryKind::App => {}
        }
    }
}

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name and place.
    pub viewstamp: Viewstamp,
    /// Its kind.
    pub kind: EntryKind,
    /// The caller's bytes, in an [`EntryKind::App`] or [`EntryKind::Members`]; empty otherwise.
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
}
