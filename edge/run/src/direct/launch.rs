//! The environment and descriptors by which a program loads the library and finds the shared memory.

use plover_preload::{PRELOAD_ENV, PRELOAD_SO};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The numbers that the descriptors have in the program, far from those that programs use, unless the limit of
/// open files is lower.
const MEMORY_AT: u64 = 1000;

/// The library's file, and the descriptors.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(super) library: PathBuf,
    pub(super) memory: OwnedFd,
    pub(super) wake: OwnedFd,
}

impl Launch {
    /// Makes `command` load the library.
    pub fn give_to(&self, command: &mut Command) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let memory_at = MEMORY_AT.min(limit.current.unwrap_or(u64::MAX).saturating_sub(2)) as i32;
        let (memory, wake) = (self.memory.as_raw_fd(), self.wake.as_raw_fd());
        let mut libraries = self.library.clone().into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            libraries.push(":");
            libraries.push(others);
        }
        command
            .env("LD_PRELOAD", &libraries)
            .env(PRELOAD_ENV, format!("{memory_at},{}", memory_at + 1));
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed: it makes
        // two system calls and allocates nothing. The descriptors are open in the child, as they are here.
        unsafe {
            command.pre_exec(move || {
                for (from, to) in [(memory, memory_at), (wake, memory_at + 1)] {
                    if libc::dup2(from, to) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
    }
}

/// Writes the library into `directory`, where the dynamic loader of the program finds it.
pub(super) fn write_library(directory: &Path) -> io::Result<PathBuf> {
    let (path, new) = (
        directory.join("preload.so"),
        directory.join("preload.so.new"),
    );
    fs::write(&new, PRELOAD_SO)?;
    fs::rename(&new, &path)?;
    path.canonicalize()
}
