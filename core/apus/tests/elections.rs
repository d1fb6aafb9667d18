//! Who may lead: one test a fear.

mod network;

use apus::{Configuration, Durability, Entry, EntryKind, Phase};
use network::{Setup, World};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};

/// The wire tag of an append, after the version byte.
const APPEND: u8 = 0;

fn set(ids: &[u8]) -> ReplicaSet {
    ReplicaSet::of(ids.iter().map(|id| ReplicaId(*id)))
}

/// A group led by replica 0 in fair weather, which alone holds the guest.
fn group(replicas: u8, durability: Durability) -> World {
    let mut setup = Setup::new(7, replicas, durability);
    setup.manage_in_sync = false;
    let mut world = World::new(setup);
    world.run(Micros::from_ms(500));
    assert_eq!(world.leader(), Some(0));
    world
}

/// A group led by replica 0 in fair weather, whose in-sync set is {0, `second`}.
fn protected(replicas: u8, second: usize, durability: Durability) -> World {
    let mut world = group(replicas, durability);
    world.hold_state(second, true);
    let both = set(&[0, second as u8]);
    world
        .propose_kind(0, EntryKind::InSync(both), Vec::new())
        .unwrap();
    world.run(Micros::from_ms(100));
    for node in world.up() {
        assert_eq!(world.core(node).status().in_sync, both);
    }
    world
}

fn delivered(world: &World, payload: &[u8]) -> bool {
    world.checks.payloads().contains(&payload)
}

#[test]
fn the_secondary_takes_over_from_a_dead_leader() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(3, 1, durability);
        world.propose(0, b"before".to_vec()).unwrap();
        world.run(Micros::from_ms(30));
        world.crash(0);
        assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(1)));
        world.propose(1, b"after".to_vec()).unwrap();
        world.run(Micros::from_ms(100));
        assert_eq!(world.checks.payloads(), [&b"before"[..], b"after"]);
    }
}

#[test]
fn a_witness_never_stands() {
    let mut world = protected(3, 1, Durability::Memory);
    world.crash(0);
    world.crash(1);
    world.start(0);
    world.start(1);
    // Both that held the guest have forgotten it; the witness has the log and a quorum is up.
    world.operator = false;
    world.run(Micros::from_ms(5000));
    assert_eq!(world.checks.elections, 1);
}

#[test]
fn a_witness_with_a_longer_log_hands_it_to_the_secondary_that_leads() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(3, 1, durability);
        world.cut(0, 1);
        // More than fits one message, so that the merge takes several.
        for value in 0..20 {
            world.propose(0, vec![value; 200]).unwrap();
        }
        world.run(Micros::from_ms(60));
        assert!(
            delivered(&world, &[19; 200]),
            "committed by the leader and the witness"
        );
        let behind = world.core(1).status().last;
        world.crash(0);
        assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(1)));
        world.run(Micros::from_ms(100));
        assert!(world.core(1).status().last.index.0 > behind.index.0 + 20);
        assert_eq!(
            world.nodes[1].cursor,
            Some(world.core(1).status().last.index)
        );
    }
}

/// What it needs is there, although the other's log begins after what it knows to be committed.
#[test]
fn a_secondary_that_holds_what_was_reclaimed_elsewhere_takes_over_the_rest() {
    let mut world = protected(3, 1, Durability::Disk);
    let first = world.propose(0, b"first".to_vec()).unwrap().index;
    world.run_until(Micros::from_ms(50), |world| {
        world.core(1).status().last.index >= first
    });
    world.cut(0, 1);
    world.propose(0, b"second".to_vec()).unwrap();
    world.run(Micros::from_ms(40));
    assert!(delivered(&world, b"second"));
    let leader = world.nodes[0].core.as_mut().expect("it is up");
    leader.trim(first);
    world.propose(0, b"third".to_vec()).unwrap();
    world.run(Micros::from_ms(20));
    let [secondary, witness] = [1, 2].map(|node| world.core(node).status());
    assert_eq!((secondary.last.index, witness.base), (first, first));
    assert!(secondary.commit < first);
    world.crash(0);
    assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(1)));
    world.run(Micros::from_ms(100));
    assert_eq!(
        world.checks.payloads(),
        [&b"first"[..], b"second", b"third"]
    );
}

