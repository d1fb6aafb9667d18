//! The group's members by the log.

use apus::{Members, ToldMembers};
use plover_types::{Index, ReplicaId, ReplicaSet, View, wire};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change of the members that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The replica that is to vote.
    pub add: Option<ReplicaId>,
    /// The replica that is to leave.
    pub remove: Option<ReplicaId>,
}

/// The generation of the group and the index of an entry that names members.
pub type RecordPlace = (View, Index);

/// The members by the newest committed entry that a replica knows, or by its configuration file. Of two records the one
/// with the greater place is the newer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The generation of the group in which the entry was committed.
    pub generation: View,
    /// Its index; 0 for members by the configuration file.
    pub index: Index,
    /// Voters and learners.
    pub members: Members,
    /// The addresses at which members listen for each other, also of those that have left.
    pub addresses: BTreeMap<ReplicaId, String>,
    /// The replicas that have left. Their ids are never used again.
    pub left: ReplicaSet,
    /// How many the group has when none is being replaced.
    pub size: u8,
    /// The change under way.
    pub change: Option<Change>,
}

/// The payload of an entry that names members.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    addresses: BTreeMap<ReplicaId, String>,
    left: ReplicaSet,
    size: u8,
    change: Option<Change>,
}

impl GroupRecord {
    /// The members by the configuration file.
    pub fn configured(addresses: BTreeMap<ReplicaId, String>) -> Self {
        Self {
            members: Members::of(ReplicaSet::of(addresses.keys().copied())),
            size: addresses.len() as u8,
            addresses,
            ..Self::default()
        }
    }

    /// The record of a committed entry.
    ///
    /// # Errors
    /// The payload is malformed.
    pub(crate) fn of_entry(
        generation: View,
        index: Index,
        members: Members,
        payload: &[u8],
    ) -> Result<Self, wire::WireError> {
        let Payload {
            addresses,
            left,
            size,
            change,
        } = wire::decode(payload)?;
        Ok(Self {
            generation,
            index,
            members,
            addresses,
            left,
            size,
            change,
        })
    }

    /// The record as consensus takes it.
    pub(crate) fn told(&self) -> ToldMembers {
        ToldMembers {
            generation: self.generation,
            index: self.index,
            members: self.members,
            gone: self.left,
        }
    }

    /// The payload of the entry that makes this the group's record.
    pub(crate) fn payload(&self) -> Vec<u8> {
        wire::encode(&Payload {
            addresses: self.addresses.clone(),
            left: self.left,
            size: self.size,
            change: self.change,
        })
    }

    /// Whether it is a group of two, which has no third replica to decide. One of three that has lost a member for the time
    /// being is none, whatever its configuration file says.
    pub fn is_pair(&self) -> bool {
        self.size == 2
    }

    /// Whether the log has said this, and not only the configuration file.
    pub fn is_of_the_log(&self) -> bool {
        self.generation > View::NONE
    }

    /// The place of the entry.
    pub fn place(&self) -> RecordPlace {
        (self.generation, self.index)
    }

    /// Whether this is the newer one of two records.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.place() > other.place()
    }

    /// The members, and the replicas that have left and may still come back to ask: those whose address no member has.
    pub fn known(&self) -> ReplicaSet {
        let members = self.members.all();
        let address = |id: &ReplicaId| self.addresses.get(id);
        let is_taken = |gone: &ReplicaId| members.iter().any(|id| address(&id) == address(gone));
        let gone = self.left.iter().filter(|id| !is_taken(id));
        ReplicaSet(members.0 | ReplicaSet::of(gone).0)
    }

    /// Those of `ids` that this record does not name: they are no members by it, and have not left.
    pub fn unknown(&self, ids: ReplicaSet) -> ReplicaSet {
        ReplicaSet(ids.0 & !self.members.all().0 & !self.left.0)
    }

    /// The record after this one, with other members than those `from` the newest entry in the log. A replica that is
    /// named no more has left.
    pub(crate) fn with(&self, from: Members, to: Members) -> Self {
        let mut next = self.clone();
        next.left.0 |= (self.members.all().0 | from.all().0) & !to.all().0;
        next.members = to;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::forms::assert_form;

    #[test]
    fn its_form_is_that_of_its_version() {
        let record = GroupRecord {
            generation: View(1001),
            index: Index(1002),
            members: Members {
                voters: ReplicaSet(0b1011),
                learners: ReplicaSet(0b10000),
            },
            addresses: [(ReplicaId(3), "h:1".to_string())].into(),
            left: ReplicaSet(0b100),
            size: 3,
            change: Some(Change {
                add: Some(ReplicaId(4)),
                remove: Some(ReplicaId(0)),
            }),
        };
        let told = wire::encode_part(&record, Vec::new());
        let payload = record.payload();
        assert_form("members", &[told, payload[1..].to_vec()]);
        let (generation, index) = (record.generation, record.index);
        let read = GroupRecord::of_entry(generation, index, record.members, &payload);
        assert_eq!(read.unwrap(), record);
    }

    #[test]
    fn a_replica_that_left_is_known_unless_another_one_has_its_address() {
        let address = |id: u8| (ReplicaId(id), format!("h:{id}"));
        let mut record = GroupRecord::configured((0..4).map(address).collect());
        record = record.with(record.members, Members::of(ReplicaSet(0b1101)));
        assert_eq!(record.left, ReplicaSet(0b10));
        assert_eq!(record.known(), ReplicaSet(0b1111));
        record.addresses.insert(ReplicaId(3), "h:1".into());
        assert_eq!(record.known(), ReplicaSet(0b1101));
    }
}
