//! Written entries and promises are found again.

use super::*;
use apus::Configuration;
use plover_types::ReplicaSet;

#[test]
fn a_restart_finds_the_promise_and_the_log() {
    let dir = directory();
    let (mut store, found) = open(dir.path());
    assert!(found.promise.is_none() && found.log.is_empty());
    store.persist_state(promise(1));
    store.persist_entries(
        Viewstamp::default(),
        None,
        &[entry(1, 1, 10), entry(1, 2, 10)],
    );
    store.persist_entries(stamp(1, 1), None, &[entry(2, 2, 10)]);
    let done = synced(&mut store);
    assert!(
        matches!(done[0], Completion::StatePersisted(state) if state.promised == stamp(1, 0).view)
    );
    assert!(matches!(done[1], Completion::EntriesPersisted(v) if v == stamp(2, 2)));
    assert_eq!(done.len(), 2);
    drop(store);
    let (_, found) = open(dir.path());
    assert_eq!(found.promise, Some(promise(1)));
    assert!(!found.forgotten && !found.torn && found.damage.is_none());
    assert_eq!(found.log, [entry(1, 1, 10), entry(2, 2, 10)]);
}

#[test]
fn a_log_that_begins_anew_has_nothing_of_the_old_one() {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    store.persist_state(promise(1));
    let old: Vec<_> = (1..=40).map(|i| entry(1, i, 500)).collect();
    store.persist_entries(Viewstamp::default(), None, &old);
    synced(&mut store);
    let configuration = Configuration {
        in_sync: ReplicaSet(3),
        ..Configuration::default()
    };
    store.persist_entries(stamp(2, 0), Some(configuration), &[]);
    let done = synced(&mut store);
    assert!(matches!(done[0], Completion::EntriesPersisted(v) if v == stamp(2, 0)));
    store.persist_entries(stamp(2, 0), None, &[entry(2, 1, 10)]);
    synced(&mut store);
    drop(store);
    assert_eq!(segments(dir.path()), 2, "the old segments are gone");
    let (_, found) = open(dir.path());
    assert_eq!(found.log, [entry(2, 1, 10)]);
    assert_eq!(
        (found.base.viewstamp, found.base.configuration),
        (stamp(2, 0), configuration)
    );
}

#[test]
fn trims_give_segments_back_and_carry_the_configuration_to_the_base() {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    store.persist_state(promise(1));
    let mut last = Viewstamp::default();
    for index in 1..=5000 {
        let mut next = entry(1, index, 200);
        if index == 2000 {
            next.kind = EntryKind::InSync(ReplicaSet(5));
        }
        store.persist_entries(last, None, std::slice::from_ref(&next));
        last = next.viewstamp;
        if index % 50 == 0 {
            store.trim(Index(index - 30));
            synced(&mut store);
        }
    }
    assert!(
        segments(dir.path()) < 10,
        "{} segments",
        segments(dir.path())
    );
    drop(store);
    let (mut store, found) = open(dir.path());
    assert_eq!(found.base.configuration.in_sync, ReplicaSet(5));
    assert!((4900..=4970).contains(&found.base.viewstamp.index.0));
    assert_eq!(found.log.last(), Some(&entry(1, 5000, 200)));
    store.persist_entries(last, None, &[entry(3, 5001, 1)]);
    assert!(matches!(synced(&mut store)[0], Completion::EntriesPersisted(v) if v.index.0 == 5001));
}

#[test]
fn entries_that_were_cut_are_not_reported_as_stored() {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    store.persist_entries(
        Viewstamp::default(),
        None,
        &[entry(1, 1, 9), entry(1, 2, 9)],
    );
    store.sync();
    store.persist_entries(stamp(1, 1), None, &[entry(2, 2, 9)]);
    let mut done = Vec::new();
    store.completions(&mut done);
    assert!(matches!(done[..], [Completion::EntriesPersisted(v)] if v == stamp(1, 1)));
    assert!(
        matches!(synced(&mut store)[..], [Completion::EntriesPersisted(v)] if v == stamp(2, 2))
    );
}

#[test]
fn the_thread_carries_many_requests_with_few_syncs() {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    let mut done = Vec::new();
    let mut last = Viewstamp::default();
    for index in 1..=100 {
        store.persist_entries(last, None, &[entry(1, index, 50)]);
        last = stamp(1, index);
    }
    store.submit();
    while !matches!(done.last(), Some(Completion::EntriesPersisted(v)) if *v == last) {
        readable(&store, None);
        store.completions(&mut done);
    }
    let counters = store.counters();
    assert_eq!((counters.entries, counters.syncs), (100, 1));
}

#[test]
fn the_owner_is_woken_for_every_batch_and_not_without_news() {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    let mut done = Vec::new();
    for index in 1..=2000_usize {
        store.persist_entries(store.last(), None, &[entry(1, index as u64, 20)]);
        store.submit();
        while done.len() < index {
            assert!(readable(&store, None), "woken when the batch is durable");
            store.completions(&mut done);
        }
        store.completions(&mut done);
        assert!(!readable(&store, Some(0)), "nothing is left to say");
    }
    assert_eq!(done.len(), 2000);
}

/// Whether the store's descriptor is readable within so many seconds. `None` waits for ever.
fn readable(store: &Store, seconds: Option<i64>) -> bool {
    let flags = rustix::event::PollFlags::IN;
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
        store.wait_fd(),
        flags,
    )];
    let timeout = seconds.map(|tv_sec| rustix::event::Timespec { tv_sec, tv_nsec: 0 });
    rustix::event::poll(&mut fds, timeout.as_ref()).unwrap() == 1
}

#[test]
fn a_run_in_memory_mode_makes_the_log_on_disk_worthless() {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    store.persist_state(promise(1));
    store.persist_entries(Viewstamp::default(), None, &[entry(1, 1, 9)]);
    synced(&mut store);
    drop(store);
    let memory = Options::new("group", Durability::Memory);
    let (mut store, found) = Store::open(dir.path(), &memory).unwrap();
    assert_eq!(found.promise, Some(promise(1)));
    store.persist_state(promise(2));
    synced(&mut store);
    drop(store);
    let (_, found) = open(dir.path());
    assert_eq!(found.promise, Some(promise(2)));
    assert!(found.forgotten && found.log.is_empty());
}

#[test]
fn an_amnesiac_replica_stays_so_until_the_core_says_otherwise() {
    let dir = directory();
    let amnesiac = DurableState {
        amnesiac: true,
        ..promise(1)
    };
    let (mut store, _) = open(dir.path());
    store.persist_state(amnesiac);
    store.persist_entries(Viewstamp::default(), None, &[entry(1, 1, 9)]);
    synced(&mut store);
    drop(store);
    let (mut store, found) = open(dir.path());
    assert!(found.forgotten && found.log.is_empty());
    store.persist_entries(Viewstamp::default(), None, &[entry(1, 1, 9)]);
    store.persist_state(promise(1));
    synced(&mut store);
    drop(store);
    let (_, found) = open(dir.path());
    assert!(!found.forgotten);
    assert_eq!(found.log, [entry(1, 1, 9)]);
}

fn segments(dir: &Path) -> usize {
    Files::of(dir).segments().len()
}
