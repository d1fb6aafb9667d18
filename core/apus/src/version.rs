//! The version of the group: which forms of messages and entries its members may send each other.
//!
//! Replicas of neighbouring releases are in one group while an operator upgrades it. At a link, each tells the versions
//! that it speaks ([`Event::Speaks`](crate::Event::Speaks)). The group has one version, which the log raises:
//!
//! ```text
//!   replica   0 1 2     0 1 2       0 1 2                      0 1 2
//!   speaks    2 2 2     3 2 2  ..   3 3 3                      3 3 3
//!   group     2         2           2      Version(3) is       3       forms of version 3 may be sent;
//!                                          proposed, committed          a replica that speaks only 2 is refused
//!             ^ each step can be taken back ^                  ^ for ever
//! ```
//!
//! A leader proposes [`EntryKind::Version`] once all members, learners and witness too, have told at their present links
//! that they speak it. The version is in force where the entry is committed. From there on it never falls: it is in the
//! [`Configuration`](crate::Configuration) that a snapshot carries, and in the state that outlives the process.
//!
//! A replica may go back to the former release between its word and the commit. So no replica rests on that word alone:
//!
//! * it sends nothing to a peer that does not speak the group's version, and
//! * no part of the log to one that does not speak the newest version that this log names, committed or not: the entries
//!   after that one may be of its forms, whatever this replica knows to be committed.
//!
//! | what happens | consequence |
//! |---|---|
//! | a member is down, or of the former release | the group keeps its version, and [`Apus::behind`] names the member |
//! | the leader dies before the entry is committed | the next leader has the entry, or proposes it again |
//! | a replica has lost its disk | it learns the version at its first link |
//! | all replicas restart, and their logs were in memory | the next generation begins with the stored version |

use crate::canary::canary;
use crate::{Apus, Command, EntryKind, Role};
use plover_types::wire::Versions;
use plover_types::{Micros, ReplicaId};
use std::collections::BTreeMap;

/// The versions that this replica knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The group's, by committed entries; 0 until one has named it. Never falls.
    pub version: u8,
    /// Those that peers have told at their present links.
    pub peers: BTreeMap<ReplicaId, Versions>,
}

impl Apus {
    /// The group's version, as far as this replica knows; 0 in a group that has named none, which sends only the oldest
    /// forms.
    pub fn version(&self) -> u8 {
        self.told_versions.version
    }

    /// The versions that this replica tells at a link.
    pub fn versions(&self) -> Versions {
        Versions {
            group: self.told_versions.version,
            ..Versions::up_to(self.config.newest_version)
        }
    }

    /// The newest version that the log names, or the group's.
    pub fn named_version(&self) -> u8 {
        self.told_versions
            .version
            .max(self.log.configuration().version)
    }

    /// The members because of which the group's version is not the newest that this replica speaks, and what each speaks;
    /// `None` for one that is not linked. Empty if it is.
    pub fn behind(&self) -> Vec<(ReplicaId, Option<u8>)> {
        let newest = self.config.newest_version;
        let told = |id| self.told_versions.peers.get(&id).map(|it| it.newest);
        let members = self.others().iter().map(|id| (id, told(id)));
        members
            .filter(|(_, speaks)| {
                self.told_versions.version < newest && speaks.is_none_or(|it| it < newest)
            })
            .collect()
    }

    /// A peer has told what it speaks. Its group's version is that of a committed entry.
    pub(crate) fn peer_speaks(
        &mut self,
        peer: ReplicaId,
        versions: Versions,
        out: &mut Vec<Command>,
    ) {
        self.told_versions.peers.insert(peer, versions);
        self.take_version(versions.group, out);
        if !self.speaks(peer, self.told_versions.version) {
            out.push(Command::Version(self.told_versions.version));
        }
    }

    /// A committed entry, a snapshot or a peer names the group's version.
    pub(crate) fn take_version(&mut self, version: u8, out: &mut Vec<Command>) {
        // Only a liar names an older one than any that can be spoken, and it would fit no peer.
        if version > self.told_versions.version && self.versions().oldest <= version {
            self.told_versions.version = version;
            self.persist_state(out);
            out.push(Command::Version(version));
        }
    }

    /// A leader raises the version once all members have told that they speak a newer one.
    pub(crate) fn raise_version(&mut self, now: Micros) {
        let mut common = self.config.newest_version;
        if !canary!(self.config, DeafToVersions) {
            for id in self.others().iter() {
                common = common.min(self.told_versions.peers.get(&id).map_or(0, |it| it.newest));
            }
        }
        let is_settled = self.log.committed().view == self.promised;
        if is_settled && common > self.named_version() {
            // Only a replica that does not lead is refused.
            let _ = self.propose(now, EntryKind::Version(common), Vec::new());
        }
    }

    fn speaks(&self, peer: ReplicaId, version: u8) -> bool {
        let told = self.told_versions.peers.get(&peer);
        told.is_none_or(|it| it.fits(version)) || canary!(self.config, DeafToVersions)
    }

    /// Whether a message to `peer` would be lost, or not be understood.
    pub(crate) fn is_out_of_reach(&self, peer: ReplicaId) -> bool {
        self.down.contains(peer) || !self.speaks(peer, self.told_versions.version)
    }

    /// The same of a message with entries.
    pub(crate) fn is_log_kept_from(&self, peer: ReplicaId) -> bool {
        self.down.contains(peer) || !self.speaks(peer, self.named_version())
    }

    /// The link to `peer` is gone, and the next process there may be of another release.
    pub(crate) fn forget_versions(&mut self, peer: ReplicaId) {
        self.told_versions.peers.remove(&peer);
        if let Role::Leading(leadership) = &mut self.role {
            leadership.selection.suspend();
        }
    }
}
