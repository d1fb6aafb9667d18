//! Flipped bits and missing bytes: the log is whole, or the replica knows that it is not.

use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;

/// A closed store with cuts, trims and several segments, and its log. In memory, because a static is
/// never dropped and its directory would stay.
static ORIGIN: LazyLock<(Files, Vec<Entry>)> = LazyLock::new(|| {
    let dir = directory();
    let (mut store, _) = open(dir.path());
    let mut last = Viewstamp::default();
    for batch in 0..12 {
        let round = 1 + batch / 4;
        store.persist_state(promise(round));
        let after = if batch % 4 == 0 && batch > 0 {
            stamp(round - 1, last.index.0 - 1)
        } else {
            last
        };
        let first = after.index.0 + 1;
        let entries: Vec<_> = (first..first + 3).map(|i| entry(round, i, 300)).collect();
        store.persist_entries(after, None, &entries);
        last = stamp(round, first + 2);
        if batch == 6 {
            store.trim(Index(10));
        }
        synced(&mut store);
    }
    drop(store);
    // After a restart.
    let (mut store, _) = open(dir.path());
    let entries = [
        entry(3, last.index.0 + 1, 300),
        entry(3, last.index.0 + 2, 300),
    ];
    store.persist_entries(last, None, &entries);
    synced(&mut store);
    drop(store);
    let (_, found) = open(dir.path());
    assert!(!found.forgotten && found.log.len() > 15);
    (Files::of(dir.path()), found.log)
});

fn flip(path: &Path, bit: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).unwrap();
}

/// Checks that the log is whole, or known to be damaged. Returns whether it is known to be damaged.
fn check(dir: &Path, log: &[Entry]) -> bool {
    let (_, found) = open(dir);
    assert_eq!(
        found.promise,
        Some(promise(3)),
        "the promise has two copies"
    );
    assert_eq!(found.damage.is_some(), found.forgotten);
    if found.forgotten {
        assert!(found.log.is_empty());
        let (_, again) = open(dir);
        assert!(again.forgotten, "a restart does not make it remember");
    } else {
        assert_eq!(found.log, log);
    }
    found.forgotten
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_flipped_bit_in_the_promise_is_harmless(bit in 0..16384 * 8usize) {
        let (origin, log) = &*ORIGIN;
        let dir = origin.copy();
        flip(&dir.path().join("state"), bit);
        prop_assert!(!check(dir.path(), log));
    }

    #[test]
    fn noise_in_the_place_of_a_stretch_is_harmless_or_reported(
        file: prop::sample::Index, at in 0..4096usize, noise in prop::collection::vec(any::<u8>(), 1..600),
    ) {
        let (origin, log) = &*ORIGIN;
        let dir = origin.copy();
        let path = dir.path().join(file.get(&origin.segments()));
        let mut bytes = std::fs::read(&path).unwrap();
        let end = (at + noise.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        std::fs::write(&path, bytes).unwrap();
        let (_, found) = open(dir.path());
        // A stretch may take the seal and the end of the last batch together: a torn tail.
        prop_assert!(found.forgotten || log.starts_with(&found.log));
    }
}

#[test]
fn every_byte_of_an_acknowledged_entry_is_vouched_for() {
    let (origin, log) = &*ORIGIN;
    let mut reported = 0;
    for file in origin.segments() {
        for byte in (0..4096).step_by(61) {
            let dir = origin.copy();
            flip(&dir.path().join(file), byte * 8 + byte % 8);
            reported += usize::from(check(dir.path(), log));
        }
    }
    assert!(reported > 50, "{reported}");
}

/// With and without the seal that an idle store has put behind its last record.
#[test]
fn a_file_that_became_shorter_is_harmless_or_reported() {
    let (origin, log) = &*ORIGIN;
    let mut reported = 0;
    for file in origin.segments() {
        for sealed in [true, false] {
            for length in (0..4096).step_by(21) {
                let dir = origin.copy();
                let path = dir.path().join(file);
                let mut bytes = std::fs::read(&path).unwrap();
                if !sealed {
                    unseal(&mut bytes);
                }
                std::fs::write(&path, &bytes[..length]).unwrap();
                reported += usize::from(check(dir.path(), log));
            }
        }
    }
    assert!(reported > 333, "{reported}");
}

/// Takes the seals off a segment.
fn unseal(bytes: &mut [u8]) {
    for at in (0..bytes.len() - 24).step_by(8) {
        let header = &mut bytes[at..at + 24];
        if header[4..8] == [0; 4] && header[9..16] == [0; 7] && header[20..] == [7, 0, 0, 0] {
            header.fill(0);
        }
    }
}

#[test]
fn a_missing_segment_is_reported() {
    let (origin, log) = &*ORIGIN;
    let files = origin.segments();
    assert!(files.len() >= 3);
    for file in &files[..files.len() - 1] {
        let dir = origin.copy();
        std::fs::remove_file(dir.path().join(file)).unwrap();
        assert!(check(dir.path(), log), "{file}");
    }
}

#[test]
fn the_damage_names_segment_and_place() {
    let (origin, _) = &*ORIGIN;
    let dir = origin.copy();
    let file = origin.segments()[0];
    flip(&dir.path().join(file), 2000 * 8);
    let (_, found) = open(dir.path());
    let damage = found.damage.unwrap().to_string();
    assert!(damage.contains(file) && damage.contains("byte"), "{damage}");
    assert!(dir.path().join("damaged").exists(), "kept for inspection");
}

#[test]
fn a_promise_that_cannot_be_read_is_not_guessed() {
    let (origin, _) = &*ORIGIN;
    let dir = origin.copy();
    let state = dir.path().join("state");
    for copy in 0..4 {
        flip(&state, (copy * 4096 + 20) * 8);
    }
    let error = Store::open(dir.path(), &options()).unwrap_err().to_string();
    assert!(
        error.contains("damaged") && error.contains("move"),
        "{error}"
    );
    std::fs::remove_file(&state).unwrap();
    let error = Store::open(dir.path(), &options()).unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}
