//! A crash between any two operations, and in the middle of any write.
//!
//! The store runs over a recorder. Then, for every prefix of the recorded operations, a directory is
//! built as a disk may hold it: everything that was synced, and any part of the rest. It must hold all
//! that was acknowledged, and nothing that was never written.

use super::{Files, directory, entry, open, promise, stamp, synced};
use crate::Completion;
use apus::Configuration;
use plover_types::{Index, SplitMix64, Viewstamp};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Writes reach the disk in units of this many bytes.
const SECTOR_BYTES: usize = 512;

/// An operation on the directory.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Create(String),
    Write(String, u64, Vec<u8>),
    Sync(String),
    Rename(String, String),
    Remove(String),
    SyncDirectory,
}

/// Keeps every operation on a directory, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    operations: Arc<Mutex<Vec<Operation>>>,
}

thread_local! {
    static RECORDING: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

impl Recorder {
    /// The recorder for a directory that is being opened in this thread, if a test wants one.
    pub fn of_this_thread() -> Option<Self> {
        RECORDING.with_borrow(Clone::clone)
    }

    pub fn record(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }

    fn start() -> Self {
        let recorder = Self::default();
        RECORDING.set(Some(recorder.clone()));
        recorder
    }

    fn count(&self) -> usize {
        self.operations.lock().unwrap().len()
    }

    fn stop(self) -> Vec<Operation> {
        RECORDING.set(None);
        std::mem::take(&mut self.operations.lock().unwrap())
    }
}

/// A file: what was synced, and the writes that the disk may lack.
#[derive(Clone, Debug, Default)]
struct Image {
    synced: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
}

impl Image {
    fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
        if bytes.len() < offset + new.len() {
            bytes.resize(offset + new.len(), 0);
        }
        bytes[offset..offset + new.len()].copy_from_slice(new);
    }

    fn sync(&mut self) {
        for (offset, new) in std::mem::take(&mut self.unsynced) {
            Self::put(&mut self.synced, offset as usize, &new);
        }
    }

    /// The content of the disk if each unsynced sector was written with a chance of one half.
    fn torn(&self, random: &mut SplitMix64) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        for (offset, new) in &self.unsynced {
            let mut at = *offset as usize;
            let end = at + new.len();
            while at < end {
                let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
                let piece = &new[at - *offset as usize..next - *offset as usize];
                if random.next_u64() & 1 == 0 {
                    Self::put(&mut bytes, at, piece);
                } else if bytes.len() < next {
                    bytes.resize(next, 0);
                }
                at = next;
            }
        }
        bytes
    }
}

/// The disk: files by number, and names. Changes of names are kept in order, as journalling file
/// systems do, and become durable by a sync of the directory or by chance before.
#[derive(Default)]
struct Disk {
    files: Vec<Image>,
    names: BTreeMap<String, usize>,
    names_synced: BTreeMap<String, usize>,
    changes: Vec<Operation>,
}

impl Disk {
    /// A disk that holds the files of `dir`.
    fn of(dir: &Path) -> Self {
        let mut disk = Self::default();
        for (name, synced) in Files::of(dir).0 {
            disk.names.insert(name, disk.files.len());
            disk.files.push(Image {
                synced,
                ..Image::default()
            });
        }
        disk.names_synced = disk.names.clone();
        disk
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(name, offset, bytes) => {
                let file = self.names[name];
                self.files[file].unsynced.push((*offset, bytes.clone()));
            }
            Operation::Sync(name) => {
                let file = self.names[name];
                self.files[file].sync();
            }
            Operation::SyncDirectory => {
                self.names_synced = self.names.clone();
                self.changes.clear();
            }
            change => {
                if let Operation::Create(_) = change {
                    self.files.push(Image::default());
                }
                let newest = self.files.len().saturating_sub(1);
                rename(&mut self.names, change, newest);
                self.changes.push(change.clone());
            }
        }
    }

    /// Builds a directory that the crash may have left.
    fn leave(&self, dir: &Path, random: &mut SplitMix64) {
        let mut names = self.names_synced.clone();
        let kept = random.range(0, self.changes.len() as u64) as usize;
        let created = |c: &&Operation| matches!(c, Operation::Create(_));
        let mut file = self.files.len() - self.changes.iter().filter(created).count();
        for change in self.changes.iter().take(kept) {
            rename(&mut names, change, file);
            file += usize::from(matches!(change, Operation::Create(_)));
        }
        for (name, file) in names {
            std::fs::write(dir.join(name), self.files[file].torn(random)).unwrap();
        }
    }
}

fn rename(names: &mut BTreeMap<String, usize>, change: &Operation, created: usize) {
    match change {
        Operation::Create(name) => {
            names.insert(name.clone(), created);
        }
        Operation::Rename(from, to) => {
            let file = names.remove(from).unwrap();
            names.insert(to.clone(), file);
        }
        Operation::Remove(name) => {
            names.remove(name).unwrap();
        }
        _ => {}
    }
}

/// The acknowledged state after so many operations.
#[derive(Clone, Copy, Default)]
struct Acknowledged {
    operations: usize,
    round: u64,
    last: Viewstamp,
    trimmed: Index,
    /// The next batch begins with a cut of `last`.
    then_cut: bool,
    /// The next batch begins the log anew.
    then_anew: bool,
}

