//! An operator who replaces hosts in the middle of everything.
//!
//! A new host starts with a configuration file and nothing else. The host that it replaces may be dead for ever by then,
//! or live. Hosts that have left come back in the end, with the disks that they had: those that do not know yet that they
//! have left must be told so, and must harm nobody before.
//!
//! Now and then a fault strikes when an entry that changes the members is in the leader's log and not yet committed: a
//! host dies, or the network falls into two halves.

use crate::faults::{AfterOrder, Fault};
use crate::invariants::replaced_when_copied;
use crate::process::{Process, State};
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::trace::trace;
use crate::world::World;
use plover_replica::{Config, Event, GroupRecord, MemberOrder, Replica};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};
use std::collections::BTreeMap;

/// The part of the seeds in which hosts are replaced.
const CHANCE: f64 = 0.3;

/// The operator edits a file, and starts the replica again.
const NEW_FILE_AFTER: Micros = Micros(50_000);

/// The most hosts there ever are.
const HOSTS_MAX: usize = 8;

/// The operator's work, and the hosts it was done on.
#[derive(Debug)]
pub(crate) struct Replacing {
    rng: Rng,
    comes: bool,
    /// The time between two looks of the operator.
    gap: (u64, u64),
    /// How often a fault strikes at an entry that changes the members.
    fault_at_entry: f64,
    /// The members that the files of new hosts name.
    files: BTreeMap<ReplicaId, ReplicaSet>,
    /// Hosts that are switched off until the end.
    off: ReplicaSet,
    /// New hosts that have a whole copy of the guest.
    copied: ReplicaSet,
    /// The last entry at which a fault could strike.
    seen: Index,
    /// The voters by the newest record that a leader has told.
    voters: ReplicaSet,
}

impl Replacing {
    /// The work of a seed.
    pub fn draw(seed: u64, may_come: bool) -> Self {
        let mut rng = Stream::Replace.of(seed);
        Self {
            comes: may_come && rng.chance(CHANCE),
            gap: rng.pick(&[(100_000, 600_000), (500_000, 3_000_000)]),
            fault_at_entry: rng.pick(&[0.0, 0.2, 0.6]),
            rng,
            files: BTreeMap::new(),
            off: ReplicaSet::EMPTY,
            copied: ReplicaSet::EMPTY,
            seen: Index(0),
            voters: ReplicaSet::EMPTY,
        }
    }

    /// Whether there is any.
    pub fn comes(&self) -> bool {
        self.comes
    }

    /// A replica has had a whole copy of the guest.
    pub fn has_copy(&mut self, who: ReplicaId) {
        self.copied.insert(who);
    }

    /// Its process is gone, and its guest.
    pub fn lost_copy(&mut self, who: ReplicaId) {
        self.copied.remove(who);
    }
}

fn configured(members: ReplicaSet) -> GroupRecord {
    GroupRecord::configured(members.iter().map(|id| (id, id.to_string())).collect())
}

impl World {
    /// The members by the newest record that any host has. Where one leads, only its voters count: a new host may have a
    /// record that all others have lost before they had it on their disks.
    pub(crate) fn group(&self) -> GroupRecord {
        let leader = self
            .leader()
            .and_then(|who| self.process(who).replica.as_deref());
        let voters = leader.map(|replica| replica.group_record().members.voters);
        let counts = |who: ReplicaId| voters.is_none_or(|voters| voters.contains(who));
        let running = self.running().filter(|(who, _)| counts(*who));
        let running = running.map(|(_, replica)| replica.group_record());
        let kept = self.processes.iter().zip(0..);
        let kept = kept.filter(|(_, id)| counts(ReplicaId(*id)));
        let kept = kept.filter_map(|(process, _)| process.disk.group.as_deref());
        let records = running.chain(kept).filter(|record| record.is_of_the_log());
        let newest = records.max_by_key(|record| record.place());
        newest
            .cloned()
            .unwrap_or_else(|| configured(self.scenario.first_members()))
    }

    /// Whether a replica that runs links to this peer.
    pub(crate) fn knows(&self, who: ReplicaId, peer: ReplicaId) -> bool {
        let replica = self.process(who).replica.as_deref();
        replica.is_some_and(|replica| {
            replica.group_record().known().contains(peer) || replica.contacts().contains(peer)
        })
    }

