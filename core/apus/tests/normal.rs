//! The normal case, driven by hand: no clock moves and no message travels unless the test says.

use crate::group::{Group, HEARTBEAT, MESSAGE_BYTES_MAX, TIMEOUT};
use apus::{Durability, EntryKind, Event, Phase, ProposeError};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, wire};
use proptest::prelude::*;

#[test]
fn a_group_of_one_commits_at_once_and_its_lease_never_ends() {
    let mut group = Group::new(1, Durability::Memory);
    let index = group.app(10);
    assert_eq!(group.commit(0), index);
    assert_eq!(group.cores[0].lease_until(), Micros::NEVER);
    assert_eq!(
        group.cores[0].deadline(),
        Micros::NEVER,
        "and it has nothing to wait for"
    );
}

#[test]
fn a_group_of_one_on_disk_commits_an_entry_once_it_is_written() {
    let mut group = Group::new(1, Durability::Disk);
    let index = group.app(10);
    assert!(group.commit(0) < index);
    group.write_all();
    assert_eq!(group.commit(0), index);
}

#[test]
fn on_disk_nothing_unwritten_is_acknowledged_nor_counted() {
    let mut group = Group::new(3, Durability::Disk);
    let before = group.commit(0);
    let index = group.app(10);
    group.settle();
    assert_eq!(
        group.commit(0),
        before,
        "three copies in memory are none on disk"
    );
    assert_eq!(
        group.commit(1),
        before,
        "and a backup does not conclude otherwise"
    );
    // Its own disk is one of three.
    let (own, theirs): (Vec<_>, Vec<_>) = std::mem::take(&mut group.unwritten)
        .into_iter()
        .partition(|write| write.to == 0);
    own.into_iter().for_each(|write| group.write(write));
    group.settle();
    assert_eq!(group.commit(0), before);
    theirs.into_iter().for_each(|write| group.write(write));
    group.settle();
    assert_eq!(group.commit(0), index);
    assert_eq!(
        (group.commit(1), group.commit(2)),
        (index, index),
        "backups learn it when it happens, not with the next heartbeat"
    );
}

#[test]
fn in_a_group_of_three_a_backup_commits_with_the_leader_before_it_says_so() {
    let mut group = Group::new(3, Durability::Memory);
    let index = group.app(10);
    let messages = std::mem::take(&mut group.wire);
    for (from, to, bytes) in messages {
        group.carry(from, to, &bytes);
    }
    assert!(
        group.commit(0) < index,
        "no acknowledgement has travelled yet"
    );
    assert_eq!((group.commit(1), group.commit(2)), (index, index));
    let mut five = Group::new(5, Durability::Memory);
    let index = five.app(10);
    let messages = std::mem::take(&mut five.wire);
    for (from, to, bytes) in messages {
        five.carry(from, to, &bytes);
    }
    assert!(five.commit(1) < index, "of five, two are no majority");
    five.settle();
    assert!(
        (0..5).all(|of| five.commit(of) == index),
        "until they are told"
    );
}

#[test]
fn everyone_delivers_everything_once_and_in_order() {
    for size in [1, 2, 3, 5] {
        let mut group = Group::new(size, Durability::Memory);
        for _ in 0..100 {
            group.app(50);
        }
        group.settle();
        group.tick(HEARTBEAT);
        group.settle();
        // The leader's first entry, those of the application, and that which raises the group's version.
        let last = group.status(0).last.index.0;
        assert!((101..=102).contains(&last), "{last}");
        for core in 0..usize::from(size) {
            assert_eq!(group.delivered_at(core), (1..=last).collect::<Vec<_>>());
        }
    }
}

#[test]
fn late_doubled_and_reordered_messages_are_harmless() {
    let mut group = Group::new(3, Durability::Memory);
    for _ in 0..20 {
        group.app(50);
    }
    let mut late = Vec::new();
    while let Some((from, to, bytes)) = group.wire.pop_back() {
        group.carry(from, to, &bytes);
        late.push((from, to, bytes));
        assert!(late.len() < 2000, "repeats do not breed repeats");
    }
    group.tick(HEARTBEAT);
    group.settle();
    for (from, to, bytes) in late {
        group.carry(from, to, &bytes);
    }
    group.settle();
    for core in 0..3 {
        assert_eq!(group.commit(core), Index(21));
        assert_eq!(group.delivered_at(core), (1..=21).collect::<Vec<_>>());
        assert_eq!(group.cores[core].status().rejected, 0);
    }
}

