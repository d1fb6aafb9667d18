//! One process a directory.

use crate::directory::Directory;
use crate::error::{StoreError, io_error};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::Write;

const FILE: &str = "lock";

/// Held as long as the store is open; the kernel gives it back when the process ends, however.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub fn take(directory: &Directory) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options
            .open(&path)
            .map_err(io_error("cannot open", &path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                let holder = match holder.trim() {
                    "" => "another process".to_string(),
                    pid => format!("process {pid}"),
                };
                let path = directory.path().to_path_buf();
                return Err(StoreError::Locked { path, holder });
            }
            Err(error) => return Err(io_error("cannot lock", &path)(error.into())),
        }
        // Only for the other's message: a full disk must not matter here.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self { _file: file })
    }
}
