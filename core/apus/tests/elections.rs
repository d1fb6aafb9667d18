//! Elections: which replica may lead. Each test checks one fear.

use crate::group::{Group, HEARTBEAT, LONG, TIMEOUT, config, plain_config, set};
use apus::{Canary, Config, Configuration, Durability, Entry, EntryKind, Phase};
use plover_types::{Index, Micros, View, Viewstamp};

/// The wire tag of an `Append`, after the version byte.
const APPEND: u8 = 0;

#[test]
fn a_witness_never_stands() {
    let mut group = Group::protected(Durability::Memory);
    // Both holders of the guest have forgotten it. The witness has the log, and a quorum is up.
    group.restart(0);
    group.restart(1);
    group.run(Micros(5 * LONG.0));
    assert_eq!(group.leader(), None);
}

#[test]
fn a_leader_that_hands_over_is_not_elected_again_before_it_may_stand() {
    let mut group = Group::protected(Durability::Memory);
    group.turn(0, |core, now, out| core.hand_over(now, out));
    assert!(group.leads_soon(1));
    // The same, and nobody else holds the guest: it is still there, so the group is not empty.
    let mut group = Group::protected(Durability::Memory);
    group.crash(1);
    group.turn(0, |core, now, out| core.hand_over(now, out));
    let leads = |group: &Group| group.leader().is_some();
    assert!(!group.run_until(Micros(5 * LONG.0), leads));
    assert_ne!(group.found_empty(0), Some(false));
    group.cores[0].set_abstains(false);
    assert!(group.leads_soon(0));
}

/// All that are left stand at the same moment, for the same round. The one with the highest view has the promises of the others.
#[test]
fn candidates_that_collide_elect_one_of_them_at_once() {
    for (size, durability) in [(3, Durability::Memory), (5, Durability::Disk)] {
        let configs = (0..size).map(|me| plain_config(me, size, durability));
        let mut group = Group::of(configs.collect());
        group.app(10);
        group.run(TIMEOUT);
        let round = group.status(0).view.round();
        group.crash(0);
        // They have all stood still, too, so that they give the leader the same other moment.
        group.tick(Micros(3 * TIMEOUT.0));
        group.tick(Micros(2 * HEARTBEAT.0));
        let others = 1..usize::from(size);
        assert!(
            others
                .clone()
                .all(|core| group.phase(core) == Phase::PreVoting)
        );
        group.settle();
        assert!(group.run_until(HEARTBEAT, |group| group.leader().is_some()));
        let last = others.end - 1;
        assert_eq!(group.leader(), Some(last));
        assert_eq!(
            group.status(last).view.round(),
            round + 1,
            "one round for all"
        );
    }
}

/// A program that was behind for a moment is not waited for until the next silence, nor until the next round of asking.
#[test]
fn a_replica_that_abstained_for_a_moment_stands_soon() {
    let soon = Micros(3 * HEARTBEAT.0);
    let mut group = Group::protected(Durability::Memory);
    group.cores[1].set_abstains(true);
    group.crash(0);
    group.run(Micros(2 * TIMEOUT.0 + HEARTBEAT.0));
    group.cores[1].set_abstains(false);
    assert!(group.run_until(soon, |group| group.leader() == Some(1)));

    let mut group = Group::protected(Durability::Memory);
    group.crash(0);
    group.cut(1, 2);
    let asks = |group: &Group| group.status(1).phase == Phase::PreVoting;
    assert!(group.run_until(LONG, asks));
    group.cores[1].set_abstains(true);
    group.cut.clear();
    group.run(Micros(2 * HEARTBEAT.0));
    assert!(asks(&group));
    group.cores[1].set_abstains(false);
    assert!(group.run_until(soon, |group| group.leader() == Some(1)));
}

/// The secondary's log reaches the base of the witness's log, although the secondary does not know
/// that those entries are committed. So it needs only the rest.
#[test]
fn a_secondary_that_holds_entries_reclaimed_elsewhere_takes_over_the_rest() {
    let mut group = Group::protected(Durability::Disk);
    let first = group.app(10);
    group.settle();
    // Replica 1 has the entry, and does not hear that it is committed.
    group.cut(0, 1);
    let second = group.app(10);
    assert!(group.run_until(LONG, |group| group.commit(2) >= first));
    group.cores[0].trim(first);
    let third = group.app(10);
    group.run(Micros(TIMEOUT.0 / 2));
    let [secondary, witness] = [1, 2].map(|core| group.status(core));
    assert_eq!((secondary.last.index, witness.base), (first, first));
    assert!(secondary.commit < first);
    group.crash(0);
    assert!(group.leads_soon(1));
    group.run(TIMEOUT);
    assert!(group.delivered_to(1) > third && third > second);
}

