//! The next step towards a whole group, and words for the operator while there is none.

#[cfg(test)]
mod tests;

use super::cluster::Node;
use plover_lab::control::DaemonStatus;
use plover_lab::operate::MemberChange;
use serde::Deserialize;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How long a spare host has for its replica to start and wait. Then another one gets the place. A start may take 120 s.
const TURN_S: u64 = 180;

/// The members, as a leader's status tells.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    pub voters: Vec<u8>,
    left: Vec<u8>,
    change: Option<Change>,
    silences: Vec<Silence>,
}

#[derive(Debug, Deserialize)]
struct Change {
    add: Option<u8>,
}

#[derive(Debug, Deserialize)]
struct Silence {
    id: u8,
    s: u64,
    /// It was told to.
    stopped: bool,
}

impl Told {
    pub fn of(own: &DaemonStatus) -> Self {
        let told = Value::Object(own.more.clone());
        serde_json::from_value(told).unwrap_or_default()
    }

    /// For how long the leader has not heard this member, in seconds.
    pub fn silent_for_s(&self, id: u8) -> Option<u64> {
        let mut silences = self.silences.iter();
        silences.find(|it| it.id == id).map(|it| it.s)
    }
}

/// The rules of a group, by its configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The guest's name.
    pub guest: &'a str,
    /// The number of its members.
    pub size: usize,
    /// `group.replace_after_s`.
    pub after_s: u64,
    /// The memory that a replica takes.
    pub memory_mib: u64,
    /// The time, in seconds since 1970.
    pub now_s: u64,
}