/// A log with views, cuts and trims over many segments, and what it acknowledged when.
fn history(dir: &Path) -> (Vec<Operation>, Vec<Acknowledged>) {
    let recorder = Recorder::start();
    let mut acknowledged: Vec<Acknowledged> = Vec::new();
    let mut now = Acknowledged::default();
    for opening in 0..3 {
        let (mut store, _) = open(dir);
        for round in opening * 4 + 1..opening * 4 + 5 {
            store.persist_state(promise(round));
            let mut last = store.last();
            if last.index.0 > now.trimmed.0 + 3 && round % 2 == 0 {
                // Only the last entry is cut, and the new view's first takes its place.
                last = view_before(&store, Index(last.index.0 - 1));
                acknowledged.last_mut().unwrap().then_cut = true;
            }
            let mut anew = None;
            if round == 7 || round == 11 {
                // The log begins anew: after an installed snapshot, and in a new generation.
                let index = if round == 7 { last.index.0 + 10 } else { 0 };
                last = stamp(round, index);
                anew = Some(Configuration::default());
                now.trimmed = last.index;
                acknowledged.last_mut().unwrap().then_anew = true;
            }
            for batch in 0..6 {
                let bytes = 100 + 300 * (batch % 3);
                let first = last.index.0 + 1;
                let entries: Vec<_> = (first..first + 3).map(|i| entry(round, i, bytes)).collect();
                store.persist_entries(last, anew.take(), &entries);
                last = stamp(round, first + 2);
                if batch == 4 {
                    now.trimmed = Index(last.index.0.saturating_sub(12));
                    store.trim(now.trimmed);
                }
                for done in synced(&mut store) {
                    match done {
                        Completion::StatePersisted(_) => now.round = round,
                        Completion::EntriesPersisted(last) => now.last = last,
                        Completion::Failed(error) => panic!("{error}"),
                    }
                }
                now.operations = recorder.count();
                acknowledged.push(now);
            }
        }
    }
    (recorder.stop(), acknowledged)
}

fn view_before(store: &crate::Store, index: Index) -> Viewstamp {
    (1..20)
        .map(|round| stamp(round, index.0))
        .find(|viewstamp| store.holds(*viewstamp))
        .unwrap()
}

#[test]
fn acknowledged_entries_survive_a_crash_at_any_operation() {
    let origin = directory();
    let (operations, acknowledged) = history(origin.path());
    let mut random = SplitMix64::new(3);
    let mut disk = Disk::default();
    let (mut torn, mut complete) = (0, 0);
    for (done, operation) in operations.iter().enumerate() {
        disk.apply(operation);
        let so_far = |a: &&Acknowledged| a.operations <= done + 1;
        let known = acknowledged.iter().rev().find(so_far);
        for again in [false, true] {
            let dir = directory();
            disk.leave(dir.path(), &mut random);
            let dir = if again && done % 3 == 0 {
                crash_in_recovery(dir.path(), &mut random)
            } else {
                dir
            };
            let (store, found) = open(dir.path());
            assert_eq!(found.damage, None, "after operation {done}");
            torn += usize::from(found.torn);
            if let Some(known) = known {
                check(&found, known, done);
                complete += usize::from(store.last() == known.last);
            }
        }
    }
    assert!(torn > 20, "{torn} torn tails");
    assert!(
        complete > 20,
        "{complete} logs that end with what was acknowledged"
    );
}

/// Opens the store that a crash has left, writes a little, and crashes again somewhere in that.
fn crash_in_recovery(dir: &Path, random: &mut SplitMix64) -> tempfile::TempDir {
    let mut disk = Disk::of(dir);
    let recorder = Recorder::start();
    let (mut store, found) = open(dir);
    if !found.forgotten {
        let last = store.last();
        let next = [
            entry(30, last.index.0 + 1, 700),
            entry(30, last.index.0 + 2, 700),
        ];
        store.persist_entries(last, None, &next);
        synced(&mut store);
    }
    drop(store);
    let operations = recorder.stop();
    let survived = random.range(0, operations.len() as u64) as usize;
    for operation in &operations[..survived] {
        disk.apply(operation);
    }
    let again = directory();
    disk.leave(again.path(), random);
    again
}

/// The log has no holes, holds only what was written, and reaches as far as it was acknowledged
/// (unless a cut that was being written has replaced its end).
fn check(found: &crate::Recovered, known: &Acknowledged, done: usize) {
    assert!(!found.forgotten, "after operation {done}");
    let promised = found.promise.unwrap_or_default().promised;
    let due = promise(known.round).promised;
    assert!(promised >= due, "after operation {done}");
    let mut due = found.base.viewstamp.index;
    for held in &found.log {
        due = due.next();
        let Viewstamp { view, index } = held.viewstamp;
        assert_eq!(index, due, "after operation {done}");
        assert_eq!(*held, entry(view.round(), index.0, held.payload.len()));
    }
    let base = found.base.viewstamp;
    let newest = found.log.last().map_or(base, |e| e.viewstamp);
    if known.then_anew && newest.view > known.last.view {
        return;
    }
    assert!(base.index <= known.last.index, "after operation {done}");
    let held = found.log.iter().any(|e| e.viewstamp == known.last);
    assert!(
        held || known.then_cut && (newest.view > known.last.view || due.next() == known.last.index),
        "after operation {done}: {} of {}",
        newest,
        known.last
    );
}
