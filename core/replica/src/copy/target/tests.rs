//! A target's answers to an offer.

use super::{UNDER_WAY_MAX, WINDOW_CHUNKS};
use crate::api::{Action, Event, Note, Role, Warm};
use crate::copy::offer::Offer;
use crate::replica::Replica;
use crate::testing::{LEADER, sent_to_leader, witness};
use plover_policy::{Policy, Preset, VSMR};
use plover_syncvm::chunk::ChunkWriter;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{
    HashKey, Index, MachineWords, Micros, PAGE_BYTES, PageNo, ReplicaId, ReplicaSet, View,
    Viewstamp,
};

const KEY: HashKey = HashKey::Universal([7; 32]);

fn machine(needed: &str, wanted: &str) -> MachineWords {
    MachineWords {
        needed: needed.into(),
        wanted: wanted.into(),
    }
}

fn offer(policy: Policy, attempt: u64, stream: u64) -> Offer {
    Offer {
        attempt,
        stream,
        policy: policy.to_string(),
        machine: machine("QEMU 7.2, microvm", "firmware 1"),
        size: (16, 0),
    }
}

/// The leader's or the secondary's offer is made; the hypervisor starts.
fn started(warm: Warm, purpose: CopyPurpose, from: ReplicaId) -> Replica {
    let mut replica = witness(VSMR.policy, warm);
    replica.on_copy_start(from, purpose, &offer(VSMR.policy, 7, 70));
    assert!(matches!(replica.cx.out.last(), Some(Action::StartGuest(_))));
    replica.on_guest_started(machine("QEMU 7.2, microvm", "firmware 1"));
    replica
}

#[test]
fn a_joiner_with_the_same_policy_starts_a_guest() {
    let mut replica = witness(VSMR.policy, Warm::Full);
    replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 7, 70));
    assert_eq!(replica.role(), Role::Joining);
    assert!(matches!(replica.cx.out.last(), Some(Action::StartGuest(_))));
    assert_eq!(sent_to_leader(&replica), []);
}

/// Two that protect a guest in different ways protect it in none.
#[test]
fn a_joiner_with_another_policy_says_which() {
    let remus = Preset::find("remus-25").unwrap().policy;
    let mut replica = witness(remus, Warm::Full);
    replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 7, 70));
    assert_eq!(replica.role(), Role::Witness);
    let said = sent_to_leader(&replica);
    let [Body::CopyFailed { attempt: 7, why }] = said.as_slice() else {
        panic!("{said:?}");
    };
    for policy in [remus, VSMR.policy] {
        assert!(why.contains(&policy.to_string()), "{why}");
    }
}

/// A state of one machine does not load into another: better to say so before the first one is lost on it.
#[test]
fn a_joiner_whose_hypervisor_makes_another_machine_says_which() {
    let mut replica = witness(VSMR.policy, Warm::Full);
    replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 7, 70));
    replica.on_guest_started(machine("QEMU 10.0, microvm", "firmware 1"));
    assert_eq!(replica.role(), Role::Witness);
    let said = sent_to_leader(&replica);
    let [Body::CopyFailed { attempt: 7, why }] = said.as_slice() else {
        panic!("{said:?}");
    };
    // What is alike is not said.
    assert!(why.ends_with("QEMU 10.0 instead of QEMU 7.2"), "{why}");
}

/// A guest goes on using what it has found in its processor.
#[test]
fn a_joiner_whose_processor_lacks_features_of_the_guests_says_which() {
    let joins = |own: &str, source: &str| {
        let mut replica = witness(VSMR.policy, Warm::Full);
        let mut offer = offer(VSMR.policy, 7, 70);
        offer.machine = machine("QEMU 7.2, q35", source);
        replica.on_copy_start(LEADER, CopyPurpose::Join, &offer);
        replica.on_guest_started(machine("QEMU 7.2, q35", own));
        replica
    };
    let (less, more) = ("CPUID 7.0 EBX 00000201", "CPUID 7.0 EBX 00000301");
    let replica = joins(less, more);
    assert_eq!(replica.role(), Role::Witness);
    let said = sent_to_leader(&replica);
    let [Body::CopyFailed { why, .. }] = said.as_slice() else {
        panic!("{said:?}");
    };
    assert!(why.contains("(CPUID 7.0 EBX 00000100)"), "{why}");
    assert_eq!(joins(more, less).role(), Role::Joining, "it has more");
}

/// Of parts that a state loads without, people are told.
#[test]
fn a_joiner_with_another_firmware_takes_the_copy_and_says_so() {
    let mut replica = witness(VSMR.policy, Warm::Full);
    replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 7, 70));
    replica.on_guest_started(machine("QEMU 7.2, microvm", "firmware 2"));
    assert_eq!(replica.role(), Role::Joining);
    let differs = |a: &Action| matches!(a, Action::Note(Note::MachineDiffers { .. }));
    assert!(replica.cx.out.iter().any(differs));
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

/// A joiner that was slow may hear of an attempt when its leader has already given it up. It must not wait for ever:
/// meanwhile it is nobody's witness.
#[test]
fn a_joiner_whose_leader_has_given_up_leaves() {
    for (from, attempt, role) in [
        (ReplicaId(2), 7, Role::Joining),
        (LEADER, 6, Role::Joining),
        (LEADER, 7, Role::Witness),
    ] {
        let mut replica = started(Warm::Full, CopyPurpose::Join, LEADER);
        replica.on_copy_failed(from, attempt, "it does not answer");
        assert_eq!(replica.role(), role, "from {from}, attempt {attempt}");
    }
}

