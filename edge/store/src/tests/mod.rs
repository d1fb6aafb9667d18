//! Tests of the whole store, one kind of failure a file.

mod basic;
pub(crate) mod crash;
mod damage;
mod format;
mod limits;
mod torn;
mod twin;

use crate::directory::Directory;
use crate::error::SegmentNumber;
use crate::segment;
use crate::{Completion, Options, Recovered, Store};
use apus::{Durability, DurableState, Entry, EntryKind};
use plover_types::{Index, ReplicaId, View, Viewstamp};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A directory in memory where there is one: these tests sync often, and no disk is needed to
/// see what was written.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    made.unwrap()
}

/// The files of a store.
#[derive(PartialEq, Eq)]
pub(crate) struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    pub fn of(dir: &Path) -> Self {
        let files = std::fs::read_dir(dir).unwrap().filter_map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            match std::fs::read(file.path()) {
                // The store renames and removes files meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                read => Some((name, read.unwrap())),
            }
        });
        Self(files.collect())
    }

    /// Copies the files into a directory of their own.
    pub fn copy(&self) -> TempDir {
        let dir = directory();
        for (name, bytes) in &self.0 {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        dir
    }

    /// The names of the segments, oldest first.
    pub fn segments(&self) -> Vec<&str> {
        let names = self.0.keys().map(String::as_str);
        names.filter(|name| name.starts_with("log.")).collect()
    }
}

/// The smallest segments, so that little data crosses many.
pub(crate) fn options() -> Options {
    Options {
        segment_bytes: 4096,
        ..Options::new("group", Durability::Disk)
    }
}

pub(crate) fn open(dir: &Path) -> (Store, Recovered) {
    Store::open(dir, &options()).unwrap()
}

/// The oldest segment of a log.
pub(crate) fn first_segment(dir: &Path) -> (PathBuf, SegmentNumber) {
    let number = segment::list(&Directory::open(dir).unwrap()).unwrap()[0];
    (dir.join(number.to_string()), number)
}

pub(crate) fn stamp(round: u64, index: u64) -> Viewstamp {
    Viewstamp {
        view: View::new(round, ReplicaId(0)),
        index: Index(index),
    }
}

/// An entry whose bytes tell which it is.
pub(crate) fn entry(round: u64, index: u64, bytes: usize) -> Entry {
    let seed = (round * 31 + index) as u8;
    Entry {
        viewstamp: stamp(round, index),
        kind: EntryKind::App,
        payload: (0..bytes).map(|i| seed.wrapping_add(i as u8)).collect(),
    }
}

pub(crate) fn promise(round: u64) -> DurableState {
    DurableState {
        promised: View::new(round, ReplicaId(0)),
        ..DurableState::default()
    }
}

/// Writes what is queued, and returns the completions.
pub(crate) fn synced(store: &mut Store) -> Vec<Completion> {
    store.sync();
    let mut done = Vec::new();
    store.completions(&mut done);
    done
}
