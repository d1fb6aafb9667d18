//! The files of a lab, by which later commands find it.
//!
//! ```text
//! /run/plover-lab/NAME/            mode 0700; locked (flock) by the command that changes the lab
//!     lab.json                     this module: the lab's replicas and their processes
//!     replica-0/replica.toml       the daemon's configuration
//!     replica-0/daemon.log         its log (stderr); appended across restarts
//!     replica-0/run/               control socket, trace, console log
//!     replica-0/state/             view, vote, in-sync set
//! /var/tmp/plover-lab/NAME/        disks of the guest, if it has some: a file for each replica
//! ```
//!
//! `lab.json` is replaced, never written in place, so that it is whole or absent however the
//! lab's commands die. It is a convenience: [`crate::down`] works without it.

use crate::guests::{Guest, Probe};
use crate::process::Process;
use anyhow::{Context, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where labs are. On a tmpfs: nothing here is worth keeping over a reboot, which also ends
/// every process and namespace of a lab.
pub const ROOT: &str = "/run/plover-lab";

/// Where the disks of their guests are: these are too large for memory.
const DISK_ROOT: &str = "/var/tmp/plover-lab";

/// The name of a lab: letters, digits and dashes, at most 16 of them. It becomes a part of the names of
/// namespaces and of socket paths, which have a short limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabName(String);

impl LabName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LabName {
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LabName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let good = (1..=16).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !text.starts_with('-');
        good.then(|| Self(text.into())).ok_or_else(|| {
            format!("'{text}' is no name for a lab: use 1 to 16 letters, digits and dashes")
        })
    }
}

/// The directory of one lab, which may or may not exist.
#[derive(Clone, Debug)]
pub struct LabDir {
    name: LabName,
    path: PathBuf,
}

impl LabDir {
    /// The directory of the lab `name`.
    pub fn of(name: &LabName) -> Self {
        Self {
            name: name.clone(),
            path: Path::new(ROOT).join(name.as_str()),
        }
    }

    /// The names of all labs on this machine.
    pub fn all() -> Vec<LabName> {
        names_in(ROOT)
    }

    /// The names of all labs that have disks on this machine. These outlive a reboot, unlike the rest.
    pub fn all_disks() -> Vec<LabName> {
        names_in(DISK_ROOT)
    }

    /// The lab's name.
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the disks of its guest, which need not exist.
    pub fn disks(&self) -> PathBuf {
        Path::new(DISK_ROOT).join(self.name.as_str())
    }

    /// The file of a replica's copy of one of the disks, counted from 0.
    pub fn disk(&self, replica: u8, disk: usize) -> PathBuf {
        self.disks()
            .join(format!("replica-{replica}-disk-{disk}.raw"))
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The directory of one replica.
    pub fn replica(&self, id: u8) -> ReplicaDir {
        ReplicaDir(self.path.join(format!("replica-{id}")))
    }

    /// Creates it, and locks it. Fails when it exists.
    pub fn create(&self) -> Result<LabLock> {
        let make = |path: &Path, recursive| {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .recursive(recursive)
                .create(path)
        };
        make(Path::new(ROOT), true).with_context(|| format!("cannot create {ROOT}"))?;
        match make(&self.path, false) {
            Ok(()) => self.lock(Duration::from_secs(5)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => bail!(
                "there is a lab '{name}' already: `plover lab down --name {name}` removes it, \
                 `--name` makes another beside it",
                name = self.name
            ),
            Err(error) => {
                Err(error).with_context(|| format!("cannot create {}", self.path.display()))
            }
        }
    }

    /// Creates the directory of its disks, for root's eyes only. Anybody may make files beside it: what is there already must be
    /// root's.
    pub fn create_disks(&self) -> Result<()> {
        let place = self.disks();
        for path in [Path::new(DISK_ROOT), &place] {
            match std::fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("cannot create {}", path.display()));
                }
                _ => {}
            }
            let found = std::fs::symlink_metadata(path)
                .with_context(|| format!("cannot look at {}", path.display()))?;
            let is_ours = found.is_dir()
                && found.uid() == rustix::process::geteuid().as_raw()
                && found.mode() & 0o022 == 0;
            if !is_ours {
                bail!(
                    "{} is no directory that only this user can write to: somebody else has made it; remove it",
                    path.display()
                );
            }
        }
        Ok(())
    }

    /// Locks it against other commands that change the lab, waiting for `patience`.
    pub fn lock(&self, patience: Duration) -> Result<LabLock> {
        let deadline = Instant::now() + patience;
        loop {
            match self.try_lock()? {
                Some(lock) => return Ok(lock),
                None if Instant::now() >= deadline => bail!(
                    "another command is changing the lab '{}'; try again when it is done",
                    self.name
                ),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Locks it; `None` while another process has the lock.
    pub fn try_lock(&self) -> Result<Option<LabLock>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|_| self.missing())?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", self.path.display()));
            }
        }
        // It may have been removed, and made anew, between the two steps.
        let same = std::fs::metadata(&self.path)
            .is_ok_and(|now| rustix::fs::fstat(&fd).is_ok_and(|ours| ours.st_ino == now.ino()));
        Ok(same.then_some(LabLock { fd }))
    }

    /// The lab's record, as written by [`LabDir::save`].
    pub fn load(&self) -> Result<LabState> {
        if !self.exists() {
            return Err(self.missing());
        }
        let path = self.path.join("lab.json");
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "the lab '{name}' is not up yet, or is damaged ({path} cannot be read); \
                 `plover lab down --name {name}` removes it",
                name = self.name,
                path = path.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged; `plover lab down --name {}` removes the lab all the same",
                path.display(),
                self.name
            )
        })
    }

    /// Writes down what exists, in one step: the old file or the new one is there, never a part.
    pub fn save(&self, state: &LabState) -> Result<()> {
        let (new, path) = (self.path.join("lab.json.new"), self.path.join("lab.json"));
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(state)?)?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes it with all that is in it, and the root after the last lab.
    pub fn remove(&self) -> Result<()> {
        for path in [self.disks(), self.path.clone()] {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        // These fail while other labs exist, as they should.
        let _ = std::fs::remove_dir(DISK_ROOT);
        let _ = std::fs::remove_dir(ROOT);
        Ok(())
    }

    fn missing(&self) -> anyhow::Error {
        let others = Self::all();
        let hint = if others.is_empty() {
            "`plover lab up` makes one".to_owned()
        } else {
            let names: Vec<_> = others.iter().map(|name| format!("'{name}'")).collect();
            format!("there is {}; choose with --name", names.join(", "))
        };
        anyhow::anyhow!("there is no lab '{}': {hint}", self.name)
    }
}

