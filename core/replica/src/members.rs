//! The members of a protected guest's group, and how a host is replaced while the guest runs.
//!
//! ```text
//!   replace 1 by 3:  who votes   who learns
//!                    0 1 2       -
//!                    0 1 2       3           3 is sent the log, and the secondary copies its guest there
//!    1 answers:      0 1 2 3     -           once 3 has all of that. If 1 is in sync, another takes its place
//!    1 is dead:      0 2         3           once 3 has the log
//!                    0 2 3       -           1 has left
//! ```
//!
//! Each line is an entry of the log (`apus`, `members`). Its payload says where replicas are reached, which have left, and
//! the change that is under way: so a leader that is elected in the middle goes on with it. A [`GroupRecord`] is the newest
//! such entry that is committed. Replicas keep it on stable storage, link to the members that it names, and tell it to each
//! other once it is stored and when their link comes up.
//!
//! The guest is never less safe than before the change: a voter that answers is not removed before the new one votes and
//! has a whole copy, and never while it is in sync. One that is dead is removed first, because four voters of which one is
//! dead need the other three.
//!
//! The id of a replica that has left is never used again: its votes and its disk can come back at any time. A replica that
//! is told that it has left drops its guest and ends ([`Action::Leave`]); that the log says so is not enough, for after a
//! crash of all hosts the others might wait for it. It cannot harm the group before: its votes count for nobody, and what it
//! asks for is not granted (docs/decisions/0047).
//!
//! | what happens | consequence |
//! |---|---|
//! | the leader dies | the next one goes on with what is left to do |
//! | the new host never answers, or takes no copy | nothing is removed; `plover member remove` of it ends the change |
//! | the new host dies when it votes already | it is a dead member, and the change waits for it; or it is removed |
//! | the old host dies in the middle | it is removed without waiting for the copy |
//! | the replica to be removed leads | it hands over when the guest is protected ([`crate::planned`]) |
//! | it is the secondary | the leader copies its guest to another one, which takes its place in sync |
//! | no majority answers | the change waits, as everything does |
//! | a member is away while all others are replaced | it knows none of the members of now, and they cannot tell it: it asks those that its configuration file names as well ([`Replica::contacts`]) |

mod change;
mod order;
mod record;
#[cfg(test)]
mod tests;

pub use change::ChangeStep;
pub use order::{MemberOrder, MemberRefused};
pub use record::{Change, GroupRecord, RecordPlace};

use crate::api::{Action, Note};
use crate::context::Context;
use crate::replica::Replica;
use apus::Members;
use plover_syncvm::message::Body;
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp, wire};

/// How often the members are told where no leader is known.
const RETELL_EVERY: Micros = Micros::from_ms(1_000);

impl Replica {
    /// Members are committed.
    pub(crate) fn on_members(&mut self, members: Members, at: Viewstamp, payload: &[u8]) {
        let generation = self.cx.group.core.generation();
        match GroupRecord::of_entry(generation, at.index, members, payload) {
            // It leaves when another one tells it, which would still know that after a crash of all.
            Ok(record) if record.left.contains(self.cx.config.me) => {}
            Ok(record) => self.take_record(record),
            Err(error) => {
                let from = self.cx.config.me;
                let why = format!("log entry {}: {error}", at.index);
                self.cx.note(Note::Rejected { from, why });
            }
        }
    }

    /// A peer tells the members that it knows.
    pub(crate) fn on_members_told(&mut self, from: ReplicaId, record: &[u8]) {
        match wire::decode::<GroupRecord>(record) {
            Ok(record) if record.members.are_sane() => self.take_record(record),
            Ok(_) => self.cx.cut_link(from, "members that are no group"),
            Err(error) => {
                let why = format!("members that do not decode: {error}");
                self.cx.cut_link(from, &why);
            }
        }
    }

    fn take_record(&mut self, record: GroupRecord) {
        let cx = &mut self.cx;
        if !record.is_newer_than(&cx.group.record) {
            return;
        }
        let me = cx.config.me;
        cx.group.contacts = record.unknown(cx.group.contacts);
        let others = record.members.all().iter().chain(cx.group.contacts.iter());
        cx.peers.become_of(others.filter(|id| *id != me));
        let Members { voters, learners } = record.members;
        cx.note(Note::Members { voters, learners });
        cx.out.push(Action::Regroup(Box::new(record.clone())));
        cx.group.core.tell_members(record.told());
        let has_left = record.left.contains(me);
        cx.group.record = record;
        if has_left {
            self.leave_group();
        }
    }