#[test]
fn a_member_that_the_others_went_on_without_cannot_lead_even_with_a_quorum() {
    let mut group = Group::protected(Durability::Memory);
    group.cut(0, 1);
    group.in_sync(&[0]);
    group.app(10);
    group.run(Micros(TIMEOUT.0 / 2));
    let view = group.status(0).view;
    group.crash(0);
    // Replica 1 stands by its own log, wins, learns from the witness's log that it is not in sync,
    // and stands down.
    assert!(group.run_until(LONG, |group| group.status(1).view > view));
    let never = |group: &Group| group.leader().is_some();
    assert!(!group.run_until(Micros(5 * LONG.0), never));
    let lets_go = |group: &Group| group.phase(1) == Phase::Following;
    assert!(group.run_until(LONG, lets_go));
    assert_eq!(group.status(1).in_sync, set(&[0]));
}

#[test]
fn a_secondary_whose_own_log_does_not_name_it_yet_can_lead() {
    let mut group = Group::new(3, Durability::Memory);
    // The copy is done and the witness has the set, but the secondary is cut off.
    group.cores[1].set_holds_state(true);
    group.cut(0, 1);
    group.propose(EntryKind::InSync(set(&[0, 1])), 0).unwrap();
    group.run(TIMEOUT);
    assert_eq!(group.status(2).in_sync, set(&[0, 1]));
    assert_eq!(group.status(1).in_sync, set(&[0]));
    group.other.clear();
    group.crash(0);
    assert!(group.leads_soon(1));
    assert_eq!((group.found_empty(1), group.found_empty(2)), (None, None));
}

#[test]
fn a_secondary_cut_off_from_the_leader_only_stays_quiet() {
    let mut group = Group::protected(Durability::Memory);
    let view = group.status(0).view;
    group.cut(0, 1);
    group.run(Micros(5 * LONG.0));
    assert_eq!(group.status(1).view, view, "the witness refuses");
    assert_eq!(group.leader(), Some(0));
    assert!(group.cores[0].lease_until() > group.now);
}

/// Figure 8 of the Raft paper: an entry of an older view that a majority holds may still be
/// replaced, so its copies are not counted as a commit. Brings an old entry to a majority, and
/// nothing newer.
fn old_entry_on_a_majority(canary: Canary) -> (Group, Index) {
    let configs = (0..5).map(|me| Config {
        canary,
        ..config(me, 5, Durability::Disk)
    });
    let mut group = Group::of(configs.collect());
    group.cores[4].set_holds_state(true);
    group.in_sync(&[0, 4]);
    group.run(TIMEOUT);
    // (a) The leader gets an entry to one backup. It is so long that the next one needs a message
    // of its own.
    for peer in 2..5 {
        group.cut(0, peer);
    }
    let old = group.app(830);
    group.run(Micros(TIMEOUT.0 / 2));
    // (b) Another leads without it, and is cut off before anyone hears so.
    group.isolate(0);
    group.cut(1, 4);
    group.filter = Some(Box::new(|from, _, bytes| from == 4 && bytes[1] == APPEND));
    assert!(group.leads_soon(4));
    // (c) The first leads again, and brings the old entry to a majority and nothing newer.
    group.cut.clear();
    group.isolate(4);
    let view = group.status(0).view;
    group.filter = Some(Box::new(|from, _, bytes| from == 0 && carries_noop(bytes)));
    let again = |group: &Group| group.phase(0) == Phase::Leading && group.status(0).view > view;
    assert!(group.run_until(Micros(5 * LONG.0), again));
    group.run(TIMEOUT);
    let holders = (0..4).filter(|core| group.status(*core).last.index >= old);
    assert_eq!(holders.count(), 4, "a majority holds the old entry");
    (group, old)
}

#[test]
fn an_old_entry_on_a_majority_is_not_taken_for_committed() {
    let (mut group, old) = old_entry_on_a_majority(Canary::None);
    assert!(group.commit(0) < old, "the copies commit nothing");
    // (d) The other leads again and replaces it.
    group.filter = None;
    group.cut.clear();
    group.isolate(0);
    let leads = |group: &Group| group.cores[4].lease_until() > group.now;
    assert!(group.run_until(Micros(5 * LONG.0), leads));
    group.cut.clear();
    group.run(LONG);
    let replaced = group.delivered.iter();
    let mut replaced = replaced.map(|entries| &entries[old.0 as usize - 1]);
    assert!(replaced.all(|entry| entry.kind == EntryKind::Noop));
    assert_eq!(group.delivered_to(0), group.delivered_to(4));
}

#[cfg(feature = "canary")]
#[test]
fn counting_copies_of_an_old_entry_is_caught() {
    let (group, old) = old_entry_on_a_majority(Canary::CountOldViews);
    assert!(group.commit(0) >= old);
}

/// Whether these bytes bring a no-op, the first entry of a view.
fn carries_noop(bytes: &[u8]) -> bool {
    type Marks = (Index, Index, [Micros; 2], u64, u64, Option<Configuration>);
    type Head = (u8, View, View, Viewstamp, Marks, Vec<Entry>);
    bytes[1] == APPEND
        && postcard::take_from_bytes::<Head>(&bytes[1..])
            .is_ok_and(|((.., entries), _)| entries.iter().any(|it| it.kind == EntryKind::Noop))
}