    /// Whether a host is on, and does not know that it has left.
    pub(crate) fn may_start(&mut self, who: ReplicaId) -> bool {
        let record = self.process(who).disk.group.as_deref();
        let has_left = record.is_some_and(|record| record.left.contains(who));
        if has_left {
            self.coverage
                .hit("members: one that has left does not start");
        }
        !has_left && !self.replacing.off.contains(who)
    }

    /// A process that starts takes the members that its disk names, or else those of its file.
    pub(crate) fn name_members(&self, config: &mut Config) {
        let file = self.replacing.files.get(&config.me);
        let file = file.copied().unwrap_or(self.scenario.first_members());
        let kept = self.process(config.me).disk.group.as_deref().cloned();
        config.record = kept.unwrap_or_else(|| configured(file));
        config.contacts = file;
        config.members = config.record.members.voters;
        if !config.members.contains(config.first_leader) {
            let lowest = config.members.iter().next();
            config.first_leader = lowest.expect("a group has voters");
        }
    }

    /// The operator looks whether a host can be replaced, or whether a change should be given up.
    pub(crate) fn replace_one(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let gap = self.replacing.rng.micros(self.replacing.gap);
        self.plan.after(gap, Happening::Replace);
        if self.is_calm() {
            self.invariants.one_fault.is_whole();
        }
        let Some(leader) = self.leader() else { return };
        let group = self.group();
        if let Some(change) = group.change {
            if let Some(id) = change.add.filter(|_| self.replacing.rng.chance(0.05)) {
                self.coverage.hit("members: a change is given up");
                self.order_members(leader, MemberOrder::Remove { id });
            }
            return;
        }
        let voters: Vec<_> = group.members.voters.iter().collect();
        let size = usize::from(group.size);
        if voters.len() > size {
            let id = self.replacing.rng.pick(&voters);
            return self.order_members(leader, MemberOrder::Remove { id });
        }
        let Some(new) = self.new_host(&group) else {
            return;
        };
        let address = new.to_string();
        if voters.len() < size {
            let id = new;
            return self.order_members(leader, MemberOrder::Add { id, address });
        }
        let old = self.replacing.rng.pick(&voters);
        if self.is_calm() && self.replacing.rng.chance(0.4) {
            self.switch_off(old);
            if self.replacing.rng.chance(0.3) {
                return self.order_members(leader, MemberOrder::Remove { id: old });
            }
        }
        // Of hosts that are off, one is replaced first.
        let off = voters.iter().find(|id| self.replacing.off.contains(**id));
        let old = off.copied().unwrap_or(old);
        self.order_members(leader, MemberOrder::Replace { old, new, address });
    }

    fn order_members(&mut self, leader: ReplicaId, order: MemberOrder) {
        trace!(self, "OPERATOR tells {leader}: {order:?}");
        let replica = self.process(leader).replica.as_deref();
        let refused = replica.and_then(|replica| replica.why_not_change_members(&order));
        self.coverage.hit(match refused {
            Some(_) => "members: an order is refused",
            None => "members: an order",
        });
        self.tell(leader, Event::Members(order));
    }

    /// A host that is no member yet: one that was set up before, or another.
    fn new_host(&mut self, group: &GroupRecord) -> Option<ReplicaId> {
        let known = ReplicaSet(group.members.all().0 | group.left.0);
        let spare = self.replacing.files.keys().copied();
        if let Some(spare) = { spare }.find(|id| !known.contains(*id)) {
            return Some(spare);
        }
        if self.processes.len() == HOSTS_MAX {
            return None;
        }
        let new = ReplicaId(self.processes.len() as u8);
        trace!(self, "NEW HOST {new}");
        let mut file = group.members.voters;
        file.insert(new);
        self.replacing.files.insert(new, file);
        self.processes.push(Process::new());
        self.net.add(new, &self.scenario.members, &mut self.plan);
        self.scenario.members.push(new);
        let late = self.replacing.rng.micros((0, 500_000));
        self.plan.after(late, Happening::Restart(new));
        Some(new)
    }

