//! What a joiner answers to an invitation.

use crate::api::{Action, Canary, Config, Event, Role, Warm};
use crate::replica::Replica;
use crate::standby::Offer;
use apus::{Durability, Start};
use plover_policy::{MatchConfig, Policy, Preset, SlotConfig, UnprotectedOutput, VSMR};
use plover_syncvm::SyncMessage;
use plover_syncvm::chunk::ChunkWriter;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{Lane, Micros, PAGE_BYTES, PageNo, ReplicaId, ReplicaSet, wire};

const LEADER: ReplicaId = ReplicaId(0);

/// A witness that follows [`LEADER`].
pub(crate) fn witness(policy: Policy, warm: Warm) -> Replica {
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
        warm,
        warm_bytes_per_s: 1 << 20,
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
            ..
        } => wire::decode::<SyncMessage>(bytes).ok(),
        _ => None,
    });
    bodies.map(|message| message.body).collect()
}

fn offer(policy: Policy, attempt: u64, stream: u64) -> Offer {
    Offer {
        attempt,
        stream,
        policy: policy.to_string(),
        size: (16, 0),
    }
}

/// The leader's or the secondary's offer is made; the hypervisor starts.
fn started(warm: Warm, purpose: CopyPurpose, from: ReplicaId) -> Replica {
    let mut replica = witness(VSMR.policy, warm);
    replica.on_copy_start(from, purpose, &offer(VSMR.policy, 7, 70));
    assert!(matches!(replica.out.last(), Some(Action::StartGuest)));
    replica.on_guest_started();
    replica
}

#[test]
fn a_joiner_with_the_same_policy_starts_a_guest() {
    let mut replica = witness(VSMR.policy, Warm::Full);
    replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 7, 70));
    assert_eq!(replica.role, Role::Joining);
    assert!(matches!(replica.out.last(), Some(Action::StartGuest)));
    assert_eq!(said(&replica), []);
}

/// Two that protect a guest in different ways protect it in none.
#[test]
fn a_joiner_with_another_policy_says_which() {
    let remus = Preset::find("remus-25").unwrap().policy;
    let mut replica = witness(remus, Warm::Full);
    replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 7, 70));
    assert_eq!(replica.role, Role::Witness);
    let said = said(&replica);
    let [Body::CopyFailed { attempt: 7, why }] = said.as_slice() else {
        panic!("{said:?}");
    };
    for policy in [remus, VSMR.policy] {
        assert!(why.contains(&policy.to_string()), "{why}");
    }
}

fn ready(attempt: u64, written: Option<u32>, compare_from: u32) -> Body {
    Body::CopyReady {
        attempt,
        written,
        compare_from,
        keep_from: 0,
    }
}

fn chunk() -> Vec<u8> {
    let mut writer = ChunkWriter::new();
    writer.push(PageNo(3), &[7; PAGE_BYTES]);
    writer.finish()
}

/// A witness whose copy follows the new leader's stream starts no hypervisor and says how far it is;
/// anybody else's stream makes it an old copy, to be compared.
#[test]
fn a_warm_witness_goes_on_where_it_is() {
    for (stream, expected) in [(70, ready(8, Some(1), 0)), (71, ready(8, None, 0))] {
        let mut replica = started(Warm::Full, CopyPurpose::Warm, LEADER);
        assert_eq!(replica.role, Role::Witness);
        assert_eq!(said(&replica), [ready(7, None, 16)], "blank as it is");
        replica.on_copy(LEADER, 7, 0, chunk());
        replica.on_copy(LEADER, 7, 2, chunk());
        replica.on_copy(LEADER, 6, 1, chunk());
        let writes = replica
            .out
            .iter()
            .filter(|a| matches!(a, Action::WriteChunks(_)));
        assert_eq!(writes.count(), 1, "what does not follow is not written");
        replica.out.clear();
        replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 8, stream));
        assert_eq!(replica.role, Role::Joining);
        assert_eq!(said(&replica), [expected]);
        assert!(
            !replica
                .out
                .iter()
                .any(|a| matches!(a, Action::StartGuest | Action::KillGuest))
        );
    }
}

/// The link breaks in the middle of a copy: with a warm witness that is where the next goes on.
#[test]
fn an_attempt_that_was_cut_off_leaves_a_copy() {
    for (warm, stays) in [(Warm::Full, true), (Warm::Disk, false), (Warm::Off, false)] {
        let mut replica = started(warm, CopyPurpose::Join, LEADER);
        replica.on_copy(LEADER, 7, 0, chunk());
        let mut out = Vec::new();
        let down = Event::Link {
            peer: LEADER,
            up: false,
        };
        replica.apply(Micros(2), down, &mut out);
        assert_eq!(replica.role, Role::Witness, "{warm:?}");
        let killed = out.iter().any(|a| matches!(a, Action::KillGuest));
        assert_eq!(killed, !stays, "{warm:?}");
    }
}

/// Memory is the witness's own to give.
#[test]
fn a_witness_that_is_to_keep_nothing_refuses() {
    let mut replica = witness(VSMR.policy, Warm::Off);
    replica.on_copy_start(LEADER, CopyPurpose::Warm, &offer(VSMR.policy, 7, 70));
    let said = said(&replica);
    let [Body::CopyFailed { attempt: 7, why }] = said.as_slice() else {
        panic!("{said:?}");
    };
    assert!(why.contains("warm_witness"), "{why}");
}
