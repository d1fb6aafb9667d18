//! Processes and folders that do not outlive the benchmark, however it ends.
//!
//! ```text
//!   the end of a series   Drop: SIGKILL, wait
//!   Ctrl-C, SIGTERM       the watcher thread: SIGKILL to all, remove all folders, exit 130
//!   SIGKILL of ourselves  the kernel sends SIGKILL to every child (PR_SET_PDEATHSIG); folders
//!                         stay, and the next run removes those whose owner is dead
//! ```
//!
//! Children are in process groups of their own. A Ctrl-C at the terminal reaches us alone, so no part of
//! a cluster stops before the rest.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The processes and folders that have to go.
static OWNED: Mutex<Owned> = Mutex::new(Owned {
    pids: Vec::new(),
    folders: Vec::new(),
});

struct Owned {
    pids: Vec<u32>,
    folders: Vec<PathBuf>,
}

fn owned() -> MutexGuard<'static, Owned> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on a signal that ends us first ends all children and removes all folders.
pub(crate) fn watch_signals() -> Result<()> {
    let watched = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(watched).context("cannot watch signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let owned = owned();
            for &pid in &owned.pids {
                kill(pid);
            }
            for folder in &owned.folders {
                let _ = fs::remove_dir_all(folder);
            }
            eprintln!("\nbench: ended by a signal; no process and no file is left");
            // The lock stays held: the main thread must not clean up halfway at the same time.
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Whether a signal is ignored, as under `nohup`. It must stay so.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all of a `sigaction` may be zero.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; what is written is ours.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The file of its output, for errors.
    log: PathBuf,
}

impl Process {
    /// Starts it. Its output goes to `log`, except a standard output that is piped. To be called from
    /// the main thread: the kernel kills the child when the starting thread ends.
    pub fn start(command: &mut Command, log: &Path, piped: bool) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stderr(file.try_clone()?).process_group(0);
        if piped {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).stdout(file);
        }
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec only two system calls are made, which allocate nothing
        // and take no lock.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?;
                // The parent may have died before this call.
                if rustix::process::getppid() != Some(parent) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Ok(())
            });
        }
        let mut owned = owned();
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
        owned.pids.push(child.id());
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("it ended ({status}): {}", self.last_words()),
        }
    }

    /// The end of its output.
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut owned = owned();
        owned.pids.retain(|&pid| pid != self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

const PREFIX: &str = "plover-bench-";

impl Scratch {
    /// Makes a folder in `parent`, and removes those that dead runs have left there.
    pub fn new(parent: &Path) -> Result<Self> {
        let what = || format!("cannot make a folder in {}", parent.display());
        fs::create_dir_all(parent).with_context(what)?;
        for entry in fs::read_dir(parent).with_context(what)?.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let owner = owner.and_then(|pid| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(what)?;
        owned().folders.push(path.clone());
        Ok(Self(path))
    }

    /// A new, empty folder in it.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        // An earlier round may have left it.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut owned = owned();
        owned.folders.retain(|path| *path != self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_process_and_its_folder_are_gone() {
        let parent = std::env::temp_dir().join(format!("children-{}", std::process::id()));
        let dead = parent.join(format!("{PREFIX}4294967295"));
        fs::create_dir_all(&dead).unwrap();
        let scratch = Scratch::new(&parent).unwrap();
        assert!(!dead.exists(), "a dead run's folder stays");
        let log = scratch.folder("a").unwrap().join("log");
        let mut sleeper = Process::start(Command::new("sleep").arg("1000"), &log, false).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", sleeper.id()));
        sleeper.check().unwrap();
        assert!(proc.exists());
        drop(sleeper);
        assert!(!proc.exists());
        let mut quick = Command::new("sh");
        quick.args(["-c", "echo last words; exit 3"]);
        let mut quick = Process::start(&mut quick, &log, false).unwrap();
        while quick.check().is_ok() {
            std::thread::yield_now();
        }
        let said = quick.check().unwrap_err().to_string();
        assert!(said.contains("last words") && said.contains('3'), "{said}");
        drop(scratch);
        fs::remove_dir(&parent).unwrap();
    }
}
