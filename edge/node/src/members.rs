//! The members by the log, beside those of the configuration file.
//!
//! A group begins with the members of the file. Once the log has changed them, it alone counts: a replica keeps what it
//! says (`storage`), links to the replicas that it names, and only tells the operator that the file is out of date.

use crate::config::{GroupConfig, PeerConfig, ReplicaConfig, SpareConfig};
use crate::fabric::FabricName;
use plover_replica::GroupRecord;
use plover_types::{ReplicaId, ReplicaSet};

impl PeerConfig {
    fn of(spare: &SpareConfig) -> Self {
        Self {
            id: spare.id,
            address: spare.address,
            fabric: None,
        }
    }
}

impl GroupConfig {
    /// Gives a spare replica the place of a member in its own list, which it needs to wait: that of the last one that does not
    /// lead first.
    pub(crate) fn seat(&mut self) {
        let me = self.me;
        let spare = self.spare.iter().position(|it| it.id == me);
        let first = self.first_leader();
        let is_free = |it: &PeerConfig| it.id != first;
        let place = self.replica.iter().rposition(is_free);
        let (Some(spare), Some(place)) = (spare, place) else {
            return;
        };
        if self.replica.iter().any(|it| it.id == me) {
            return;
        }
        let own = PeerConfig::of(&self.spare[spare]);
        let other = std::mem::replace(&mut self.replica[place], own);
        self.spare[spare] = SpareConfig {
            id: other.id,
            address: other.address,
        };
        self.is_spare = true;
    }

    /// Takes the hosts that another file names.
    pub(crate) fn take_members(&mut self, from: &Self) {
        self.replica.clone_from(&from.replica);
        self.spare.clone_from(&from.spare);
        self.is_spare = from.is_spare;
    }

    /// The replica that boots the guest of a new group: the lowest id, if the file names none.
    pub fn first_leader(&self) -> u8 {
        let lowest = self.replica.iter().map(|it| it.id).min();
        self.first_leader.or(lowest).unwrap_or_default()
    }

    /// Whether this replica is one of the spare hosts. [`Self::replica`] has it in the place of another one then, which is in
    /// [`Self::spare`]: the members that there will be are known when it is added.
    pub fn is_spare(&self) -> bool {
        self.is_spare
    }

    /// The replicas and the spare ones that the file names.
    pub(crate) fn named(&self) -> impl Iterator<Item = PeerConfig> {
        let spare = self.spare.iter().map(PeerConfig::of);
        self.replica.iter().cloned().chain(spare)
    }

    /// The members by the file.
    pub(crate) fn record(&self) -> GroupRecord {
        let address = |peer: &PeerConfig| (ReplicaId(peer.id), peer.address.to_string());
        GroupRecord::configured(self.replica.iter().map(address).collect())
    }

    /// This group with the replicas that the log names, and those that have left and may come back. This replica listens
    /// where the file says.
    pub(crate) fn linked(&self, record: &GroupRecord) -> Self {
        if !record.is_of_the_log() {
            return self.clone();
        }
        let own = self.replica.iter().find(|peer| peer.id == self.me);
        let others = record.known().iter().filter(|id| id.0 != self.me);
        let others = others.filter_map(|id| {
            let address = record.addresses.get(&id)?.parse().ok()?;
            Some(PeerConfig {
                id: id.0,
                address,
                fabric: None,
            })
        });
        Self {
            replica: own.into_iter().cloned().chain(others).collect(),
            ..self.clone()
        }
    }

    /// The group with which a replica that has kept this record begins: those that the record names, and those that only
    /// the file names, for all others may have been replaced meanwhile. The file's own members if there is no record.
    pub(crate) fn linked_at_start(&self, record: Option<&GroupRecord>) -> Self {
        let record = record.cloned().unwrap_or_else(|| self.record());
        let contacts = self.contacts(&record);
        let mut group = self.linked(&record);
        let is_asked = |peer: &PeerConfig| contacts.contains(ReplicaId(peer.id));
        group.replica.extend(self.named().filter(is_asked));
        group
    }

    /// The replicas that only the file names, if the log has changed the members; or if this replica is a spare one, which
    /// does not know who they are.
    pub(crate) fn contacts(&self, record: &GroupRecord) -> ReplicaSet {
        let named = self.named().map(|peer| ReplicaId(peer.id));
        match record.is_of_the_log() || self.is_spare {
            true => record.unknown(ReplicaSet::of(named)),
            false => ReplicaSet::EMPTY,
        }
    }

    /// In which way the file is out of date, for the operator.
    pub(crate) fn stale(&self, record: &GroupRecord) -> Option<String> {
        // While a change is under way, the members of now are not those of soon.
        if !record.is_of_the_log() || record.change.is_some() {
            return None;
        }
        let mut told = record.addresses.clone();
        told.retain(|id, _| record.members.all().contains(*id));
        let (size, has) = (usize::from(record.size), told.len());
        if has < size {
            return Some(format!(
                "{has} of the group's {size} members are left: add another one with `plover member add`, and leave \
                 [[group.replica]] with {size} replicas until then, since a shorter one is a smaller group's"
            ));
        }
        let named = self.record().addresses;
        if told == named {
            return None;
        }
        let words = told.iter().map(|(id, at)| format!("{} at {at}", id.0));
        let words: Vec<_> = words.collect();
        let is_gone = |first: &u8| !told.contains_key(&ReplicaId(*first));
        let first = match self.first_leader.filter(is_gone) {
            Some(_) => ", and leave group.first_leader out",
            None => "",
        };
        Some(format!(
            "the members in the configuration file are out of date, and the group's log counts: change its \
             [[group.replica]] to {}{first}",
            words.join(", ")
        ))
    }
}

