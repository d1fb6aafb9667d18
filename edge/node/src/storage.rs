//! State that outlives the process: the promised view, in disk mode the log, and the guest record.
//!
//! ```text
//!   state_dir/
//!     consensus/    promise and log, in the hands of [`plover_store`]
//!     state.json    the guest record: what an operator needs to know when all replicas were lost; and the
//!                   members by the log, once it has named any
//! ```
//!
//! `state.json` is replaced whole (see `record`). It changes with the in-sync set and with syncvms, never
//! with an entry. Promise and log are queued, and the store's thread writes them while the loop goes on.

mod error;
mod record;

pub use error::StorageError;

use crate::config::ReplicaConfig;
use apus::{Configuration, DurableState, Entry, Start};
use plover_replica::{Event, GroupRecord, GuestRecord, RecordPlace};
use plover_store::{Completion, Damage, Options, Store};
use plover_types::{Index, ReplicaId, Viewstamp};
use record::{Kept, RecordFile, RecordThread};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The files of one replica.
#[derive(Debug)]
pub(crate) struct Storage {
    record: RecordThread,
    store: Store,
    damage: Option<Damage>,
    drained: Arc<Drained>,
    /// The store is empty, though this replica has run before.
    promise_lost: bool,
    completions: Vec<Completion>,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.to_path_buf();
    move |source| StorageError::Io { what, path, source }
}

/// Whether this host is drained.
#[derive(Debug)]
struct Drained {
    /// Also over restarts.
    is: AtomicBool,
    /// Until this process ends.
    until_restart: AtomicBool,
    /// Exists while `is`.
    file: PathBuf,
    /// Held while the file is made or removed; whether that may not be durable.
    writing: Mutex<bool>,
}

impl Drained {
    fn of(file: PathBuf) -> Self {
        Self {
            is: file.exists().into(),
            until_restart: false.into(),
            file,
            writing: Mutex::new(false),
        }
    }

    /// Writes down, durably, what is so now.
    fn write_down(&self) -> Result<(), StorageError> {
        let mut unsynced = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = &self.file;
        if self.is.load(Ordering::Acquire) {
            let made = File::create(file).and_then(|it| it.sync_all());
            made.map_err(io_error("cannot write", file))?;
        } else {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !*unsynced {
                        return Ok(());
                    }
                }
                removed => removed.map_err(io_error("cannot remove", file))?,
            }
        }
        *unsynced = true;
        let dir = file.parent().unwrap_or(Path::new("."));
        let synced = File::open(dir).and_then(|it| it.sync_all());
        synced.map_err(io_error("cannot write", dir))?;
        *unsynced = false;
        Ok(())
    }
}

impl Storage {
    /// Opens `dir`. Returns the state that the replica remembers.
    pub fn open(
        dir: &Path,
        group: &str,
        me: ReplicaId,
        durability: apus::Durability,
        newest_version: u8,
    ) -> Result<(Self, Start), StorageError> {
        std::fs::create_dir_all(dir).map_err(io_error("cannot create", dir))?;
        let mut options = Options::new(group, durability);
        options.newest_version = newest_version;
        // This comes first: it refuses a directory that another process uses.
        let (store, recovered) = Store::open(&dir.join("consensus"), &options)?;
        let file = RecordFile::open(dir, group)?;
        check_owner(dir, group, me, file.kept())?;
        let mut record = RecordThread::start(file)?;
        if record.kept().replica.is_none() {
            record.update(|kept| kept.replica = Some(me));
        }
        let mut storage = Self {
            record,
            store,
            damage: recovered.damage.clone(),
            drained: Arc::new(Drained::of(dir.join("drained"))),
            promise_lost: false,
            completions: Vec::new(),
        };
        let start = match recovered.start() {
            // The store was moved away. The disks beside it may be old; only the operator can say that
            // they are the newest (`plover bootstrap`).
            Start::Fresh if storage.guest() != GuestRecord::default() => {
                let least = storage.guest().promised_at_least();
                storage.promise_lost = true;
                tracing::warn!(event = "promise_lost", %least, "this replica has run before, and its promise is lost");
                Start::PromiseLost { least }
            }
            start => start,
        };
        Ok((storage, start))
    }