    /// A host dies for ever, as far as anybody knows.
    fn switch_off(&mut self, who: ReplicaId) {
        if self.process(who).state == State::Down {
            return;
        }
        trace!(self, "OFF {who}");
        self.coverage.hit("members: a host dies for ever");
        self.invariants.one_fault.strikes(Fault::Crash(who));
        self.invariants.one_fault.ends();
        self.disturbed_at = self.plan.now();
        self.replacing.off.insert(who);
        self.vanish(who);
    }

    /// Nobody replaces hosts any more. Those that were off come back, also those that have left. The operator brings the
    /// members' files up to date, as a status asks for: a host that has lost its disk knows no others, and one that was
    /// away while all others were replaced knows none that is left.
    pub(crate) fn end_replacing(&mut self) {
        self.replacing.off = ReplicaSet::EMPTY;
        let group = self.group();
        if !group.is_of_the_log() {
            return;
        }
        for who in group.members.all().iter() {
            let mut file = group.members.voters;
            file.insert(who);
            self.replacing.files.insert(who, file);
            let knows_another = |record: &GroupRecord| {
                let known = record.members.all().iter();
                { known }.any(|id| id != who && group.members.all().contains(id))
            };
            let replica = self.process(who).replica.as_deref();
            let record = replica.map(Replica::group_record);
            if record.is_some_and(|it| !it.is_of_the_log() || !knows_another(it)) {
                self.coverage
                    .hit("members: an old file is brought up to date");
                self.ended_by_operator(who);
                self.plan.after(NEW_FILE_AFTER, Happening::Restart(who));
            }
        }
    }

    /// A replica has left the group: its process ends.
    pub(crate) fn leaves(&mut self, who: ReplicaId) {
        self.coverage.hit("members: one learns that it has left");
        self.vanish(who);
    }

    /// A replica hears of new members.
    pub(crate) fn members_change(&mut self, who: ReplicaId, voters: ReplicaSet) {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        let record = replica.group_record();
        if self.leader() != Some(who) {
            return;
        }
        let (left, newest) = (record.left, voters.iter().last());
        self.coverage.hit("members: a leader changes them");
        // The replica that has left with this entry is still linked, and the newest member takes its place.
        let mut before = std::mem::replace(&mut self.replacing.voters, voters);
        if before.is_empty() {
            before = self.scenario.first_members();
        }
        let gone = ReplicaSet(before.0 & left.0).iter().next();
        let (Some(old), Some(new)) = (gone, newest) else {
            return;
        };
        if self.replacing.off.contains(old) {
            return self.coverage.hit("members: a dead one has left");
        }
        self.coverage.hit("members: a live one has left");
        let is_up = self.process(old).state == State::Up;
        let undisturbed = self.invariants.one_fault.is_undisturbed();
        if undisturbed
            && is_up
            && self.scenario.keeps_warm()
            && self.replacing.files.contains_key(&new)
        {
            let check = replaced_when_copied::check(old, new, self.replacing.copied.contains(new));
            self.check(check);
        }
    }

    /// An entry that changes the members is in a leader's log and not committed: perhaps a fault strikes.
    pub(crate) fn at_member_entry(&mut self, who: ReplicaId) {
        if !self.replacing.comes || self.healed_at.is_some() {
            return;
        }
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        let status = replica.consensus_core().status();
        let is_new = status.members != replica.group_record().members
            && status.phase == apus::Phase::Leading
            && status.last.index > self.replacing.seen;
        if !is_new {
            return;
        }
        self.replacing.seen = status.last.index;
        if !self.replacing.rng.chance(self.replacing.fault_at_entry) {
            return;
        }
        self.coverage.hit("members: a fault at an entry");
        if self.replacing.rng.chance(0.5) {
            let hosts = self.scenario.members.clone();
            let next = AfterOrder::draw(&mut self.replacing.rng, &hosts);
            return self.strike_after_order(next);
        }
        let span = self.replacing.rng.micros((150_000, 900_000));
        let late = self.replacing.rng.micros((0, 2_000));
        let mut half = vec![who];
        let others: Vec<_> = status
            .members
            .all()
            .iter()
            .filter(|id| *id != who)
            .collect();
        half.extend(others.iter().filter(|_| self.replacing.rng.chance(0.4)));
        for &there in others.iter().filter(|id| !half.contains(*id)) {
            for &here in &half {
                let cut = Happening::Strike(Fault::Cut(here, there), Some(span));
                self.plan.after(late, cut);
            }
        }
    }
}
