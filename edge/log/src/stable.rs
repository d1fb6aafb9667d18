//! The state that outlives the process: the promise, in disk mode the log, and a snapshot of the state
//! from before the log begins.
//!
//! ```text
//!   snapshot (applied) ───────────►|
//!   log on disk        base|------------------------------|
//!                          trimmed only once the snapshot reflects it
//! ```
//!
//! When the operator begins a new log, the snapshot of the old one stays until there is another. The
//! view of the last entry that it reflects tells them apart: every entry of a new log has a later view
//! than all entries of the old one.
//!
//! While the disk is quick, the server's own thread writes and syncs each batch: that saves two
//! wake-ups, and what comes in meanwhile is the next batch. While the disk is slow, the store's
//! thread does it, so that heartbeats are not delayed.

use crate::{Config, ServerError};
use apus::{Configuration, Durability, DurableState, Entry, Event, Start};
use plover_store::{Completion, Counters, Options, Store};
use plover_types::wire::Versions;
use plover_types::{Index, View, Viewstamp};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Syncs that take longer on average are left to the store's thread. A fortieth of the default
/// timeout, so that ten syncs in a row delay a heartbeat by about one period.
const QUICK: Duration = Duration::from_micros(2500);

/// One replica's stable storage, if it has any.
#[derive(Debug, Default)]
pub(crate) struct Stable {
    store: Option<Store>,
    /// Something is queued that has not been submitted.
    queued: bool,
    /// How long a sync takes, averaged over about eight.
    pace: Duration,
    done: Vec<Completion>,
    snapshots: Option<Snapshots>,
}

impl Stable {
    /// Opens `dir`. Returns how to start by what it held, and the newest snapshot of the state.
    pub fn open(
        dir: &Path,
        group: &str,
        config: &Config,
    ) -> Result<(Self, Start, Option<Vec<u8>>), ServerError> {
        let failed = |error: plover_store::StoreError| ServerError::Store(error.to_string());
        let options = Options::new(group, config.durability);
        let (store, recovered) = Store::open(dir, &options).map_err(failed)?;
        if let Some(damage) = &recovered.damage {
            tracing::warn!(%damage, "this replica recovers from the others");
        }
        let snapshots = (config.durability == Durability::Disk).then(|| Snapshots::new(dir));
        let snapshot = match &snapshots {
            Some(it) => it.read()?,
            None => None,
        };
        let stable = Self {
            store: Some(store),
            snapshots,
            ..Self::default()
        };
        Ok((stable, recovered.start(), snapshot))
    }

    /// A descriptor that is readable while the store's thread has completions.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.store.as_ref().map(Store::wait_fd)
    }

    /// Counts of what has been written.
    pub fn counters(&self) -> Counters {
        self.store.as_ref().map(Store::counters).unwrap_or_default()
    }

    /// Makes the promise durable. Without storage, returns the event at once.
    pub fn persist_state(&mut self, state: DurableState) -> Option<Event<'static>> {
        let Some(store) = &mut self.store else {
            return Some(Event::StatePersisted(state));
        };
        store.persist_state(state);
        self.queued = true;
        None
    }

    /// Makes entries durable. Without storage, returns the event at once.
    pub fn persist_entries(
        &mut self,
        after: Viewstamp,
        anew: Option<Configuration>,
        entries: &[Entry],
    ) -> Option<Event<'static>> {
        let Some(store) = &mut self.store else {
            let last = entries.last().map_or(after, |entry| entry.viewstamp);
            return Some(Event::EntriesPersisted(last));
        };
        store.persist_entries(after, anew, entries);
        self.queued = true;
        None
    }

    /// Whether [`Self::write`] has something to do.
    pub fn is_queued(&self) -> bool {
        self.queued
    }

    /// Writes what is queued.
    pub fn write(&mut self) {
        let Some(store) = self.store.as_mut().filter(|_| self.queued) else {
            return;
        };
        self.queued = false;
        if self.pace > QUICK {
            store.submit();
            // The quick way is tried again after a while.
            self.pace -= self.pace / 64;
            return;
        }
        let before = Instant::now();
        store.sync();
        self.pace = (self.pace * 7 + before.elapsed()) / 8;
    }

    /// Hands what has become durable to `each`.
    pub fn completions(&mut self, mut each: impl FnMut(Event<'static>)) -> Result<(), ServerError> {
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        store.completions(&mut self.done);
        for done in self.done.drain(..) {
            match done {
                Completion::StatePersisted(state) => each(Event::StatePersisted(state)),
                Completion::EntriesPersisted(at) => each(Event::EntriesPersisted(at)),
                Completion::Failed(error) => return Err(ServerError::Store(error.to_string())),
            }
        }
        Ok(())
    }

    /// Trims the log on disk, once a snapshot on disk reflects `base`. The log in memory began in the
    /// view `generation` and starts after `base` now. `snapshot` makes a snapshot of the state, which
    /// reflects `applied`.
    pub fn trim(
        &mut self,
        (generation, base): (View, Index),
        applied: Viewstamp,
        snapshot: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), ServerError> {
        let (Some(store), Some(snapshots)) = (&mut self.store, &mut self.snapshots) else {
            return Ok(());
        };
        snapshots.finish_if_done()?;
        if base == Index(0) {
            return Ok(());
        }
        let reflects = |it: Viewstamp| it.view >= generation && it.index >= base;
        if reflects(snapshots.durable) {
            store.trim(base);
        } else if reflects(applied) && snapshots.writing.is_none() {
            snapshots.begin(applied, snapshot())?;
        }
        Ok(())
    }
}

