//! The guest record's file, `state.json`.
//!
//! It is replaced whole (write, fsync, exchange of names, fsync of the directory), so it is either the
//! old or the new one. The old one stays as `state.json.new` and is overwritten next. So a failover needs
//! no free space to write it.

use super::{StorageError, io_error};
use plover_replica::GuestRecord;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const NAME: &str = "state.json";
const NEXT: &str = "state.json.new";

/// Bytes of the file, padded with blanks: one block, many times its content.
const FILE_BYTES: usize = 4096;

/// Unknown fields are refused: an older release kept the promise here, and it must not be lost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    group: String,
    guest: GuestRecord,
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
    pub(super) fn guest(&self) -> GuestRecord {
        self.content.guest
    }

    /// Makes `guest` durable.
    pub(super) fn update(&mut self, guest: GuestRecord) -> Result<(), StorageError> {
        self.content.guest = guest;
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

/// Exchanges the names of two files. Without a second file, or where the file system cannot exchange
/// names, it gives the first the other's name.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => std::fs::rename(new, old),
    }
}

fn read(path: &Path, group: &str) -> Result<Content, StorageError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Content {
                group: group.to_string(),
                guest: GuestRecord::default(),
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
            let record = GuestRecord {
                index: Index(index),
                ..GuestRecord::default()
            };
            file.update(record).unwrap();
            let found = RecordFile::open(dir.path(), "g").unwrap();
            assert_eq!(found.guest(), record);
            assert_eq!(space(), before, "the same two files");
        }
        // An older release, or a copy of only the file that counts, leaves the directory like this.
        std::fs::remove_file(dir.path().join(NEXT)).unwrap();
        let file = RecordFile::open(dir.path(), "g").unwrap();
        assert_eq!(file.guest().index, Index(3));
        assert_eq!(space().len(), 2);
        let other = RecordFile::open(dir.path(), "other").unwrap_err();
        assert!(matches!(other, StorageError::OtherGroup { .. }));
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
