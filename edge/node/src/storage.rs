//! What outlives the process: the promised view and the guest record, and in disk mode the log.
//!
//! `state.json` is replaced whole (write, fsync, rename, fsync of the directory), so it is
//! either the old or the new one. `log` is a sequence of checksummed records; a torn tail is
//! what a crash leaves and is cut off, damage before the tail is reported.

use apus::{DurableState, Entry, Roster, Start};
use plover_replica::GuestRecord;
use plover_types::{Viewstamp, wire};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The log file is rewritten without its reclaimed part when it is larger than this.
const LOG_FILE_BYTES_MAX: u64 = 64 << 20;

/// Why stored state cannot be used. Nothing has been started or changed.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state file is not ours or is damaged. If this replica's state is really lost, move
    /// the state directory away: it then recovers from the others.
    #[error("{path} is damaged ({why}); move the state directory away to recover from the others")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// How.
        why: String,
    },
    /// The directory belongs to another group.
    #[error("{path} belongs to the group '{found}', not to '{wanted}'")]
    OtherGroup {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    group: String,
    consensus: DurableState,
    guest: GuestRecord,
}

#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The log starts after this.
    Base(Viewstamp, Roster),
    /// What stood after this viewstamp is cut off.
    After(Viewstamp),
    /// The next entry.
    Entry(Entry),
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    base: Viewstamp,
    roster_at_base: Roster,
    entries: VecDeque<Entry>,
}

/// The files of one replica.
#[derive(Debug)]
pub(crate) struct Storage {
    dir: PathBuf,
    state: StateFile,
    log: Option<Log>,
    unsynced: bool,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.to_path_buf();
    move |source| StorageError::Io { what, path, source }
}

impl Storage {
    /// Opens `dir`, and says what the replica remembers.
    pub fn open(dir: &Path, group: &str, disk: bool) -> Result<(Self, Start), StorageError> {
        std::fs::create_dir_all(dir).map_err(io_error("cannot create", dir))?;
        let path = dir.join("state.json");
        let found = match std::fs::read(&path) {
            Ok(bytes) => Some(serde_json::from_slice::<StateFile>(&bytes).map_err(|e| {
                StorageError::Damaged {
                    path: path.clone(),
                    why: e.to_string(),
                }
            })?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(io_error("cannot read", &path)(e)),
        };
        if let Some(state) = found.as_ref().filter(|s| s.group != group) {
            let (found, wanted) = (state.group.clone(), group.to_string());
            return Err(StorageError::OtherGroup {
                path,
                found,
                wanted,
            });
        }
        let log = if disk {
            Some(Log::open(&dir.join("log"))?)
        } else {
            None
        };
        let start = match &found {
            None => Start::Fresh,
            Some(state) => Start::Restarted {
                durable: state.consensus,
                log: log.iter().flat_map(|l| l.entries.iter().cloned()).collect(),
                base: log.as_ref().map(|l| l.base).unwrap_or_default(),
                roster_at_base: log.as_ref().map(|l| l.roster_at_base).unwrap_or_default(),
                forgotten: false,
            },
        };
        let state = found.unwrap_or_else(|| StateFile {
            group: group.to_string(),
            consensus: DurableState::default(),
            guest: GuestRecord::default(),
        });
        Ok((
            Self {
                dir: dir.to_path_buf(),
                state,
                log,
                unsynced: false,
            },
            start,
        ))
    }

    /// Makes the promise durable.
    pub fn persist_state(&mut self, consensus: DurableState) -> Result<(), StorageError> {
        self.state.consensus = consensus;
        self.write_state()
    }

    /// Notes the guest record.
    pub fn persist_guest(&mut self, guest: GuestRecord) -> Result<(), StorageError> {
        self.state.guest = guest;
        self.write_state()
    }

    fn write_state(&self) -> Result<(), StorageError> {
        let path = self.dir.join("state.json");
        let new = self.dir.join("state.json.new");
        let bytes = serde_json::to_vec_pretty(&self.state).map_err(io::Error::other);
        let write = |bytes: Vec<u8>| {
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        bytes
            .and_then(write)
            .map_err(io_error("cannot write", &path))
    }

    /// Appends entries after `after`; durable at the next [`Storage::sync`].
    pub fn append(
        &mut self,
        after: Viewstamp,
        anew: Option<Roster>,
        entries: &[Entry],
    ) -> Result<(), StorageError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        log.append(after, anew, entries)
            .map_err(io_error("cannot write", &log.path))?;
        self.unsynced = true;
        Ok(())
    }

    /// Makes what was appended durable: one `fdatasync` for all of a turn (group commit).
    pub fn sync(&mut self) -> Result<(), StorageError> {
        let Some(log) = self.log.as_mut().filter(|_| self.unsynced) else {
            return Ok(());
        };
        log.file
            .sync_data()
            .map_err(io_error("cannot sync", &log.path))?;
        self.unsynced = false;
        Ok(())
    }

    /// Everything up to `base` has been reclaimed; rewrites the file when it has grown.
    pub fn trim(&mut self, base: plover_types::Index) -> Result<(), StorageError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        log.trim(base);
        if log.bytes > LOG_FILE_BYTES_MAX {
            log.rewrite()
                .map_err(io_error("cannot rewrite", &log.path))?;
        }
        Ok(())
    }
}