    /// The part of the log that was unreadable or missing, in words for the operator. The replica then
    /// recovers from the others.
    pub fn damage(&self) -> Option<String> {
        if self.promise_lost {
            let text = "paths.state_dir has been used before and has no 'consensus' any more: what this \
                        replica has promised is learnt from the others, or with 'plover bootstrap'";
            return Some(text.into());
        }
        let damage = self.damage.as_ref()?;
        Some(format!("{damage}; it is recovered from the others"))
    }

    /// Queues the promise.
    pub fn persist_state(&mut self, consensus: DurableState) {
        self.store.persist_state(consensus);
    }

    /// Queues the log's content after `after`.
    pub fn append(&mut self, after: Viewstamp, anew: Option<Configuration>, entries: &[Entry]) {
        self.store.persist_entries(after, anew, entries);
    }

    /// Everything up to `base` has been reclaimed.
    pub fn trim(&mut self, base: Index) {
        self.store.trim(base);
    }

    /// Hands everything that a turn has queued to the store's thread: one sync for all of it.
    pub fn submit(&mut self) {
        self.store.submit();
    }

    /// Readable when [`Storage::persisted`] has news; open as long as the storage.
    pub fn wait_fd(&self) -> RawFd {
        self.store.wait_fd().as_raw_fd()
    }

    /// Adds an event for each state or entry that has become durable.
    ///
    /// # Errors
    /// The disk failed, so this replica can keep no promise.
    pub fn persisted(&mut self, out: &mut Vec<Event>) -> Result<(), StorageError> {
        self.store.completions(&mut self.completions);
        for completion in self.completions.drain(..) {
            out.push(match completion {
                Completion::StatePersisted(state) => Event::StatePersisted(state),
                Completion::EntriesPersisted(viewstamp) => Event::EntriesPersisted(viewstamp),
                Completion::Failed(error) => return Err(error.into()),
            });
        }
        Ok(())
    }

    /// Whether an operator has drained this host.
    pub fn is_drained(&self) -> bool {
        let Drained {
            is, until_restart, ..
        } = &*self.drained;
        is.load(Ordering::Acquire) || until_restart.load(Ordering::Acquire)
    }

    /// This host is drained until the process ends, or not any more, unless it is drained for longer.
    pub fn set_drained_until_restart(&self, drained: bool) {
        self.drained.until_restart.store(drained, Ordering::Release);
    }

    /// This host is drained, or not any more. The returned call, another thread's to make, writes it down: it stays so when the
    /// process is started again.
    pub fn set_drained(
        &self,
        drained: bool,
    ) -> impl FnOnce() -> Result<(), StorageError> + Send + 'static {
        let kept = Arc::clone(&self.drained);
        kept.is.store(drained, Ordering::Release);
        if !drained {
            self.set_drained_until_restart(false);
        }
        move || kept.write_down()
    }

    /// The place of the members that have become durable since this was last called.
    pub fn members_persisted(&self) -> Option<RecordPlace> {
        self.record.written_members()
    }

    /// # Errors
    /// A record could not be written.
    pub fn check(&self) -> Result<(), StorageError> {
        self.record.check()
    }

    /// The guest record.
    pub fn guest(&self) -> GuestRecord {
        self.record.kept().guest
    }

    /// The members by the log, if it has named any.
    pub fn members(&self) -> Option<&GroupRecord> {
        self.record.kept().members.as_ref()
    }

    /// Has the members written, sooner or later ([`Storage::members_persisted`]).
    ///
    /// # Errors
    /// An earlier record could not be written.
    pub fn persist_members(&mut self, members: GroupRecord) -> Result<(), StorageError> {
        self.record.update(|kept| kept.members = Some(members));
        self.record.check()
    }

    /// Has the guest record written, sooner or later.
    ///
    /// # Errors
    /// An earlier one could not be written.
    pub fn persist_guest(&mut self, guest: GuestRecord) -> Result<(), StorageError> {
        self.record.update(|kept| kept.guest = guest);
        self.record.check()
    }
}

/// The members by the log that the directory names, for a process that does not own it.
pub(crate) fn members_in(dir: &Path, group: &str) -> Option<GroupRecord> {
    record::look(dir, group).ok()?.members
}

/// Whether the state directory is this replica's and usable, for a process that does not own it. One that is not there is.
///
/// # Errors
/// A replica would refuse it: it is another group's or replica's, damaged, or of a replica that has left its group.
pub fn check_state_dir(config: &ReplicaConfig) -> Result<(), StorageError> {
    let (dir, group) = (&config.paths.state_dir, &config.group);
    let kept = record::look(dir, &group.name)?;
    check_owner(dir, &group.name, ReplicaId(group.me), &kept)
}

