//! The journal after a power loss, and files that are no journal.

use super::*;
use proptest::prelude::*;

const BLOCKS: u32 = 100;

fn batch(blocks: &[u32], fill: u8) -> Batch {
    let mut batch = Batch::new();
    for block in blocks {
        batch.push(BlockNo(*block), &[fill; DISK_BLOCK_BYTES]);
    }
    batch
}

/// The file after those of its changed 512-byte sectors for which `reached` holds have reached the disk;
/// it gets their numbers in rising order.
fn torn(before: &[u8], after: &[u8], reached: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut file = before.to_vec();
    file.resize(after.len().max(before.len()), 0);
    let mut changed = 0;
    for at in (0..after.len()).step_by(512) {
        let end = (at + 512).min(after.len());
        if file[at..end] != after[at..end] {
            if reached(changed) {
                file[at..end].copy_from_slice(&after[at..end]);
            }
            changed += 1;
        }
    }
    file
}

fn reopen(path: &Path, bytes: &[u8]) -> (bool, SyncNo, Option<Batch>) {
    std::fs::write(path, bytes).unwrap();
    let journal = Journal::open(path, BLOCKS).unwrap();
    (
        journal.is_whole(),
        journal.sync(),
        journal.pending().unwrap(),
    )
}

/// If any part of a staging has reached the disk before a power loss, a restart finds either the state
/// before it or all of the blocks.
#[test]
fn a_torn_stage_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j");
    let mut journal = Journal::open(&path, BLOCKS).unwrap();
    assert!(journal.is_whole() && journal.pending().unwrap().is_none());
    for round in 1..=5u64 {
        let (old, new) = (SyncNo(round - 1), SyncNo(round));
        let before = std::fs::read(&path).unwrap();
        let staged = batch(&[round as u32, 50, 99], round as u8);
        journal.stage(new, &staged).unwrap();
        let after = std::fs::read(&path).unwrap();
        let all = (true, new, Some(staged));
        let other = dir.path().join("other");
        assert_eq!(reopen(&other, &after), all);
        for cut in 0..30 {
            for file in [
                torn(&before, &after, |sector| sector < cut),
                torn(&before, &after, |sector| sector >= cut),
                torn(&before, &after, |sector| sector != cut),
            ] {
                let found = reopen(&other, &file);
                assert!(found == (true, old, None) || found == all, "{found:?}");
                assert!(found != all || file == after, "sector {cut} is not needed?");
            }
        }
        journal.retire().unwrap();
        let retired = std::fs::read(&path).unwrap();
        assert_eq!(reopen(&other, &retired), (true, new, None));
    }
}

#[test]
fn other_disks_and_damage_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j");
    let mut journal = Journal::open(&path, BLOCKS).unwrap();
    journal.stage(SyncNo(1), &batch(&[1], 1)).unwrap();
    let error = Journal::open(&path, 50).unwrap_err().to_string();
    assert!(error.contains("100 blocks"), "{error}");
    journal.retire().unwrap();
    assert!(Journal::open(&path, 50).is_ok(), "nothing is in force");
    std::fs::write(&path, [1; 9000]).unwrap();
    let error = Journal::open(&path, BLOCKS).unwrap_err().to_string();
    assert!(
        error.contains("damaged") && error.contains("remove"),
        "{error}"
    );
}

/// A journal that cannot be read is neither damaged nor torn. A folder and a file that is opened for writing alone are such.
#[test]
fn an_error_in_reading_is_told_and_counts_no_older_slot() {
    let dir = tempfile::tempdir().unwrap();
    let error = Journal::look(dir.path(), BLOCKS).unwrap_err();
    assert!(matches!(error, DiskError::Io { .. }), "{error}");
    let path = dir.path().join("j");
    let mut journal = Journal::open(&path, BLOCKS).unwrap();
    journal.stage(SyncNo(1), &batch(&[1], 1)).unwrap();
    journal.file = OpenOptions::new().write(true).open(&path).unwrap();
    let error = journal.pending().unwrap_err();
    assert!(matches!(error, DiskError::Io { .. }), "{error}");
    assert!(newest(&journal.file, &path, BLOCKS).is_err());
    // Cut off, it was never written.
    let whole = File::open(&path).unwrap();
    journal.file.set_len(BODY_AT + 10).unwrap();
    assert!(read_body(&whole, &journal.slot).unwrap().is_none());
}

/// The journal of another release is refused with its format number, and not changed.
#[test]
fn another_format_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j");
    let mut journal = Journal::open(&path, BLOCKS).unwrap();
    journal.stage(SyncNo(1), &batch(&[1], 1)).unwrap();
    let ours = std::fs::read(&path).unwrap();
    // Slots are written in turn: beside the other release's first one there is still one of ours.
    for changed in [&[0, SLOT_BYTES][..], &[0], &[SLOT_BYTES]] {
        let mut bytes = ours.clone();
        for at in changed {
            let (fields, hash) = bytes[*at..].split_at_mut(FIELDS_BYTES);
            fields[MAGIC.len()] = 9;
            hash[..HASH_BYTES].copy_from_slice(blake3::hash(fields).as_bytes());
        }
        std::fs::write(&path, &bytes).unwrap();
        let error = Journal::open(&path, BLOCKS).unwrap_err().to_string();
        assert!(
            error.contains("format 9") && error.contains("start that release"),
            "{changed:?}: {error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

/// A changed format needs a new [`VERSION`], and a decision about older journals.
#[test]
fn the_form_of_the_journal_is_that_of_its_version() {
    let slot = Slot {
        generation: 1001,
        whole: true,
        in_force: false,
        sync: SyncNo(1002),
        blocks: 1003,
        body_bytes: 1004,
        body_hash: [5; 32],
    };
    let sum = plover_types::forms::fingerprint([&slot.encode()[..], &batch(&[1006], 7).body]);
    assert_eq!(
        (VERSION, sum),
        (1, 0x6850_6eae_7741_70d2),
        "{sum:#x}: raise VERSION"
    );
}

proptest! {
    /// Any bytes: an error or a state, no panic, no block outside the disks.
    #[test]
    fn noise_is_no_journal(mut bytes: Vec<u8>, slot in 0usize..2, body in 0u64..20_000, count in 0u32..200) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        bytes.resize(BODY_AT as usize + bytes.len(), 0);
        let slot_at = slot * SLOT_BYTES;
        let hash = *blake3::hash(&bytes[BODY_AT as usize..]).as_bytes();
        let made = Slot { generation: 3, whole: true, in_force: true, sync: SyncNo(1), blocks: count, body_bytes: body, body_hash: hash };
        bytes[slot_at..slot_at + SLOT_BYTES].copy_from_slice(&made.encode());
        std::fs::write(&path, &bytes).unwrap();
        let opened = Journal::open(&path, count).and_then(|journal| journal.pending());
        if let Ok(Some(batch)) = opened {
            prop_assert!(batch.iter().all(|(block, _)| block.0 < count));
        }
    }
}