impl Log {
    fn open(path: &Path) -> Result<Self, StorageError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io_error("cannot open", path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(io_error("cannot read", path))?;
        let mut log = Self {
            path: path.to_path_buf(),
            file,
            bytes: 0,
            base: Viewstamp::default(),
            roster_at_base: Roster::default(),
            entries: VecDeque::new(),
        };
        let mut at = 0;
        while let Some((record, used)) = read_record(&bytes[at..]) {
            log.replay(record).map_err(|why| StorageError::Damaged {
                path: path.to_path_buf(),
                why,
            })?;
            at += used;
        }
        if at < bytes.len() {
            tracing::warn!(
                path = %path.display(),
                cut = bytes.len() - at,
                "the log ends in a torn record, as a crash leaves it; it is cut off"
            );
        }
        log.cut_file(at as u64)
            .map_err(io_error("cannot cut", path))?;
        Ok(log)
    }

    fn cut_file(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes))?;
        self.bytes = bytes;
        self.file.sync_all()
    }

    fn replay(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Base(base, roster) => {
                self.base = base;
                self.roster_at_base = roster;
                self.entries.clear();
            }
            Record::After(after) => self.cut_after(after),
            Record::Entry(entry) => {
                let due = self.last().index.next();
                if entry.viewstamp.index != due {
                    return Err(format!("entry {} where {due} was due", entry.viewstamp));
                }
                self.entries.push_back(entry);
            }
        }
        Ok(())
    }

    fn last(&self) -> Viewstamp {
        self.entries.back().map_or(self.base, |e| e.viewstamp)
    }

    fn cut_after(&mut self, after: Viewstamp) {
        while self
            .entries
            .back()
            .is_some_and(|e| e.viewstamp.index > after.index)
        {
            self.entries.pop_back();
        }
    }

    fn append(
        &mut self,
        after: Viewstamp,
        anew: Option<Roster>,
        entries: &[Entry],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        if let Some(roster) = anew {
            self.base = after;
            self.roster_at_base = roster;
            self.entries.clear();
            push_record(&mut bytes, &Record::Base(after, roster));
        } else if after != self.last() {
            self.cut_after(after);
            push_record(&mut bytes, &Record::After(after));
        }
        for entry in entries {
            push_record(&mut bytes, &Record::Entry(entry.clone()));
            self.entries.push_back(entry.clone());
        }
        self.file.write_all(&bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn trim(&mut self, base: plover_types::Index) {
        while self
            .entries
            .front()
            .is_some_and(|e| e.viewstamp.index <= base)
        {
            if let Some(entry) = self.entries.pop_front() {
                self.base = entry.viewstamp;
                self.roster_at_base.note(entry.kind);
            }
        }
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        push_record(&mut bytes, &Record::Base(self.base, self.roster_at_base));
        for entry in &self.entries {
            push_record(&mut bytes, &Record::Entry(entry.clone()));
        }
        let new = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        self.file = file;
        self.bytes = bytes.len() as u64;
        Ok(())
    }
}

/// `length u32, CRC32C u32, record`.
fn push_record(to: &mut Vec<u8>, record: &Record) {
    let body = wire::encode(record);
    to.extend_from_slice(&(body.len() as u32).to_le_bytes());
    to.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    to.extend_from_slice(&body);
}

fn read_record(bytes: &[u8]) -> Option<(Record, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let body = rest.get(..length)?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    Some((wire::decode(body).ok()?, 8 + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::{Index, ReplicaId, View};

    fn entry(index: u64) -> Entry {
        let viewstamp = Viewstamp {
            view: View::new(1, ReplicaId(0)),
            index: Index(index),
        };
        Entry {
            viewstamp,
            kind: apus::EntryKind::App,
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

    fn log_of(start: &Start) -> Vec<u64> {
        match start {
            Start::Restarted { log, .. } => log.iter().map(|e| e.viewstamp.index.0).collect(),
            Start::Fresh => panic!("fresh"),
        }
    }

    fn filled(dir: &Path) {
        let (mut storage, start) = Storage::open(dir, "g", true).unwrap();
        assert!(matches!(start, Start::Fresh));
        storage
            .persist_state(DurableState {
                promised: View::new(1, ReplicaId(0)),
                ..DurableState::default()
            })
            .unwrap();
        storage
            .append(stamp(0), None, &[entry(1), entry(2), entry(3)])
            .unwrap();
        storage
            .append(stamp(2), None, &[entry(3), entry(4)])
            .unwrap();
        storage.sync().unwrap();
    }

    #[test]
    fn a_restart_finds_the_log_and_the_promise() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let (_, start) = Storage::open(dir.path(), "g", true).unwrap();
        assert_eq!(log_of(&start), [1, 2, 3, 4]);
        assert!(matches!(
            Storage::open(dir.path(), "other", true),
            Err(StorageError::OtherGroup { .. })
        ));
    }

    #[test]
    fn a_torn_tail_is_cut_and_the_rest_kept() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let path = dir.path().join("log");
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let (mut storage, start) = Storage::open(dir.path(), "g", true).unwrap();
            let kept = log_of(&start);
            assert_eq!(
                kept,
                (1..=kept.len() as u64).collect::<Vec<_>>(),
                "cut {cut}"
            );
            if cut == 1 {
                storage
                    .append(stamp(3), None, &[entry(4), entry(5)])
                    .unwrap();
                storage.sync().unwrap();
                let (_, start) = Storage::open(dir.path(), "g", true).unwrap();
                assert_eq!(log_of(&start), [1, 2, 3, 4, 5]);
            }
        }
    }

    #[test]
    fn a_rewritten_log_starts_at_its_base() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let (mut storage, _) = Storage::open(dir.path(), "g", true).unwrap();
        let log = storage.log.as_mut().unwrap();
        log.trim(Index(2));
        log.rewrite().unwrap();
        storage.append(stamp(4), None, &[entry(5)]).unwrap();
        storage.sync().unwrap();
        let (_, start) = Storage::open(dir.path(), "g", true).unwrap();
        assert_eq!(log_of(&start), [3, 4, 5]);
        assert!(matches!(start, Start::Restarted { base, .. } if base == stamp(2)));
    }

    #[test]
    fn a_damaged_state_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state.json"), b"{").unwrap();
        let error = Storage::open(dir.path(), "g", false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("state.json") && error.contains("move"),
            "{error}"
        );
    }
}