#[test]
fn a_member_that_the_others_went_on_without_cannot_lead_even_with_a_quorum() {
    let mut world = protected(3, 1, Durability::Memory);
    world.cut(0, 1);
    world
        .propose_kind(0, EntryKind::InSync(set(&[0])), Vec::new())
        .unwrap();
    world.propose(0, b"solo".to_vec()).unwrap();
    world.run(Micros::from_ms(60));
    world.crash(0);
    // It stands by its own log, wins, learns from the witness that it is out, and lets go.
    let elects = |world: &World| world.core(1).status().phase == Phase::Electing;
    assert!(world.run_until(Micros::from_ms(1000), elects));
    world.run(Micros::from_ms(5000));
    assert_eq!(world.checks.elections, 1);
    let status = world.core(1).status();
    assert_eq!(
        (status.phase, status.in_sync),
        (Phase::Following, set(&[0]))
    );
}

#[test]
fn a_secondary_whose_own_log_does_not_name_it_yet_can_lead() {
    let mut world = group(3, Durability::Memory);
    // The copy is done, the set is committed with the witness, and the secondary hears no more.
    world.hold_state(1, true);
    world.cut(0, 1);
    world
        .propose_kind(0, EntryKind::InSync(set(&[0, 1])), Vec::new())
        .unwrap();
    world.run(Micros::from_ms(60));
    assert_eq!(world.core(1).status().in_sync, set(&[0]));
    (world.nodes[1].empty, world.nodes[2].empty) = (false, false);
    world.crash(0);
    assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(1)));
    assert!(
        !world.nodes[1].empty && !world.nodes[2].empty,
        "the guest was never lost"
    );
}

#[test]
fn an_in_sync_set_that_is_truncated_gives_its_member_back_the_right_to_lead() {
    let mut world = protected(3, 1, Durability::Memory);
    // The leader drops replica 1, but nobody hears of it.
    world.isolate(0);
    world
        .propose_kind(0, EntryKind::InSync(set(&[0])), Vec::new())
        .unwrap();
    assert!(world.run_until(Micros::from_ms(1000), |world| world.leader() == Some(1)));
    world.heal();
    world.run(Micros::from_ms(500));
    assert_eq!(world.core(0).status().in_sync, set(&[0, 1]));
    assert_eq!(world.leader(), Some(1));
}

#[test]
fn a_healed_replica_does_not_depose_a_healthy_leader() {
    let mut world = protected(3, 1, Durability::Memory);
    let view = world.core(0).status().view;
    world.isolate(1);
    let pre_votes = |world: &World| world.core(1).status().phase == Phase::PreVoting;
    assert!(world.run_until(Micros::from_ms(1000), pre_votes));
    world.run(Micros::from_ms(3000));
    assert_eq!(
        world.core(1).status().view,
        view,
        "asking does not raise the view"
    );
    world.heal();
    world.run(Micros::from_ms(1000));
    for node in 0..3 {
        assert_eq!(world.core(node).status().view, view);
        assert_eq!(world.core(node).status().leader, Some(ReplicaId(0)));
    }
}

#[test]
fn a_secondary_cut_off_from_the_leader_only_stays_quiet() {
    let mut world = protected(3, 1, Durability::Memory);
    let view = world.core(0).status().view;
    world.cut(0, 1);
    world.run(Micros::from_ms(5000));
    assert_eq!(world.core(1).status().view, view);
    assert_eq!(
        world.checks.elections, 1,
        "the witness hears the leader and refuses"
    );
    assert!(world.lease_is_valid(0));
}