/// A witness whose copy follows the new leader's stream starts no hypervisor and says how far it is;
/// anybody else's stream makes it an old copy, to be compared.
#[test]
fn a_warm_witness_goes_on_where_it_is() {
    for (stream, expected) in [(70, ready(8, Some(1), 0)), (71, ready(8, None, 0))] {
        let mut replica = started(Warm::Full, CopyPurpose::Warm, LEADER);
        assert_eq!(replica.role(), Role::Witness);
        assert_eq!(
            sent_to_leader(&replica),
            [ready(7, None, 16)],
            "blank as it is"
        );
        replica.on_copy(LEADER, 7, 0, chunk());
        replica.on_copy(LEADER, 7, 2, chunk());
        replica.on_copy(LEADER, 6, 1, chunk());
        let writes = replica
            .cx
            .out
            .iter()
            .filter(|a| matches!(a, Action::WriteChunks { .. }));
        assert_eq!(writes.count(), 1, "what does not follow is not written");
        replica.cx.out.clear();
        replica.on_copy_start(LEADER, CopyPurpose::Join, &offer(VSMR.policy, 8, stream));
        assert_eq!(replica.role(), Role::Joining);
        assert_eq!(sent_to_leader(&replica), [expected]);
        assert!(
            !replica
                .cx
                .out
                .iter()
                .any(|a| matches!(a, Action::StartGuest(_) | Action::KillGuest))
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
        assert_eq!(replica.role(), Role::Witness, "{warm:?}");
        let killed = out.iter().any(|a| matches!(a, Action::KillGuest));
        assert_eq!(killed, !stays, "{warm:?}");
    }
}

/// Memory is the witness's own to give.
#[test]
fn a_witness_that_is_to_keep_nothing_refuses() {
    let mut replica = witness(VSMR.policy, Warm::Off);
    replica.on_copy_start(LEADER, CopyPurpose::Warm, &offer(VSMR.policy, 7, 70));
    let said = sent_to_leader(&replica);
    let [Body::CopyFailed { attempt: 7, why }] = said.as_slice() else {
        panic!("{said:?}");
    };
    assert!(why.contains("warm_witness"), "{why}");
}

/// The word that the leader has given the attempt up was lost, and it has taken another replica.
#[test]
fn a_joiner_leaves_when_two_others_are_in_sync() {
    let mut replica = started(Warm::Full, CopyPurpose::Join, LEADER);
    let (view, index) = (View::NONE, Index(5));
    replica.on_in_sync(
        ReplicaSet::of([LEADER, ReplicaId(2)]),
        Viewstamp { view, index },
    );
    assert_eq!(replica.role(), Role::Witness);
    let said = sent_to_leader(&replica);
    let last = said.last();
    assert!(
        matches!(last, Some(Body::CopyFailed { attempt: 7, .. })),
        "{said:?}"
    );
}

/// A source that does not wait for acknowledgements would fill the memory while this host's disk is slow.
#[test]
fn a_source_that_leaves_its_window_is_cut_off() {
    let mut replica = started(Warm::Full, CopyPurpose::Join, LEADER);
    let chunk = chunk();
    let cuts = |replica: &Replica| {
        let is_cut = |a: &&Action| matches!(a, Action::CutLink { peer: LEADER, .. });
        replica.cx.out.iter().filter(is_cut).count()
    };
    let written = |replica: &Replica| {
        let writes = |a: &&Action| matches!(a, Action::WriteChunks { .. });
        replica.cx.out.iter().filter(writes).count() as u32
    };
    for seq in 0..UNDER_WAY_MAX {
        replica.on_copy(LEADER, 7, seq, chunk.clone());
    }
    assert_eq!((written(&replica), cuts(&replica)), (UNDER_WAY_MAX, 0));
    replica.on_copy(LEADER, 7, UNDER_WAY_MAX, chunk.clone());
    replica.on_compare(LEADER, 7, (0, 1), KEY);
    assert_eq!((written(&replica), cuts(&replica)), (UNDER_WAY_MAX, 2));
    // One is written: there is room for one.
    replica.target_written(7, 1);
    replica.on_copy(LEADER, 7, UNDER_WAY_MAX, chunk);
    assert_eq!((written(&replica), cuts(&replica)), (UNDER_WAY_MAX + 1, 2));
    replica.on_copy(LEADER, 7, UNDER_WAY_MAX + 1, vec![7; 9]);
    for pages in [(0, 17), (u32::MAX, 2), (0, 0)] {
        replica.on_compare(LEADER, 7, pages, KEY);
    }
    assert_eq!(cuts(&replica), 6);
}

/// The fear: its disk hangs, each opening adds a window, and in the end the link is cut again and again.
#[test]
fn a_target_whose_disk_is_behind_takes_no_new_opening() {
    let mut replica = started(Warm::Full, CopyPurpose::Join, LEADER);
    let chunk = chunk();
    for seq in 0..WINDOW_CHUNKS {
        replica.on_copy(LEADER, 7, seq, chunk.clone());
    }
    let offers = |replica: &mut Replica, attempt| {
        replica.cx.out.clear();
        let offer = offer(VSMR.policy, attempt, 70);
        replica.on_copy_start(LEADER, CopyPurpose::Join, &offer);
        sent_to_leader(replica)
    };
    let refused = offers(&mut replica, 8);
    assert!(
        matches!(&refused[..], [Body::CopyFailed { attempt: 8, .. }]),
        "{refused:?}"
    );
    replica.target_written(7, 1);
    let taken = offers(&mut replica, 9);
    assert!(
        matches!(&taken[..], [Body::CopyReady { attempt: 9, .. }]),
        "{taken:?}"
    );
}
