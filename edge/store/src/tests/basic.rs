//! What is written is found again.

use super::*;

#[test]
fn a_restart_finds_the_promise_and_the_log() {
    let dir = tempfile::tempdir().unwrap();
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
    assert!(matches!(done[0], Completion::StatePersisted(v) if v == stamp(1, 0).view));
    assert!(matches!(done[1], Completion::EntriesPersisted(v) if v == stamp(2, 2)));
    assert_eq!(done.len(), 2);
    drop(store);
    let (_, found) = open(dir.path());
    assert_eq!(found.promise, Some(promise(1)));
    assert!(!found.forgotten && !found.torn && found.damage.is_none());
    assert_eq!(found.log, [entry(1, 1, 10), entry(2, 2, 10)]);
}
