//! A last batch of which only a part reached the disk.

use super::*;

/// Two batches in a fresh store, as the file was before and after the second.
fn before_and_after() -> (Files, Vec<u8>, Vec<u8>) {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    let (path, _) = first_segment(dir.path());
    store.persist_state(promise(1));
    store.persist_entries(
        Viewstamp::default(),
        None,
        &[entry(1, 1, 40), entry(1, 2, 40)],
    );
    synced(&mut store);
    let before = std::fs::read(&path).unwrap();
    store.persist_entries(
        stamp(1, 1),
        None,
        &[entry(2, 2, 40), entry(2, 3, 300), entry(2, 4, 5)],
    );
    synced(&mut store);
    drop(store);
    let after = std::fs::read(&path).unwrap();
    (Files::of(dir.path()), before, after)
}

/// Checks that the log is the first batch, or a beginning of the log after the second, and that it can
/// be written on from there. Returns its length.
fn check(dir: &Path) -> usize {
    let (mut store, found) = open(dir);
    assert!(!found.forgotten, "{:?}", found.damage);
    let whole = [
        entry(1, 1, 40),
        entry(2, 2, 40),
        entry(2, 3, 300),
        entry(2, 4, 5),
    ];
    let first = [entry(1, 1, 40), entry(1, 2, 40)];
    assert!(
        found.log == first || whole.starts_with(&found.log),
        "{:?}",
        found.log
    );
    let last = found.log.last().unwrap().viewstamp;
    let next = entry(4, last.index.0 + 1, 40);
    store.persist_entries(last, None, std::slice::from_ref(&next));
    synced(&mut store);
    drop(store);
    let (_, again) = open(dir);
    assert!(!again.forgotten && !again.torn);
    assert_eq!(again.log.last(), Some(&next));
    assert_eq!(again.log.len(), found.log.len() + 1);
    found.log.len()
}

#[test]
fn a_tail_torn_anywhere_is_cut_and_the_rest_kept() {
    let (origin, before, after) = before_and_after();
    let differs = |i: &usize| before[*i] != after[*i];
    let first = (0..before.len()).find(differs).unwrap();
    let last = (0..before.len()).rfind(differs).unwrap();
    let mut lengths = [0; 5];
    // Steps of three bytes reach every offset in a word.
    for tear in (first..=last + 1).step_by(3) {
        let dir = origin.copy();
        let mut bytes = before.clone();
        bytes[..tear].copy_from_slice(&after[..tear]);
        std::fs::write(first_segment(dir.path()).0, bytes).unwrap();
        lengths[check(dir.path())] += 1;
    }
    assert!(lengths[1..].iter().all(|n| *n > 0), "{lengths:?}");
}