    /// The record at `place` is on stable storage.
    pub(crate) fn on_members_persisted(&mut self, place: RecordPlace) {
        let group = &mut self.cx.group;
        group.persisted = group.persisted.max(place);
        self.cx.tell_all_members();
    }

    /// A leader says who the members are. Without one, those who know it say so again and again: the message of the last
    /// leader may be lost, and a replica that waits for one that has left never finds the group empty.
    pub(crate) fn retell_members(&mut self) {
        let now = self.cx.now;
        if now < self.retell_deadline() {
            return;
        }
        self.cx.group.retell_at = now + RETELL_EVERY;
        for peer in self.cx.group.record.known().iter() {
            if self.cx.peers.is_linked(peer) {
                self.cx.tell_members(peer);
            }
        }
    }

    pub(crate) fn retell_deadline(&self) -> Micros {
        let group = &self.cx.group;
        match group.leader.is_none() && group.tells_members() {
            true => group.retell_at,
            false => Micros::NEVER,
        }
    }

    /// A leader is known, so nobody else need say who the members are.
    pub(crate) fn drop_contacts(&mut self) {
        let (group, me) = (&mut self.cx.group, self.cx.config.me);
        if group.leader.is_none() || std::mem::take(&mut group.contacts).is_empty() {
            return;
        }
        let members = group.record.members.all();
        self.cx
            .peers
            .become_of(members.iter().filter(|id| *id != me));
        let record = Box::new(group.record.clone());
        self.cx.out.push(Action::Regroup(record));
    }

    /// This replica is no member any more: its guest is history, and it takes part in nothing.
    fn leave_group(&mut self) {
        if self.leading().is_some() {
            // It was cut off, and does not know yet that others lead.
            self.resign();
            self.drain_consensus();
        }
        self.drop_guest();
        self.become_witness();
        self.cx.has_left = true;
        self.cx.note(Note::Left);
        self.cx.out.push(Action::Leave);
    }

    /// The committed members that this replica knows, and the change under way.
    pub fn group_record(&self) -> &GroupRecord {
        &self.cx.group.record
    }

    /// Replicas that only the configuration file names: this replica links with them, too, while it knows of no leader.
    pub fn contacts(&self) -> ReplicaSet {
        self.cx.group.contacts
    }
}

impl Context {
    /// Tells all that may want to know.
    pub fn tell_all_members(&mut self) {
        let me = self.config.me;
        for peer in self.group.record.known().iter().filter(|id| *id != me) {
            self.tell_members(peer);
        }
    }

    /// Tells a peer the members, once the log has changed them.
    pub fn tell_members(&mut self, peer: ReplicaId) {
        let record = &self.group.record;
        if self.group.tells_members() && record.known().contains(peer) {
            let record = wire::encode(record);
            self.send_bulk(peer, Body::Members { record });
        }
    }

    /// The replicas that vote by the newest members in the log.
    pub fn voters(&self) -> ReplicaSet {
        self.group.core.status().members.voters
    }

    /// The replica that is to be removed, once the one that takes its place votes: it gives up its roles.
    pub fn leaving(&self) -> Option<ReplicaId> {
        let change = self.group.record.change?;
        let voters = self.voters();
        let is_replaced = change.add.is_none_or(|new| voters.contains(new));
        change.remove.filter(|_| is_replaced)
    }

    /// The replica that is to join the group.
    pub fn newcomer(&self) -> Option<ReplicaId> {
        self.group.record.change?.add
    }

    /// Whether this replica is to give up its roles.
    pub fn is_clearing(&self) -> bool {
        self.drained || self.leaving() == Some(self.config.me)
    }

    /// Whether a peer is to have no role that another one can have.
    pub fn spares(&self, peer: ReplicaId) -> bool {
        self.peers.is_drained(peer) || self.leaving() == Some(peer)
    }

    /// All such peers.
    pub fn spared(&self) -> ReplicaSet {
        let leaving = self.leaving().into_iter();
        ReplicaSet(self.peers.drained().0 | ReplicaSet::of(leaving).0)
    }
}
