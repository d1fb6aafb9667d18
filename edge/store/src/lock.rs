//! Only one process uses a directory.

use crate::directory::Directory;
use crate::error::{StoreError, io_error};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::Write;

const FILE: &str = "lock";

/// Held as long as the store is open. The kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

/// Unlocks explicitly. Closing the file is not enough: a child that another thread is just starting
/// has a copy of the descriptor until its `exec`.
impl Drop for Lock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
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
        // Only for another process's error message: a full disk must not matter here.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_a_starting_child_has_does_not_hold_it() {
        let path = tempfile::tempdir().unwrap();
        let directory = Directory::open(path.path()).unwrap();
        let lock = Lock::take(&directory).unwrap();
        let _copy = lock.file.try_clone().unwrap();
        assert!(Lock::take(&directory).is_err());
        drop(lock);
        assert!(Lock::take(&directory).is_ok());
    }
}