/// The next thing that a leader's agent does: one in each turn, since a monitor has its time, too.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// The node of a member, or of the one that is being added, is not written down.
    Restore(&'a Node, u8),
    /// The node's member has left, or its place is not needed.
    TakeBack(&'a Node),
    /// A spare host is to take the place of a lost member: Pacemaker starts this replica.
    Give(&'a Node, u8),
    /// The leader is to be ordered to change the members.
    Change(MemberChange),
}

/// A group, and the nodes of the cluster.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub told: Told,
    /// Its leader.
    pub leader: u8,
    pub nodes: &'a [Node],
    pub rules: Rules<'a>,
}

impl<'a> Group<'a> {
    fn node_of(&self, id: u8) -> Option<&'a Node> {
        self.nodes.iter().find(|it| it.is_of(id))
    }

    fn newcomer(&self) -> Option<u8> {
        self.told.change.as_ref().and_then(|it| it.add)
    }

    fn is_short(&self) -> bool {
        self.told.voters.len() < self.rules.size
    }

    /// The replicas that the leader has not heard for so long that they may be replaced.
    fn silent(&self) -> impl Iterator<Item = &Silence> {
        let after_s = self.rules.after_s;
        let silences = self.told.silences.iter();
        silences.filter(move |it| after_s > 0 && it.s >= after_s)
    }

    /// The member that is to be replaced. Not one that was told to stop: who stopped it starts it again. Nor one whose node is
    /// there: it is about to start. Without its node it is not known whether somebody works on that.
    fn lost(&self) -> Option<&Silence> {
        let is_gone = |it: &Node| !it.is_away && !it.can_start;
        let is_gone = |id: u8| self.node_of(id).is_some_and(is_gone);
        let is_other = |id: u8| id != self.leader && self.told.voters.contains(&id);
        let mut silent = self.silent();
        silent.find(|it| is_other(it.id) && !it.stopped && is_gone(it.id))
    }

    /// The spare host that is to take a place, if one is needed and one can: the one that has it, for as long as a start may take,
    /// else another. Each guest asks them in an order of its own, so that the replicas of one lost host go to several.
    fn helper(&self) -> Option<&'a Node> {
        let is_needed = self.is_short() && self.rules.after_s > 0 || self.lost().is_some();
        if self.told.change.is_some() || !is_needed {
            return None;
        }
        let is_new = |id: u8| !self.told.voters.contains(&id) && !self.told.left.contains(&id);
        let can = |it: &&Node| {
            let spare = it.spare.as_ref().filter(|spare| is_new(spare.0));
            let is_free = |id: u8| it.member.is_none_or(|member| member.id == id);
            spare.is_some_and(|spare| is_free(spare.0))
                && it.can_start
                && it.has_room(self.rules.memory_mib)
        };
        let mut able: Vec<&Node> = self.nodes.iter().filter(can).collect();
        able.sort_by_cached_key(|it| {
            let mut hasher = DefaultHasher::new();
            (self.rules.guest, &it.name).hash(&mut hasher);
            hasher.finish()
        });
        let rank = |it: &&&Node| match it.member {
            Some(_) if it.waits() => 0,
            Some(place) if self.rules.now_s < place.given_s.unwrap_or(0) + TURN_S => 1,
            None => 2,
            Some(_) => 3,
        };
        able.iter().min_by_key(rank).copied()
    }

    /// The next step, if there is one.
    pub fn next(&self) -> Option<Step<'a>> {
        let (helper, newcomer) = (self.helper(), self.newcomer());
        let mut belonging = self.told.voters.iter().copied().chain(newcomer);
        let restored = belonging.find_map(|id| {
            let is_its = |it: &&Node| it.member.is_none() && it.is_spare_of(id);
            let known = self.node_of(id);
            let node = self.nodes.iter().find(is_its);
            node.filter(|_| known.is_none()).map(|it| (it, id))
        });
        if let Some((node, id)) = restored {
            return Some(Step::Restore(node, id));
        }
        if let Some(helper) = helper.filter(|it| it.member.is_none()) {
            return Some(Step::Give(helper, helper.spare.as_ref()?.0));
        }
        let belongs = |id: u8| self.told.voters.contains(&id) || newcomer == Some(id);
        let mut needless = self.nodes.iter().filter(|node| {
            let keeps = helper.is_some_and(|helper| helper.name == node.name);
            node.member.is_some_and(|it| !belongs(it.id)) && !keeps
        });
        if let Some(node) = needless.next() {
            return Some(Step::TakeBack(node));
        }
        if let Some(id) = newcomer {
            // It has begun, and was lost: another one can be added then. One that runs cannot be reached, and `plover status`
            // says what to look at.
            let is_gone = |it: &Node| !it.is_away && !it.answers;
            let is_lost =
                self.silent().any(|it| it.id == id) && self.node_of(id).is_some_and(is_gone);
            let change = MemberChange {
                add: None,
                remove: Some(id),
            };
            return is_lost.then_some(Step::Change(change));
        }
        let helper = helper.filter(|it| it.waits())?;
        let lost = self.lost().filter(|_| !self.is_short());
        Some(Step::Change(MemberChange {
            add: helper.spare.clone(),
            remove: lost.map(|it| it.id),
        }))
    }

    /// Why the group has not all its members, if it is not being changed, in words for the operator.
    pub fn lacks(&self) -> Option<String> {
        if self.told.change.is_some() {
            return None;
        }
        let what = match self.lost() {
            _ if self.is_short() => format!(
                "the group has {} members of {}",
                self.told.voters.len(),
                self.rules.size
            ),
            Some(lost) => format!("replica {} is lost", lost.id),
            None => return self.unclear(),
        };
        let then = match self.helper() {
            Some(helper) => format!("{} gets the place", helper.name),
            None if self.rules.after_s == 0 => "add one by hand".into(),
            None => "no spare host is there that has room and can start one".into(),
        };
        Some(format!("{what}: {then}"))
    }

    /// A member that is silent and is not replaced.
    fn unclear(&self) -> Option<String> {
        let mut silent = self.silent();
        let it = silent.find(|it| self.told.voters.contains(&it.id))?;
        let Some(node) = self.node_of(it.id) else {
            return Some(format!(
                "replica {} is silent, and the cluster does not know its node: run `plover fleet apply` with its file",
                it.id
            ));
        };
        let why = match node {
            node if node.answers => "runs, but the leader does not hear it",
            node if node.is_away => return None,
            _ if it.stopped => "was told to stop, and is not replaced by itself",
            _ => "does not run though its host is there",
        };
        Some(format!("replica {} on {} {why}", it.id, node.name))
    }
}

/// Whether a replica is a member, or becomes one: its host is the one where Pacemaker is to run it.
pub(super) fn belongs(own: &DaemonStatus) -> bool {
    let told = Told::of(own);
    let joins = told.change.is_some_and(|change| change.add == Some(own.id));
    let is_member = told.voters.contains(&own.id);
    joins || own.role != "recovering" && is_member
}