/// Whether this replica has left its group, by its state directory, for a process that does not own it.
pub fn has_left(config: &ReplicaConfig) -> bool {
    matches!(check_state_dir(config), Err(StorageError::Left { .. }))
}

fn check_owner(dir: &Path, group: &str, me: ReplicaId, kept: &Kept) -> Result<(), StorageError> {
    if let Some(found) = kept.replica.filter(|found| *found != me) {
        return Err(StorageError::OtherReplica {
            path: dir.to_path_buf(),
            found,
            wanted: me,
        });
    }
    match &kept.members {
        Some(record) if record.left.contains(me) => Err(StorageError::Left {
            me,
            group: group.to_string(),
            members: record.members.voters,
            dir: dir.to_path_buf(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus::{Durability, EntryKind, Members};
    use plover_store::StoreError;
    use plover_types::wire::WIRE_VERSION;
    use plover_types::{ReplicaSet, View};

    const ME: ReplicaId = ReplicaId(1);

    fn entry(index: u64) -> Entry {
        let viewstamp = Viewstamp {
            view: View::new(1, ReplicaId(0)),
            index: Index(index),
        };
        Entry {
            viewstamp,
            kind: EntryKind::App,
            payload: vec![index as u8; 100],
        }
    }

    fn stamp(index: u64) -> Viewstamp {
        if index == 0 {
            Viewstamp::default()
        } else {
            entry(index).viewstamp
        }
    }

    /// The disk of a host that was replaced comes back: under its own number, and under that of the new host.
    #[test]
    fn a_replica_that_has_left_does_not_start_again() {
        let dir = tempfile::tempdir().unwrap();
        let open = |me| Storage::open(dir.path(), "g", me, Durability::Memory, WIRE_VERSION);
        let (mut storage, _) = open(ME).unwrap();
        let others = ReplicaSet::of([ReplicaId(0), ReplicaId(2), ReplicaId(3)]);
        let mut record = GroupRecord {
            members: Members::of(others),
            ..GroupRecord::default()
        };
        storage.persist_members(record.clone()).unwrap();
        drop(storage);
        let (mut storage, _) = open(ME).unwrap();
        assert_eq!(storage.members(), Some(&record));
        record.left.insert(ME);
        storage.persist_members(record).unwrap();
        drop(storage);
        let left = open(ME).unwrap_err();
        assert!(matches!(left, StorageError::Left { .. }), "{left}");
        assert!(left.to_string().contains("replicas 0, 2, 3 now"), "{left}");
        let text = format!(
            "[group]\nname = \"g\"\nme = 1\nreplica = []\n[guest]\nmac = \"52:54:00:00:00:01\"\n\
             [net]\ntap = \"t\"\n[paths]\nrun_dir = \"/r\"\nstate_dir = \"{}\"\n",
            dir.path().display()
        );
        let mut config: ReplicaConfig = toml::from_str(&text).unwrap();
        let looked = check_state_dir(&config).unwrap_err();
        assert_eq!(looked.to_string(), left.to_string(), "seen before a start");
        config.paths.state_dir.push("none");
        check_state_dir(&config).unwrap();
        let other = open(ReplicaId(3)).unwrap_err();
        assert!(
            matches!(other, StorageError::OtherReplica { .. }),
            "{other}"
        );
    }

    #[test]
    fn a_drained_host_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            Storage::open(dir.path(), "g", ME, Durability::Memory, WIRE_VERSION)
                .unwrap()
                .0
        };
        let storage = open();
        assert!(!storage.is_drained());
        storage.set_drained(false)().unwrap();
        // The last word counts, in whichever order they are written down.
        let (no, yes) = (storage.set_drained(false), storage.set_drained(true));
        yes().unwrap();
        no().unwrap();
        assert!(storage.is_drained());
        drop(storage);
        let storage = open();
        assert!(storage.is_drained());
        storage.set_drained(false)().unwrap();
        storage.set_drained_until_restart(true);
        assert!(storage.is_drained());
        drop(storage);
        let storage = open();
        assert!(!storage.is_drained());
        storage.set_drained_until_restart(true);
        storage.set_drained(true)().unwrap();
        storage.set_drained_until_restart(false);
        assert!(storage.is_drained(), "an operator's order holds");
    }

    /// Waits as the loop does until `count` events have come.
    fn wait_for(storage: &mut Storage, count: usize) -> Vec<Event> {
        storage.submit();
        let mut events = Vec::new();
        while events.len() < count {
            // SAFETY: the storage keeps the descriptor open and outlives the borrow.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(storage.wait_fd()) };
            let flags = rustix::event::PollFlags::IN;
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, flags)];
            rustix::event::poll(&mut fds, None).unwrap();
            storage.persisted(&mut events).unwrap();
        }
        events
    }

    #[test]
    fn a_restart_finds_the_log_and_the_promise() {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, start) =
            Storage::open(dir.path(), "g", ME, Durability::Disk, WIRE_VERSION).unwrap();
        assert!(matches!(start, Start::Fresh));
        let promised = View::new(1, ReplicaId(0));
        storage.persist_state(DurableState {
            promised,
            ..DurableState::default()
        });
        storage.append(stamp(0), None, &[entry(1), entry(2), entry(3)]);
        storage.append(stamp(2), None, &[entry(3), entry(4)]);
        let events = wait_for(&mut storage, 2);
        assert!(matches!(events[0], Event::StatePersisted(state) if state.promised == promised));
        assert!(matches!(events[1], Event::EntriesPersisted(last) if last == stamp(4)));
        drop(storage);
        let (_, start) =
            Storage::open(dir.path(), "g", ME, Durability::Disk, WIRE_VERSION).unwrap();
        match start {
            Start::Restarted {
                log,
                durable,
                forgotten,
                ..
            } => {
                assert_eq!(log, [entry(1), entry(2), entry(3), entry(4)]);
                assert_eq!(durable.promised, promised);
                assert!(!forgotten);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            Storage::open(dir.path(), "other", ME, Durability::Disk, WIRE_VERSION),
            Err(StorageError::Store(StoreError::OtherGroup { .. }))
        ));
    }

    #[test]
    fn a_damaged_log_is_reported_and_makes_the_replica_recover() {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) =
            Storage::open(dir.path(), "g", ME, Durability::Disk, WIRE_VERSION).unwrap();
        storage.persist_state(DurableState::default());
        storage.append(stamp(0), None, &[entry(1), entry(2)]);
        wait_for(&mut storage, 2);
        drop(storage);
        let files = std::fs::read_dir(dir.path().join("consensus")).unwrap();
        let files = files.map(|it| it.unwrap().path());
        let segment = files.filter(|it| it.extension().is_some()).min().unwrap();
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[150] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        let (storage, start) =
            Storage::open(dir.path(), "g", ME, Durability::Disk, WIRE_VERSION).unwrap();
        assert!(matches!(
            start,
            Start::Restarted {
                forgotten: true,
                ..
            }
        ));
        let damage = storage.damage().unwrap();
        assert!(damage.contains("log.0"), "{damage}");
    }

    #[test]
    fn the_promise_is_kept_in_memory_mode_too() {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) =
            Storage::open(dir.path(), "g", ME, Durability::Memory, WIRE_VERSION).unwrap();
        let promised = View::new(7, ReplicaId(2));
        storage.persist_state(DurableState {
            promised,
            ..DurableState::default()
        });
        wait_for(&mut storage, 1);
        drop(storage);
        let (_, start) =
            Storage::open(dir.path(), "g", ME, Durability::Memory, WIRE_VERSION).unwrap();
        assert!(matches!(start, Start::Restarted { durable, .. } if durable.promised == promised));
    }

    /// The disks of such a replica may be a week old, so it must not boot from them by itself.
    #[test]
    fn a_replica_whose_promise_was_moved_away_has_run() {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) =
            Storage::open(dir.path(), "g", ME, Durability::Memory, WIRE_VERSION).unwrap();
        let view = View::new(7, ReplicaId(2));
        let record = GuestRecord {
            view,
            ..GuestRecord::default()
        };
        storage.persist_guest(record).unwrap();
        drop(storage);
        for _ in 0..2 {
            std::fs::remove_dir_all(dir.path().join("consensus")).unwrap();
            let (storage, start) =
                Storage::open(dir.path(), "g", ME, Durability::Memory, WIRE_VERSION).unwrap();
            assert!(
                matches!(start, Start::PromiseLost { least } if least == view),
                "{start:?}"
            );
            assert!(storage.damage().unwrap().contains("plover bootstrap"));
        }
    }
}