impl ReplicaConfig {
    /// Why the members of this group cannot change, for the operator.
    pub(crate) fn why_fixed(&self) -> Option<&'static str> {
        let own = self.group.fabric;
        let mut named = self.group.replica.iter().filter_map(|peer| peer.fabric);
        (own != FabricName::Tcp || named.any(|name| name != FabricName::Tcp)).then_some(
            "hosts are replaced while the guest runs only where all replicas have fabric = \"tcp\"; here, stop all \
             replicas and change [[group.replica]] on each host",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus::Members;
    use plover_types::{Index, ReplicaSet, View};

    #[test]
    fn the_log_counts_and_the_file_is_told_to_be_stale() {
        let replica = |id: u8| format!("[[replica]]\nid = {id}\naddress = \"192.0.2.{id}:7700\"\n");
        let text = [
            "name = \"shop\"\nme = 0\n".to_string(),
            replica(0),
            replica(1),
            replica(2),
        ];
        let group: GroupConfig = toml::from_str(&text.concat()).unwrap();
        let mut record = group.record();
        assert_eq!(group.stale(&record), None);
        record.generation = View(16);
        record.index = Index(7);
        assert_eq!(group.stale(&record), None, "it says the same");
        record.members = Members::of(ReplicaSet(0b1101));
        record.left.insert(ReplicaId(1));
        record
            .addresses
            .insert(ReplicaId(3), "192.0.2.3:7700".into());
        let why = group.stale(&record).unwrap();
        assert!(
            why.contains("0 at 192.0.2.0:7700, 2 at 192.0.2.2:7700, 3 at 192.0.2.3:7700"),
            "{why}"
        );
        let ids = |group: &GroupConfig| group.replica.iter().map(|it| it.id).collect::<Vec<_>>();
        let mut short = record.clone();
        short.members = Members::of(ReplicaSet(0b101));
        let why = group.stale(&short).unwrap();
        assert!(why.contains("2 of the group's 3 members"), "{why}");
        assert_eq!(ids(&group.linked(&record)), [0, 1, 2, 3], "1 may come back");
        record
            .addresses
            .insert(ReplicaId(3), "192.0.2.1:7700".into());
        assert_eq!(ids(&group.linked(&record)), [0, 2, 3], "3 has its address");
    }

    /// Its list has it in the place of the last member that does not lead first, and it asks all others.
    #[test]
    fn a_spare_replica_waits_with_the_others_as_contacts() {
        let text = |me: u8| {
            let host = |id: u8| format!("{{ id = {id}, address = \"192.0.2.{id}:7700\" }}");
            let list = |ids: [u8; 3]| ids.map(host).join(", ");
            format!(
                "name = \"shop\"\nme = {me}\nfirst_leader = 2\nplaintext = true\nreplica = [{}]\nspare = [{}]\n",
                list([0, 1, 2]),
                list([3, 4, 5])
            )
        };
        let group = |me: u8| {
            let mut group: GroupConfig = toml::from_str(&text(me)).unwrap();
            group.seat();
            group
        };
        let ids = |group: &GroupConfig| group.replica.iter().map(|it| it.id).collect::<Vec<_>>();
        let member = group(1);
        assert_eq!((ids(&member), member.is_spare), (vec![0, 1, 2], false));
        assert_eq!(ids(&member.linked_at_start(None)), [0, 1, 2]);
        let spare = group(4);
        spare.check().unwrap();
        assert_eq!((ids(&spare), spare.is_spare), (vec![0, 4, 2], true));
        assert_eq!(spare.contacts(&spare.record()), ReplicaSet(0b101010));
        assert_eq!(ids(&spare.linked_at_start(None)), [0, 4, 2, 3, 1, 5]);
        let why = group(6).check().unwrap_err();
        assert!(why.contains("group.me = 6"), "{why}");
        let mut pair = group(0);
        pair.replica.pop();
        pair.first_leader = None;
        let why = pair.check().unwrap_err();
        assert!(why.contains("[[group.spare]] needs"), "{why}");
    }

    /// It was away while 1 was replaced by 3, and knows of it; then 2 and 3 were replaced by 4 and 5.
    #[test]
    fn a_replica_that_was_away_asks_those_that_its_file_names() {
        let replica = |id: u8| format!("[[replica]]\nid = {id}\naddress = \"192.0.2.{id}:7700\"\n");
        let text = ["name = \"shop\"\nme = 0\n".to_string()].into_iter();
        let text: String = text.chain([0, 4, 5].map(replica)).collect();
        let group: GroupConfig = toml::from_str(&text).unwrap();
        let addresses = (0..4).map(|id| (ReplicaId(id), format!("192.0.2.{id}:7700")));
        let mut record = GroupRecord::configured(addresses.collect());
        assert_eq!(
            group.contacts(&record),
            ReplicaSet::EMPTY,
            "a file's record"
        );
        record.generation = View(16);
        record.members = Members::of(ReplicaSet(0b1101));
        record.left = ReplicaSet(0b10);
        assert_eq!(group.contacts(&record), ReplicaSet(0b110000));
        let ids = |group: &GroupConfig| group.replica.iter().map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(
            ids(&group.linked_at_start(Some(&record))),
            [0, 1, 2, 3, 4, 5]
        );
        assert_eq!(ids(&group.linked_at_start(None)), [0, 4, 5]);
        record.left = ReplicaSet(0b110010);
        assert_eq!(group.contacts(&record), ReplicaSet::EMPTY, "they have left");
    }
}