fn names_in(root: &str) -> Vec<LabName> {
    let mut names: Vec<LabName> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    names.sort();
    names
}

/// Held while a command changes a lab. Dropping it, or dying, releases it.
#[derive(Debug)]
pub struct LabLock {
    fd: OwnedFd,
}

/// Unlocks explicitly. Closing the descriptor is not enough: a child that another thread is just
/// starting has a copy of it until its `exec`.
impl Drop for LabLock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
    }
}

/// The directory of one replica of a lab.
#[derive(Clone, Debug)]
pub struct ReplicaDir(PathBuf);

impl ReplicaDir {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// The daemon's configuration.
    pub fn config(&self) -> PathBuf {
        self.0.join("replica.toml")
    }
    /// The replica's private key.
    pub fn key(&self) -> PathBuf {
        self.0.join("replica.key")
    }
    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }
    /// The daemon's run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.0.join("run")
    }
    /// The guest's output on its console.
    pub fn console_log(&self) -> PathBuf {
        self.run_dir().join("console.log")
    }
    /// The daemon's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.0.join("state")
    }
    /// The daemon's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir().join("control.sock")
    }
    /// The daemon's trace.
    pub fn trace(&self) -> PathBuf {
        self.run_dir().join("trace.jsonl")
    }
}

/// The record of a lab: all that exists of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    /// The `lab up` that is still at work, if any: `lab down` ends it first.
    pub builder: Option<Process>,
    /// The guest's address.
    pub guest_ip: Ipv4Addr,
    /// The image that it runs.
    pub guest: Guest,
    /// The port on which it answers, if the user has named one.
    #[serde(default)]
    pub answers: Option<u16>,
    /// The policy it runs under.
    pub policy: String,
    /// The program that runs the daemons.
    pub program: PathBuf,
    /// The replicas.
    pub replicas: Vec<ReplicaState>,
}

/// One replica of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaState {
    /// Its id.
    pub id: u8,
    /// Its daemon, once started. It may have ended since.
    pub daemon: Option<Process>,
}

impl LabState {
    /// How to find out that the guest's service works.
    pub fn probe(&self) -> Probe {
        self.answers
            .map_or_else(|| self.guest.probe(), Probe::connection)
    }

    /// The state of replica `id`.
    pub fn replica(&self, id: u8) -> Result<&ReplicaState> {
        self.replicas
            .iter()
            .find(|replica| replica.id == id)
            .with_context(|| {
                let ids: Vec<_> = self.replicas.iter().map(|r| r.id.to_string()).collect();
                format!("there is no replica {id}; there are {}", ids.join(", "))
            })
    }
}

#[cfg(test)]
mod tests;
