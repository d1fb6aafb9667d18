//! The guest record's file, `state.json`.
//!
//! It is replaced whole (write, fsync, exchange of names, fsync of the directory), so it is either the
//! old or the new one. The old one stays as `state.json.new` and is overwritten next. So a failover needs
//! no free space to write it.

use super::{StorageError, io_error};
use plover_replica::{GroupRecord, GuestRecord, RecordPlace};
use plover_types::ReplicaId;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const NAME: &str = "state.json";
const NEXT: &str = "state.json.new";

/// Bytes of the file, padded with blanks: one block, many times its content.
const FILE_BYTES: usize = 4096;

/// Unknown fields are refused: an older release kept the promise here, and it must not be lost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    group: String,
    #[serde(rename = "guest")]
    kept: Kept,
}

/// The content of the file. A release that does not know the members passes over them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    #[serde(flatten)]
    pub guest: GuestRecord,
    /// The replica that has written the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaId>,
    /// The members by the log, once it has named any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<GroupRecord>,
}

/// The file and its content.
#[derive(Debug)]
pub(super) struct RecordFile {
    dir: PathBuf,
    content: Content,
}

impl RecordFile {
    /// Reads the file in `dir`, and makes it if there is none.
    pub(super) fn open(dir: &Path, group: &str) -> Result<Self, StorageError> {
        let this = Self {
            dir: dir.to_path_buf(),
            content: read(&dir.join(NAME), group)?,
        };
        let reserved = |name| {
            let found = std::fs::metadata(dir.join(name));
            found.is_ok_and(|file| file.len() >= FILE_BYTES as u64)
        };
        if !reserved(NAME) || !reserved(NEXT) {
            this.write()?;
            this.write()?;
        }
        Ok(this)
    }

    /// The last written record.
    pub(super) fn kept(&self) -> &Kept {
        &self.content.kept
    }

    /// Makes `kept` durable.
    pub(super) fn update(&mut self, kept: Kept) -> Result<(), StorageError> {
        self.content.kept = kept;
        self.write()
    }

    fn write(&self) -> Result<(), StorageError> {
        let (path, next) = (self.dir.join(NAME), self.dir.join(NEXT));
        let bytes = serde_json::to_vec_pretty(&self.content).map_err(io::Error::other);
        let write = |mut bytes: Vec<u8>| {
            bytes.resize(bytes.len().max(FILE_BYTES), b' ');
            let mut options = File::options();
            let options = options.create(true).write(true).truncate(false);
            let mut file = options.open(&next)?;
            file.write_all(&bytes)?;
            file.set_len(bytes.len() as u64)?;
            file.sync_all()?;
            exchange(&next, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        let written = bytes.and_then(write);
        written.map_err(io_error("cannot write", &path))
    }
}

/// Writes records on a thread of its own: it takes two syncs of a disk, which may be busy for half a second, and
/// meanwhile a replica that waited would be silent. The core waits for a record only before it tells others of members. If one
/// is lost with its host, the log still has what it says.
#[derive(Debug)]
pub(super) struct RecordThread {
    newest: Kept,
    records: Option<Sender<Kept>>,
    failed: Receiver<StorageError>,
    members: Receiver<RecordPlace>,
}

impl RecordThread {
    pub(super) fn start(mut file: RecordFile) -> Result<Self, StorageError> {
        let newest = file.kept().clone();
        let (records, to_write) = channel();
        let (failing, failed) = channel();
        let (named, members) = channel();
        let path = file.dir.join(NAME);
        let write = move || {
            let place = |kept: &Kept| kept.members.as_ref().map(GroupRecord::place);
            while let Ok(record) = to_write.recv() {
                let record = to_write.try_iter().last().unwrap_or(record);
                let (before, now) = (place(file.kept()), place(&record));
                if let Err(error) = file.update(record) {
                    // Fails only when the replica has ended.
                    let _ = failing.send(error);
                    return;
                }
                if let Some(now) = now.filter(|_| now > before) {
                    let _ = named.send(now);
                }
            }
        };
        let thread = std::thread::Builder::new().name("guest-record".into());
        let started = thread.spawn(write);
        started.map_err(io_error("cannot start the thread that writes", &path))?;
        Ok(Self {
            newest,
            records: Some(records),
            failed,
            members,
        })
    }

    /// The newest record, be it written or not.
    pub(super) fn kept(&self) -> &Kept {
        &self.newest
    }

    /// Has a changed record written.
    pub(super) fn update(&mut self, change: impl FnOnce(&mut Kept)) {
        change(&mut self.newest);
        if let Some(records) = &self.records {
            // Fails only when an earlier one could not be written, which `check` returns.
            let _ = records.send(self.newest.clone());
        }
    }

    /// The place of the newest members that were written, once for each.
    pub(super) fn written_members(&self) -> Option<RecordPlace> {
        self.members.try_iter().last()
    }

    /// # Errors
    /// A record could not be written. It is returned once.
    pub(super) fn check(&self) -> Result<(), StorageError> {
        self.failed.try_recv().map_or(Ok(()), Err)
    }
}

impl Drop for RecordThread {
    /// Lets the last record be written, unless its disk hangs.
    fn drop(&mut self) {
        self.records = None;
        let _ = self.failed.recv_timeout(Duration::from_secs(1));
    }
}

/// Exchanges the names of two files. Without a second file, or where the file system cannot exchange
/// names, it gives the first the other's name.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => std::fs::rename(new, old),
    }
}

