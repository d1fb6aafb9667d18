//! Newtypes for every identifier and index.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A member of the group, `0..=15`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u8);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// One process of a replica. A replica that was started again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// The replica.
    pub replica: ReplicaId,
    /// Drawn at random at the start of the process.
    pub number: u64,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:016x})", self.replica, self.number)
    }
}

/// A set of replicas, as a bit mask: the in-sync set, a quorum, the members of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicaSet(pub u16);

impl ReplicaSet {
    /// The set without members.
    pub const EMPTY: Self = Self(0);
    /// All possible members.
    pub const ALL: Self = Self(u16::MAX);

    /// The set that holds `ids`.
    pub fn of(ids: impl IntoIterator<Item = ReplicaId>) -> Self {
        let mut set = Self::EMPTY;
        for id in ids {
            set.insert(id);
        }
        set
    }

    /// The members, as a person lists them.
    pub fn in_words(self) -> String {
        let ids: Vec<String> = self.iter().map(|id| id.0.to_string()).collect();
        match ids.as_slice() {
            [] => "no replica".into(),
            [id] => format!("replica {id}"),
            ids => format!("replicas {}", ids.join(", ")),
        }
    }

    /// Adds `id`. Ids above 15 belong to no group and are ignored.
    pub fn insert(&mut self, id: ReplicaId) {
        if id.0 < 16 {
            self.0 |= 1 << id.0;
        }
    }

    /// Takes `id` out.
    pub fn remove(&mut self, id: ReplicaId) {
        if id.0 < 16 {
            self.0 &= !(1 << id.0);
        }
    }

    /// Whether `id` is a member.
    pub fn contains(self, id: ReplicaId) -> bool {
        id.0 < 16 && self.0 & (1 << id.0) != 0
    }

    /// How many members the set has.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no members.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, lowest id first.
    pub fn iter(self) -> impl Iterator<Item = ReplicaId> {
        (0..16u8)
            .map(ReplicaId)
            .filter(move |id| self.contains(*id))
    }
}

/// The answers that a caller waits for: so many, from different replicas of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The replicas whose answers count.
    pub from: ReplicaSet,
    /// How many of them must answer: at least one, at most all.
    pub count: usize,
}

impl Awaited {
    /// One answer of any replica.
    pub const ANY: Self = Self {
        from: ReplicaSet::ALL,
        count: 1,
    };

    /// For a fabric that cannot wait for a number of answers. Waiting for any one of `m - count + 1`
    /// peers is enough: at least one of them is among the first `count` that answer. These are the peers
    /// with the highest ids, which are written to last and so mostly answer late.
    pub fn uncounted(self) -> Self {
        let earlier = self.from.iter().take(self.count.saturating_sub(1));
        Self {
            from: ReplicaSet(self.from.0 & !ReplicaSet::of(earlier).0),
            count: 1,
        }
    }
}

impl fmt::Display for ReplicaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{")?;
        for (i, id) in self.iter().enumerate() {
            write!(f, "{}{id}", if i == 0 { "" } else { "," })?;
        }
        write!(f, "}}")
    }
}

/// A consensus view (a Paxos ballot): a round and the id of its only possible leader. So a view cannot
/// have two leaders. Views compare by round, then by leader.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct View(pub u64);

impl View {
    /// The view before any leader.
    pub const NONE: Self = Self(0);

    /// The view of `round` that `leader` leads. Rounds start at 1.
    pub fn new(round: u64, leader: ReplicaId) -> Self {
        Self((round << 4) | u64::from(leader.0 & 15))
    }

    /// The round of this view; 0 only for [`View::NONE`].
    pub fn round(self) -> u64 {
        self.0 >> 4
    }

    /// The only replica that may lead this view; `None` before the first view.
    pub fn leader(self) -> Option<ReplicaId> {
        (self.round() > 0).then_some(ReplicaId((self.0 & 15) as u8))
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leader() {
            Some(leader) => write!(f, "{}@{leader}", self.round()),
            None => write!(f, "none"),
        }
    }
}

/// A position in the log. The first entry has index 1; index 0 is before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Index(pub u64);

impl Index {
    /// The position after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The name of a log entry: the view it was proposed in, and its index ("Paxos made practical"; APUS
/// §4.1). Viewstamps compare by view, then by index. The log whose last entry has the higher viewstamp is
/// more up to date.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Viewstamp {
    /// The view in which the entry was first proposed.
    pub view: View,
    /// Its place in the log.
    pub index: Index,
}

impl fmt::Display for Viewstamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.view, self.index)
    }
}

/// A guest page frame: byte offset in the guest RAM file divided by [`crate::PAGE_BYTES`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PageNo(pub u32);

/// The number of a syncvm, counted from the guest's first start. The slot that a syncvm ends has the same
/// number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SyncNo(pub u64);

impl SyncNo {
    /// Whether counting could have reached it. One after a much higher number might overflow.
    pub fn is_sane(self) -> bool {
        self.0 <= 1 << 56
    }

    /// The next syncvm.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for SyncNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a frame that a guest has sent: rises by one with every frame held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputNo(pub u64);

/// A keyed 128-bit hash of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub u128);

impl Digest {
    /// Digests as messages carry them: 16 bytes each, little-endian.
    pub fn to_bytes(digests: &[Self]) -> Vec<u8> {
        digests.iter().flat_map(|d| d.0.to_le_bytes()).collect()
    }

    /// The digests that [`Digest::to_bytes`] has written. Fewer than 16 bytes at the end are ignored.
    pub fn of_bytes(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        bytes
            .chunks_exact(16)
            .map(|d| Self(u128::from_le_bytes(d.try_into().unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_in_sync_set_is_listed() {
        assert_eq!(ReplicaSet(6).in_words(), "replicas 1, 2");
        assert_eq!(ReplicaSet(1).in_words(), "replica 0");
        assert_eq!(ReplicaSet::EMPTY.in_words(), "no replica");
    }
}
