//! One network namespace, by name, as `ip netns` keeps them.

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `ip netns` pins namespaces.
const DIRECTORY: &str = "/run/netns";

/// The names of all namespaces of this machine.
pub(super) fn all() -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context(format!("cannot list {DIRECTORY}")),
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()
        .with_context(|| format!("cannot list {DIRECTORY}"))
}

/// A named network namespace, which may or may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub(super) fn named(name: String) -> Self {
        Self { name }
    }

    /// Its name, for `ip netns exec NAME …`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Makes `command` start in this namespace. Only the network differs: unlike `ip netns
    /// exec` this mounts no other `/sys`, which would need a mount namespace of its own.
    pub fn exec_in(&self, mut command: Command) -> Result<Command> {
        let file = self.open()?;
        // SAFETY: the closure runs in the child between fork and exec (or just before an exec
        // of this process), where only async-signal-safe calls are allowed: it makes one setns
        // system call and allocates nothing. It owns its descriptor, opened before the fork.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(())
            });
        }
        Ok(command)
    }

    /// Runs `work` in this namespace, on a thread of its own, because a namespace is a property of a
    /// thread. What `work` opens there (a socket, a TAP) stays there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = self.open()?;
        let in_namespace = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("cannot enter the namespace {}", self.name))?;
            work()
        };
        std::thread::scope(|scope| {
            scope
                .spawn(in_namespace)
                .join()
                .map_err(|_| anyhow!("the work in {self:?} panicked"))?
        })
    }

    /// Sets values below `/proc/sys`, where each thread sees its own namespace's. A key that this kernel
    /// was built without is skipped.
    pub(super) fn set_sysctls(&self, values: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (key, value) in values {
                match std::fs::write(Path::new("/proc/sys").join(key), value) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    other => other.with_context(|| format!("cannot set {key}"))?,
                }
            }
            Ok(())
        })
    }

    fn open(&self) -> Result<File> {
        File::open(self.path()).with_context(|| format!("there is no namespace {}", self.name))
    }
}