/// The content of the file in `dir`, which another process may own.
pub(super) fn look(dir: &Path, group: &str) -> Result<Kept, StorageError> {
    Ok(read(&dir.join(NAME), group)?.kept)
}

fn read(path: &Path, group: &str) -> Result<Content, StorageError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Content {
                group: group.to_string(),
                kept: Kept::default(),
            });
        }
        Err(error) => return Err(io_error("cannot read", path)(error)),
    };
    let content: Content =
        serde_json::from_slice(&bytes).map_err(|error| StorageError::Damaged {
            path: path.to_path_buf(),
            why: error.to_string(),
        })?;
    if content.group != group {
        return Err(StorageError::OtherGroup {
            path: path.to_path_buf(),
            found: content.group,
            wanted: group.to_string(),
        });
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::Index;
    use std::os::unix::fs::MetadataExt;

    fn record(index: u64) -> Kept {
        let addresses = [(ReplicaId(2), "192.0.2.12:7700".to_string())].into();
        Kept {
            guest: GuestRecord {
                index: Index(index),
                ..GuestRecord::default()
            },
            replica: Some(ReplicaId(2)),
            members: Some(GroupRecord {
                index: Index(index),
                ..GroupRecord::configured(addresses)
            }),
        }
    }

    /// The record that a failover writes does not depend on free space.
    #[test]
    fn a_record_overwrites_its_file_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let space = || -> Vec<(u64, u64)> {
            let files = [NAME, NEXT].map(|name| std::fs::metadata(dir.path().join(name)).unwrap());
            let mut space = files.map(|file| (file.ino(), file.len())).to_vec();
            space.sort_unstable();
            space
        };
        let mut file = RecordFile::open(dir.path(), "g").unwrap();
        let before = space();
        for index in 1..4 {
            file.update(record(index)).unwrap();
            let found = RecordFile::open(dir.path(), "g").unwrap();
            assert_eq!(*found.kept(), record(index));
            assert_eq!(space(), before, "the same two files");
        }
        // An older release, or a copy of only the file that counts, leaves the directory like this.
        std::fs::remove_file(dir.path().join(NEXT)).unwrap();
        let file = RecordFile::open(dir.path(), "g").unwrap();
        assert_eq!(*file.kept(), record(3));
        assert_eq!(space().len(), 2);
        let other = RecordFile::open(dir.path(), "other").unwrap_err();
        assert!(matches!(other, StorageError::OtherGroup { .. }));
    }

    #[test]
    fn the_newest_record_is_written_before_the_thread_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = RecordFile::open(dir.path(), "g").unwrap();
        let mut thread = RecordThread::start(file).unwrap();
        (1..100).for_each(|index| thread.update(|kept| *kept = record(index)));
        assert_eq!(*thread.kept(), record(99));
        thread.check().unwrap();
        drop(thread);
        let found = RecordFile::open(dir.path(), "g").unwrap();
        assert_eq!(*found.kept(), record(99));
    }

    #[test]
    fn a_record_that_cannot_be_written_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = RecordFile::open(dir.path(), "g").unwrap();
        let mut thread = RecordThread::start(file).unwrap();
        drop(dir);
        thread.update(|kept| *kept = record(1));
        let error = thread.failed.recv().unwrap().to_string();
        assert!(error.contains("state.json"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let older = br#"{"group": "g", "consensus": {"promised": 16}, "guest": {}}"#;
        for bytes in [b"{".as_slice(), older] {
            std::fs::write(dir.path().join(NAME), bytes).unwrap();
            let error = RecordFile::open(dir.path(), "g").unwrap_err().to_string();
            assert!(
                error.contains("state.json") && error.contains("move"),
                "{error}"
            );
        }
    }
}
