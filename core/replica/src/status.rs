//! A snapshot for people and tests.

use crate::api::Role;
use crate::copy::target::CopyTarget;
use crate::guest::Power;
use crate::phase::Phase;
use crate::replica::Replica;
use apus::Apus;
use plover_policy::Policy;
use plover_types::{Index, Micros, PageNo, PageSet, ReplicaId, ReplicaSet, SyncNo, View};
use serde::Serialize;

/// Where a replica stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaStatus {
    /// This replica.
    pub id: ReplicaId,
    /// Its role.
    pub role: Role,
    /// The view it is in.
    pub view: View,
    /// The group's leader, if this replica knows it.
    pub leader: Option<ReplicaId>,
    /// The version of the wire forms that the group has agreed on; 0 if it has not yet.
    pub version: u8,
    /// The newest version that this replica speaks.
    pub version_newest: u8,
    /// The members because of which the group has an older one, and what each speaks if it is linked.
    pub version_waits_for: Vec<(ReplicaId, Option<u8>)>,
    /// The newest committed in-sync set.
    pub in_sync: ReplicaSet,
    /// Whether the guest would survive the loss of any one replica.
    pub protected: bool,
    /// Whether it faces clients and may answer them now.
    pub serving: bool,
    /// Whether its guest runs.
    pub guest_running: bool,
    /// Whether it has a guest whose state counts.
    pub holds_state: bool,
    /// The newest syncvm it knows.
    pub sync: SyncNo,
    /// Frames in the guard.
    pub held_outputs: usize,
    /// How long the guest must look idle, as learnt of it (PLOVER §4.3).
    pub idle_threshold: Micros,
    /// How long a busy guest may run while outputs wait.
    pub slot_longest: Micros,
    /// Last committed log entry.
    pub commit: Index,
    /// The silence after which the leader is suspected at present.
    pub suspected_after: Micros,
    /// Messages that did not decode.
    pub rejected: u64,
    /// How warm a witness is, as the replica knows that keeps it so.
    pub warm: Option<WarmStatus>,
    /// Bytes of pages that this replica has sent in copies, to joiners and to keep a witness warm.
    pub copied_bytes: u64,
    /// The replica whose pages this witness keeps. That one knows whether it has all of them.
    pub keeps_copy_of: Option<ReplicaId>,
    /// Whether the secondary's guest rests, as its leader decides under a policy that lets it.
    pub rest: Option<RestStatus>,
}

/// Whether the secondary's guest rests, and what slots of either kind yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RestStatus {
    /// It rests in this slot.
    pub now: bool,
    /// The slots with outputs in which it has rested.
    pub slots: u64,
    /// It usually rests while the guest answers.
    pub usually: bool,
    /// The other kind of slot is being measured.
    pub trying: bool,
    /// Frames a second that slots release in which it runs, if that is known.
    pub running_per_s: Option<u64>,
    /// The share of these that left before their sync, in percent.
    pub early_percent: u64,
    /// Frames a second that slots release in which it rests, if that is known.
    pub resting_per_s: Option<u64>,
}

/// A witness's copy, as its source knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WarmStatus {
    /// The witness.
    pub peer: ReplicaId,
    /// Whether it takes pages at present.
    pub open: bool,
    /// Whether it has had all that it keeps, and lacks only what has changed since.
    pub whole: bool,
    /// Pages that it may hold otherwise than this side, of those that it keeps.
    pub behind: u32,
    /// How many it keeps.
    pub of: u32,
}

impl Replica {
    /// The consensus core, to be looked at from outside.
    pub fn consensus_core(&self) -> &Apus {
        &self.cx.group.core
    }

    /// How its guest is protected.
    pub fn policy(&self) -> &Policy {
        &self.cx.config.policy
    }

    /// The group: voters and learners.
    pub fn members(&self) -> ReplicaSet {
        self.cx.group.record.members.all()
    }

    /// The leader that this replica follows, if it knows one.
    pub fn followed(&self) -> Option<ReplicaId> {
        let leader = self.cx.group.leader;
        leader.filter(|leader| *leader != self.cx.config.me)
    }