/// The file of the newest snapshot.
#[derive(Debug)]
struct Snapshots {
    path: PathBuf,
    /// The last entry that the file reflects.
    durable: Viewstamp,
    writing: Option<JoinHandle<io::Result<Viewstamp>>>,
}

impl Snapshots {
    fn new(dir: &Path) -> Self {
        Self {
            path: dir.join("snapshot"),
            durable: Viewstamp::default(),
            writing: None,
        }
    }

    fn failed(&self, what: &'static str, source: &io::Error) -> ServerError {
        let advice = plover_store::advice(&self.path, source);
        ServerError::Store(format!(
            "cannot {what} {}: {source}{advice}",
            self.path.display()
        ))
    }

    fn read(&self) -> Result<Option<Vec<u8>>, ServerError> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("read", &error)),
        };
        match bytes.split_first_chunk() {
            Some((crc, state)) if crc32c::crc32c(state).to_le_bytes() == *crc => {
                if let Some(version) = state.first().filter(|it| !Versions::OURS.fits(**it)) {
                    // The log on disk is ours, or there is none: the operator has moved the other
                    // release's log away, and the snapshot stayed.
                    tracing::warn!(
                        path = %self.path.display(), version, ours = %Versions::OURS,
                        "the snapshot is of another release's wire version and not used"
                    );
                    return Ok(None);
                }
                Ok(Some(state.to_vec()))
            }
            _ => {
                // The log on disk begins after its state, so this replica asks the others for one.
                tracing::warn!(path = %self.path.display(), "the snapshot is damaged and not used");
                Ok(None)
            }
        }
    }

    /// Writes in a thread of its own: a large state takes longer than a heartbeat may be late. Without a thread the
    /// snapshot has failed.
    fn begin(&mut self, applied: Viewstamp, state: Vec<u8>) -> Result<(), ServerError> {
        let path = self.path.clone();
        let write = move || {
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(&crc32c::crc32c(&state).to_le_bytes())?;
            file.write_all(&state)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(path.parent().unwrap_or(&path))?.sync_all()?;
            Ok(applied)
        };
        let spawned = std::thread::Builder::new().spawn(write);
        self.writing = Some(spawned.map_err(|error| self.failed("begin to write", &error))?);
        Ok(())
    }

    fn finish_if_done(&mut self) -> Result<(), ServerError> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) {
            let result = self.writing.take().map(JoinHandle::join);
            match result {
                Some(Ok(Ok(applied))) => self.durable = applied,
                Some(Ok(Err(error))) => return Err(self.failed("write", &error)),
                Some(Err(_)) | None => unreachable!("the writer does not panic"),
            }
        }
        Ok(())
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take() {
            // Half a file would do no harm, because it has another name. We wait so that no thread
            // outlives its owner.
            let _ = writing.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus::{EntryKind, Members};
    use plover_types::{ReplicaId, ReplicaSet};

    fn at(view: View, index: u64) -> Viewstamp {
        let index = Index(index);
        Viewstamp { view, index }
    }

    /// A log of nine entries that begins in `view`.
    fn begin(stable: &mut Stable, view: View) {
        let configuration = Configuration {
            in_sync: ReplicaSet(1),
            members: Members::of(ReplicaSet(1)),
            ..Configuration::default()
        };
        let entry = |index| Entry {
            viewstamp: at(view, index),
            kind: EntryKind::App,
            payload: vec![1],
        };
        let entries: Vec<_> = (1..=9).map(entry).collect();
        stable.persist_entries(at(view, 0), Some(configuration), &entries);
    }

    #[test]
    fn a_snapshot_of_the_log_before_lets_nothing_be_trimmed() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(ReplicaId(0), ReplicaSet(1));
        config.durability = Durability::Disk;
        let (mut stable, _, _) = Stable::open(dir.path(), "g", &config).unwrap();
        let (old, new) = (View(16), View(32));
        let mut made = 0;
        for generation in [old, new] {
            begin(&mut stable, generation);
            let mut trim = || {
                let snapshot = || {
                    made += 1;
                    vec![1]
                };
                stable
                    .trim((generation, Index(5)), at(generation, 9), snapshot)
                    .unwrap();
                stable.store.as_ref().unwrap().holds(at(generation, 1))
            };
            assert!(trim(), "trimmed without a snapshot that reflects it");
            while trim() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(made, 2);
    }
}