#[test]
fn a_leader_cut_off_loses_its_lease_before_another_leads() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut world = protected(3, 1, durability);
        assert!(world.lease_is_valid(0));
        world.isolate(0);
        // That never two leases are valid is checked after every step of every world.
        assert!(world.run_until(Micros::from_ms(1000), |world| world.lease_is_valid(1)));
        assert!(!world.lease_is_valid(0));
        let commit = world.core(0).status().commit;
        world.propose(0, b"in vain".to_vec()).unwrap();
        world.run(Micros::from_ms(500));
        assert_eq!(
            world.core(0).status().phase,
            Phase::Leading,
            "it cannot know"
        );
        assert_eq!(world.core(0).status().commit, commit);
        world.heal();
        world.run(Micros::from_ms(500));
        assert_eq!(world.core(0).status().leader, Some(ReplicaId(1)));
        assert!(!delivered(&world, b"in vain"));
    }
}

#[test]
fn a_paused_leader_wakes_up_without_a_lease() {
    let mut world = protected(3, 1, Durability::Memory);
    world.pause(0, Micros::from_ms(3000));
    assert!(world.run_until(Micros::from_ms(1000), |world| world.lease_is_valid(1)));
    world.run(Micros::from_ms(4000));
    assert_eq!(world.core(0).status().leader, Some(ReplicaId(1)));
}

/// Whether these bytes bring a no-op, the first entry of a view.
fn carries_noop(bytes: &[u8]) -> bool {
    type Marks = (Index, Index, Micros, u64, Option<Configuration>);
    type Head = (u8, View, View, Viewstamp, Marks, Vec<Entry>);
    bytes[1] == APPEND
        && postcard::take_from_bytes::<Head>(&bytes[1..])
            .is_ok_and(|((.., entries), _)| entries.iter().any(|e| e.kind == EntryKind::Noop))
}

/// Figure 8 of the Raft paper: an entry of an older view that a majority holds may still be
/// replaced, so its copies must not be counted as a commit.
#[test]
fn an_old_entry_on_a_majority_is_not_taken_for_committed() {
    let mut world = protected(5, 4, Durability::Disk);
    let old = vec![8; 440]; // So long that the next entry needs a message of its own.
    for peer in 2..5 {
        world.cut(0, peer);
    }
    // (a) The leader gets the entry to one backup.
    world.propose(0, old.clone()).unwrap();
    world.run(Micros::from_ms(40));
    // (b) Another leads without having seen it, and is cut off before anyone hears so.
    world.isolate(0);
    world.cut(1, 4);
    world.filter = Some(Box::new(|from, _, bytes| from == 4 && bytes[1] == APPEND));
    assert!(world.run_until(Micros::from_ms(2000), |world| world.leader() == Some(4)));
    // (c) The first leads again and brings the old entry to a majority, but nothing newer.
    world.heal();
    world.isolate(4);
    world.filter = Some(Box::new(|from, _, bytes| from == 0 && carries_noop(bytes)));
    let before = world.core(0).status();
    let again = |world: &World| {
        let status = world.core(0).status();
        status.phase == Phase::Leading && status.view > before.view
    };
    assert!(world.run_until(Micros::from_ms(5000), again));
    world.run(Micros::from_ms(60));
    let holders = (0..4).filter(|node| world.core(*node).status().last.index >= before.last.index);
    assert_eq!(holders.count(), 4, "a majority holds the old entry");
    assert!(!delivered(&world, &old), "but that commits nothing");
    // (d) The other leads again and replaces it.
    world.filter = None;
    world.heal();
    world.isolate(0);
    assert!(world.run_until(Micros::from_ms(5000), |world| world.lease_is_valid(4)));
    world.heal();
    world.run(Micros::from_ms(1000));
    world.propose(4, b"new".to_vec()).unwrap();
    world.run(Micros::from_ms(200));
    assert_eq!(world.checks.payloads(), [b"new"]);
}