#[test]
fn lost_entries_are_sent_again_after_a_heartbeat() {
    let mut group = Group::new(3, Durability::Memory);
    let index = group.app(50);
    group.wire.clear();
    group.tick(HEARTBEAT);
    group.settle();
    assert_eq!(
        (group.commit(0), group.commit(1), group.commit(2)),
        (index, index, index)
    );
}

#[test]
fn a_new_link_gets_the_entries_in_flight_at_once() {
    let mut group = Group::new(3, Durability::Memory);
    let index = group.app(50);
    group.wire.clear();
    group.apply(
        0,
        Event::Link {
            peer: ReplicaId(1),
            up: true,
        },
    );
    group.settle();
    assert_eq!((group.commit(0), group.commit(1)), (index, index));
}

#[test]
fn the_bytes_in_flight_to_a_silent_peer_are_bounded() {
    let mut group = Group::new(3, Durability::Memory);
    let mut last = Index(0);
    for _ in 0..200 {
        last = group.app(400);
    }
    let bytes: usize = group.wire.iter().map(|(_, _, bytes)| bytes.len()).sum();
    assert!(
        bytes <= 2 * 9 * MESSAGE_BYTES_MAX,
        "{bytes} bytes in flight"
    );
    // The rest goes as acknowledgements come.
    group.settle();
    assert_eq!((group.commit(0), group.commit(1)), (last, last));
}

#[test]
fn proposals_that_wait_for_the_window_share_messages() {
    let mut group = Group::new(3, Durability::Memory);
    for _ in 0..1000 {
        group.app(20);
    }
    group.wire.retain(|(_, to, _)| *to == 1);
    let mut messages = 0;
    while let Some((from, to, bytes)) = group.wire.pop_front() {
        messages += usize::from(from == 0);
        group.carry(from, to, &bytes);
        group.wire.retain(|(_, to, _)| *to != 2);
    }
    assert_eq!(group.commit(0), Index(1001));
    assert!(messages < 500, "{messages} messages for 1000 entries");
}

#[test]
fn a_full_log_refuses_the_application_but_not_the_group_itself() {
    let mut group = Group::new(3, Durability::Memory);
    while group.propose(EntryKind::App, 800).is_ok() {}
    assert_eq!(
        group.propose(EntryKind::App, 800),
        Err(ProposeError::LogFull)
    );
    assert!(group.status(0).log_bytes <= 100_000);
    let set = ReplicaSet::of([ReplicaId(0), ReplicaId(2)]);
    group
        .propose(EntryKind::InSync(set), 0)
        .expect("in-sync sets always fit");
    let last = group
        .propose(EntryKind::Noop, 0)
        .expect("no-ops always fit");
    group.settle();
    group.cores[0].trim(last.index);
    assert_eq!(group.status(0).base, last.index);
    assert_eq!(group.status(0).log_bytes, 0);
    group.app(800);
    group.settle();
    assert_eq!(group.status(1).base, last.index, "backups hear of it");
    assert_eq!(group.status(1).in_sync, set);
}

#[test]
fn a_payload_that_no_message_can_carry_is_refused_at_once() {
    let mut group = Group::new(3, Durability::Memory);
    let refused = group.propose(EntryKind::App, MESSAGE_BYTES_MAX);
    assert_eq!(refused, Err(ProposeError::TooLarge(MESSAGE_BYTES_MAX)));
}

#[test]
fn a_backup_does_not_propose() {
    let mut group = Group::new(3, Durability::Memory);
    let mut out = Vec::new();
    let refused = group.cores[1].propose(group.now, EntryKind::App, vec![1]);
    group.cores[1].flush(group.now, &mut out);
    assert_eq!((refused, out), (Err(ProposeError::NotLeader), Vec::new()));
}

