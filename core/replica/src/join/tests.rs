//! What a joiner answers to an invitation.

use crate::api::{Action, Canary, Config, Role};
use crate::replica::Replica;
use apus::{Durability, Start};
use plover_policy::{MatchConfig, Policy, Preset, SlotConfig, UnprotectedOutput, VSMR};
use plover_syncvm::SyncMessage;
use plover_syncvm::message::Body;
use plover_types::{Lane, Micros, ReplicaId, ReplicaSet, wire};

const LEADER: ReplicaId = ReplicaId(0);

/// A witness that follows [`LEADER`].
fn witness(policy: Policy) -> Replica {
    let config = Config {
        me: ReplicaId(1),
        members: ReplicaSet::of((0..3).map(ReplicaId)),
        first_leader: LEADER,
        heartbeat: Micros::from_ms(25),
        timeout: Micros::from_ms(100),
        durability: Durability::Memory,
        log_bytes_max: 1 << 20,
        message_bytes_max: 1 << 16,
        policy,
        slot: SlotConfig::default(),
        matching: MatchConfig::default(),
        unprotected_output: UnprotectedOutput::Release,
        pages: 16,
        disk_blocks: 0,
        blocks: true,
        needs_reset: false,
        guard_bytes_max: 1 << 20,
        input_frames_max: 64,
        hash_key: [0; 32],
        seed: 1,
        canary: Canary::None,
    };
    let mut replica = Replica::new(config, Start::Fresh, Micros(1));
    replica.set_role(Role::Witness);
    replica.leader = Some(LEADER);
    replica.out.clear();
    replica
}

/// What it says to the leader.
fn said(replica: &Replica) -> Vec<Body> {
    let bodies = replica.out.iter().filter_map(|action| match action {
        Action::Write {
            to: LEADER,
            lane: Lane::Bulk,
            bytes,
        } => wire::decode::<SyncMessage>(bytes).ok(),
        _ => None,
    });
    bodies.map(|message| message.body).collect()
}

#[test]
fn a_joiner_with_the_same_policy_starts_a_guest() {
    let mut replica = witness(VSMR.policy);
    replica.on_join_start(7, &VSMR.policy.to_string(), (16, 0));
    assert_eq!(replica.role, Role::Joining);
    assert!(matches!(replica.out.last(), Some(Action::StartGuest)));
    assert_eq!(said(&replica), []);
}

/// Two that protect a guest in different ways protect it in none.
#[test]
fn a_joiner_with_another_policy_says_which() {
    let remus = Preset::find("remus-25").unwrap().policy;
    let mut replica = witness(remus);
    replica.on_join_start(7, &VSMR.policy.to_string(), (16, 0));
    assert_eq!(replica.role, Role::Witness);
    let said = said(&replica);
    let [Body::JoinFailed { attempt: 7, why }] = said.as_slice() else {
        panic!("{said:?}");
    };
    for policy in [remus, VSMR.policy] {
        assert!(why.contains(&policy.to_string()), "{why}");
    }
}
