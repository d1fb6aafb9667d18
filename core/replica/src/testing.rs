//! Replicas in a given phase, for the tests of this crate.

use crate::api::{Action, Config, Event, Warm};
use crate::context::Context;
use crate::guest::{Arrange, Power};
use crate::hypervisor::Order;
use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use crate::secondary::Secondary;
use apus::Start;
use plover_policy::{MatchConfig, Policy};
use plover_syncvm::SyncMessage;
use plover_syncvm::message::Body;
use plover_types::{Lane, Micros, ReplicaId, ReplicaSet, Unconsumed, wire};

pub(crate) const LEADER: ReplicaId = ReplicaId(0);

/// A witness that follows [`LEADER`].
pub(crate) fn witness(policy: Policy, warm: Warm) -> Replica {
    let members = ReplicaSet::of((0..3).map(ReplicaId));
    let config = Config {
        first_leader: LEADER,
        policy,
        matching: MatchConfig::default(),
        warm,
        ..Config::new(ReplicaId(1), members, 16)
    };
    let mut replica = Replica::new(config, Start::Fresh, Micros(1));
    replica.become_witness();
    replica.cx.group.leader = Some(LEADER);
    replica.cx.out.clear();
    replica
}

/// The messages that it has sent to the leader on the bulk lane.
pub(crate) fn sent_to_leader(replica: &Replica) -> Vec<Body> {
    let bodies = replica.cx.out.iter().filter_map(|action| match action {
        Action::Write {
            to: LEADER,
            lane: Lane::Bulk,
            bytes,
            ..
        } => wire::decode::<SyncMessage>(bytes).ok(),
        _ => None,
    });
    bodies.map(|message| message.body).collect()
}

/// A secondary that follows [`LEADER`] and that the log has named in sync; its guest runs.
pub(crate) fn secondary(policy: Policy) -> Replica {
    let mut replica = new_secondary(policy);
    if let Phase::Secondary(secondary) = &mut replica.phase {
        secondary.joined_by = None;
    }
    let me = replica.cx.config.me;
    replica.cx.group.in_sync = ReplicaSet::of([LEADER, me]);
    replica
}

/// One that has just joined: the log does not name it yet.
pub(crate) fn new_secondary(policy: Policy) -> Replica {
    let mut replica = witness(policy, Warm::Full);
    let secondary = Secondary::new(Some(1), Micros(1));
    replica.phase = Phase::Secondary(Box::new(secondary));
    run(&mut replica.cx);
    replica
}

/// A leader whose guest runs, alone in its in-sync set or with [`ReplicaId`] 0 as its secondary.
pub(crate) fn leader(policy: Policy, protected: bool) -> Replica {
    let mut replica = witness(policy, Warm::Full);
    let me = replica.cx.config.me;
    replica.cx.group.leader = Some(me);
    let members = if protected {
        vec![me, LEADER]
    } else {
        vec![me]
    };
    replica.cx.group.in_sync = ReplicaSet::of(members);
    for id in [0, 2].map(ReplicaId) {
        if let Some(peer) = replica.cx.peers.get_mut(id) {
            (peer.is_linked, peer.is_alive) = (true, true);
        }
    }
    let mut leader = Leader::new(&replica.cx.config, Micros(1));
    leader.serving = true;
    replica.phase = Phase::Leader(Box::new(leader));
    run(&mut replica.cx);
    replica
}

fn run(cx: &mut Context) {
    cx.guest.power = Power::Paused;
    let cut = cx.resume_guest(Unconsumed::default(), Arrange::AsTheyCame);
    assert_eq!(cut, None);
    cx.guest.unanswered.answered(Order::Resume, Micros(1));
    cx.out.clear();
}

/// Applies an event. Returns the actions that the replica asks for.
pub(crate) fn apply(replica: &mut Replica, now: Micros, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    replica.apply(now, event, &mut out);
    out
}

/// The actions that it has asked for since this was last called.
pub(crate) fn taken(replica: &mut Replica) -> Vec<Action> {
    std::mem::take(&mut replica.cx.out)
}