#[test]
fn a_caller_that_sleeps_until_the_deadline_sends_every_heartbeat() {
    let mut group = Group::new(3, Durability::Memory);
    let mut beats = Vec::new();
    for _ in 0..20 {
        group.settle();
        group.now = group.cores[0].deadline();
        group.apply(0, Event::Tick);
        assert!(group.cores[0].deadline() > group.now, "it would spin");
        if group.wire.iter().filter(|(from, _, _)| *from == 0).count() == 2 {
            beats.push(group.now);
        }
    }
    assert!(beats.len() >= 19, "hardly a wake-up without a heartbeat");
    assert!(
        beats
            .windows(2)
            .all(|pair| pair[1].since(pair[0]) == HEARTBEAT)
    );
}

#[test]
fn the_lease_counts_from_the_time_of_sending() {
    let mut group = Group::new(3, Durability::Memory);
    group.tick(HEARTBEAT);
    let sent = group.now;
    group.now = sent + Micros::from_ms(30);
    group.settle();
    assert_eq!(
        group.cores[0].lease_until(),
        sent + TIMEOUT - Micros(TIMEOUT.0 / 8)
    );
}

#[test]
fn a_leader_with_a_lease_gives_no_vote_and_one_without_stops_leading_as_it_does() {
    let mut group = Group::new(3, Durability::Memory);
    group.tick(HEARTBEAT);
    group.settle();
    let prepare = wire::encode(&(6u8, View::new(5, ReplicaId(2))));
    let lease = group.cores[0].lease_until();
    group.now = Micros(lease.0 - 1);
    group.carry(2, 0, &prepare);
    assert_eq!(group.status(0).phase, Phase::Leading);
    group.now = lease;
    group.carry(2, 0, &prepare);
    assert_eq!(group.status(0).phase, Phase::Following);
    assert_eq!(group.cores[0].lease_until(), Micros::ZERO);
}

#[test]
fn messages_from_nowhere_and_broken_bytes_are_counted_and_ignored() {
    let mut group = Group::new(3, Durability::Memory);
    let before = group.status(1);
    for (from, bytes) in [
        (9, vec![1, 0]),
        (1, vec![1, 0]),
        (0, vec![]),
        (0, vec![1, 99, 3]),
        (2, vec![7]),
    ] {
        group.apply(
            1,
            Event::Received {
                from: ReplicaId(from),
                bytes: &bytes,
            },
        );
    }
    let after = group.status(1);
    assert_eq!(after.rejected, before.rejected + 5);
    assert_eq!((after.last, after.phase), (before.last, before.phase));
}

proptest! {
    /// A replica may read any bytes from a ring.
    #[test]
    fn noise_never_panics(noise: Vec<Vec<u8>>, tags: Vec<u8>) {
        let mut group = Group::new(3, Durability::Memory);
        for (i, mut bytes) in noise.into_iter().enumerate() {
            bytes.insert(0, tags.get(i).copied().unwrap_or(0) % 12);
            bytes.insert(0, wire::WIRE_VERSION);
            for core in 0..3 {
                group.apply(core, Event::Received { from: ReplicaId(2 - core as u8), bytes: &bytes });
            }
        }
        group.settle();
    }
}

/// The older in-sync set counts until a majority holds the newer one: if a replica that has acknowledged the entry and
/// not that set forgot it, and the leader too, a member of the older set would lead without it.
#[test]
fn an_entry_before_a_newer_in_sync_set_is_not_committed_before_that_set() {
    let mut group = Group::protected(Durability::Memory);
    group.isolate(1);
    let entry = group.app(10);
    group.run(Micros(TIMEOUT.0 / 4));
    assert!(
        group.commit(0) < entry,
        "replica 1 is in sync and does not hold it"
    );
    group.isolate(2);
    let alone = ReplicaSet::of([ReplicaId(0)]);
    group.propose(EntryKind::InSync(alone), 0).unwrap();
    group.run(Micros(TIMEOUT.0 / 4));
    assert!(group.commit(0) < entry, "nobody else holds the set");
    group.cut.clear();
    assert!(group.run_until(TIMEOUT, |group| group.commit(0) > entry));
}