    /// The pages that this side owes, to be looked at from outside.
    pub fn owed(&self) -> &PageSet {
        self.cx.memory.ledger.owed()
    }

    /// Whether, as far as this source of a copy knows, its target may hold `page` otherwise; to be
    /// looked at from outside. `None` if it is no source, or its target has not answered.
    pub fn warm_copy_owes(&self, page: PageNo) -> Option<bool> {
        let stream = self.cx.peers.copy().filter(|stream| stream.is_open)?;
        Some(stream.owed().contains(page) || stream.is_in_flight(page))
    }

    fn target(&self) -> Option<&CopyTarget> {
        match &self.phase {
            Phase::Witness { copy } => copy.as_ref(),
            Phase::Joining { copy } => Some(copy),
            _ => None,
        }
    }

    /// How many inputs wait for this side's guest to be as far as the leader's was; to be looked at
    /// from outside.
    pub fn inputs_paced(&self) -> usize {
        self.cx.guest.paced_inputs()
    }

    /// How many bytes inputs of this slot have been waited for in vain; to be looked at from outside.
    pub fn paced_in_vain(&self) -> u64 {
        self.cx.guest.pace.missing
    }

    /// The stream that this replica is the source of and its target, or that its own copy follows
    /// and its source; to be looked at from outside.
    pub fn warm_stream(&self) -> Option<(u64, ReplicaId)> {
        let source = self.cx.peers.copy().map(|stream| (stream.id, stream.peer));
        let target = || {
            let target = self.target()?;
            Some((target.follows?, target.source))
        };
        source.or_else(target)
    }

    /// Where it stands at the last event.
    pub fn status(&self) -> ReplicaStatus {
        let consensus = self.cx.group.core.status();
        let leader = match &self.phase {
            Phase::Leader(leader) => Some(leader),
            _ => None,
        };
        let serving = leader.is_some_and(|leader| leader.serving);
        ReplicaStatus {
            id: self.cx.config.me,
            role: self.role(),
            view: self.cx.group.view,
            leader: self.cx.group.leader,
            version: consensus.version,
            version_newest: self.cx.config.newest_version,
            version_waits_for: self.cx.group.core.behind(),
            in_sync: self.cx.group.in_sync,
            protected: leader.is_some_and(|leader| leader.is_protected(&self.cx)),
            serving: serving && self.cx.now < self.cx.group.core.lease_until(),
            guest_running: self.cx.guest.power == Power::Running,
            holds_state: self.holds_state(),
            sync: self.cx.group.sync_no,
            held_outputs: self.cx.outputs.guard.len(),
            idle_threshold: self.cx.guest.activity.threshold(),
            slot_longest: self.cx.rules.slot.longest(),
            commit: consensus.commit,
            suspected_after: consensus.suspected_after,
            rejected: consensus.rejected,
            warm: self.warm_status(),
            copied_bytes: self.cx.copies.bytes,
            keeps_copy_of: self
                .target()
                .filter(|target| self.role() == Role::Witness && target.follows.is_some())
                .map(|target| target.source),
            rest: leader.filter(|_| self.cx.may_rest()).map(|leader| {
                let rule = &self.cx.rules.rest;
                RestStatus {
                    now: leader.slot.rests,
                    slots: rule.slots_rested(),
                    usually: rule.usually_rests(),
                    trying: rule.is_trying(),
                    running_per_s: rule.running().per_s(),
                    early_percent: rule.running().early_percent(),
                    resting_per_s: rule.resting().per_s(),
                }
            }),
        }
    }

    fn warm_status(&self) -> Option<WarmStatus> {
        if matches!(&self.phase, Phase::Leader(leader) if leader.join.is_none()) {
            // It was secondary before, and kept a witness warm then.
            return None;
        }
        let stream = self.cx.peers.copy()?;
        Some(WarmStatus {
            peer: stream.peer,
            open: stream.is_open,
            whole: matches!(&self.phase, Phase::Secondary(it) if it.warm.is_whole(stream)),
            behind: stream.behind(),
            of: self.cx.config.layout.pages() - stream.keep_from,
        })
    }
}
