//! The directory, and every operation on its files.
//!
//! A crash may happen between any two of these operations. Tests record them and rebuild what a disk
//! may hold then (`tests/crash.rs`).

use crate::error::{SegmentNumber, StoreError, io_error};
#[cfg(test)]
use crate::tests::crash::{Operation, Recorder};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Zeros are written in pieces of this many bytes.
const ZERO_BYTES: usize = 1 << 20;

/// The directory of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    #[cfg(test)]
    pub recorder: Option<Recorder>,
}

/// An open file and its name, for errors.
#[derive(Debug)]
pub(crate) struct StoredFile {
    file: File,
    name: String,
    directory: Directory,
}

impl Directory {
    /// Creates the directory if it is not there.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(path).map_err(io_error("cannot create", path))?;
        Ok(Self {
            path: path.to_path_buf(),
            #[cfg(test)]
            recorder: Recorder::of_this_thread(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file that exists.
    pub fn existing(&self, name: &str) -> Result<StoredFile, StoreError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        self.open_with(name, &options)
    }

    /// Creates an empty file, in the place of one that a crash may have left.
    pub fn create(&self, name: &str) -> Result<StoredFile, StoreError> {
        #[cfg(test)]
        self.record(Operation::Create(name.to_string()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        self.open_with(name, &options)
    }

    fn open_with(&self, name: &str, options: &OpenOptions) -> Result<StoredFile, StoreError> {
        let path = self.join(name);
        let file = options
            .open(&path)
            .map_err(io_error("cannot open", &path))?;
        Ok(StoredFile {
            file,
            name: name.to_string(),
            directory: self.clone(),
        })
    }

    /// The names in the directory.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&self.path)? {
                names.extend(entry?.file_name().into_string());
            }
            Ok(names)
        };
        list().map_err(io_error("cannot list", &self.path))
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        #[cfg(test)]
        self.record(Operation::Rename(from.to_string(), to.to_string()));
        let path = self.join(from);
        std::fs::rename(&path, self.join(to)).map_err(io_error("cannot rename", &path))
    }

    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        #[cfg(test)]
        self.record(Operation::Remove(name.to_string()));
        let path = self.join(name);
        std::fs::remove_file(&path).map_err(io_error("cannot remove", &path))
    }

    /// Makes the names durable: creations, renames, removals.
    pub fn sync(&self) -> Result<(), StoreError> {
        let result = File::open(&self.path).and_then(|directory| directory.sync_all());
        result.map_err(io_error("cannot sync", &self.path))?;
        #[cfg(test)]
        self.record(Operation::SyncDirectory);
        Ok(())
    }

    #[cfg(test)]
    fn record(&self, operation: Operation) {
        if let Some(recorder) = &self.recorder {
            recorder.record(operation);
        }
    }
}

impl StoredFile {
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Renames the file.
    pub fn renamed(&mut self, to: &str) -> Result<(), StoreError> {
        self.directory.rename(&self.name, to)?;
        self.name = to.to_string();
        Ok(())
    }

    pub fn length(&self) -> Result<u64, StoreError> {
        let metadata = self.file.metadata();
        Ok(metadata
            .map_err(io_error("cannot examine", &self.path()))?
            .len())
    }

    /// Writes at `offset`, all of it.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        #[cfg(test)]
        self.directory
            .record(Operation::Write(self.name.clone(), offset, bytes.to_vec()));
        let result = self.file.write_all_at(bytes, offset);
        result.map_err(|error| io_error("cannot write", &self.path())(error))
    }

    /// Makes the content durable, without times and other metadata that reading does not need.
    pub fn sync(&self) -> Result<(), StoreError> {
        let result = self.file.sync_data();
        result.map_err(|error| io_error("cannot sync", &self.path())(error))?;
        #[cfg(test)]
        self.directory.record(Operation::Sync(self.name.clone()));
        Ok(())
    }

    /// Makes the file `to` bytes long. The new part is written with zeros, so that a later sync has
    /// no space to allocate and no extent to convert.
    pub fn fill(&self, from: u64, to: u64) -> Result<(), StoreError> {
        let path = self.path();
        let (offset, length) = (from, to.saturating_sub(from));
        if length == 0 {
            return Ok(());
        }
        // A file system with too little space first takes what is left, then fails and gives it back.
        // Meanwhile every other writer would find the disk full. So the space is checked first.
        // If it cannot be asked for, `fallocate` says it.
        let has_room = rustix::fs::fstatvfs(&self.file).map_or(true, |it| {
            it.f_blocks == 0 || it.f_bfree * it.f_frsize >= length
        });
        if !has_room {
            let full = rustix::io::Errno::NOSPC.into();
            return Err(io_error("cannot allocate space for", &path)(full));
        }
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            // A file system without `fallocate` allocates while writing.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) | Ok(()) => {}
            Err(error) => return Err(io_error("cannot allocate space for", &path)(error.into())),
        }
        self.zero(from, to)
    }

    /// Overwrites a part with zeros.
    pub fn zero(&self, from: u64, to: u64) -> Result<(), StoreError> {
        let zeros = vec![0; ZERO_BYTES.min(to.saturating_sub(from) as usize)];
        let mut at = from;
        while at < to {
            let piece = zeros.len().min((to - at) as usize);
            self.write(&zeros[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }

    /// Reads the whole file as the disk has it. The page cache may hold what a sync failed to write,
    /// so its content is written, then dropped, then read.
    pub fn read_from_disk(&self) -> Result<Vec<u8>, StoreError> {
        self.sync()?;
        // Advice may be ignored (tmpfs has no disk to read from).
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        let mut bytes = vec![0; self.length()? as usize];
        let result = self.file.read_exact_at(&mut bytes, 0);
        result.map_err(io_error("cannot read", &self.path()))?;
        Ok(bytes)
    }
}

/// The segment's number, if the name is that of a segment.
pub(crate) fn segment_of(name: &str) -> Option<SegmentNumber> {
    let digits = name.strip_prefix("log.").filter(|d| d.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(SegmentNumber)
}
