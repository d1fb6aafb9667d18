//! Processes and folders that do not outlive the benchmark, however it ends.
//!
//! ```text
//!   the end of a series   Drop: SIGKILL, wait
//!   Ctrl-C, SIGTERM       a thread: SIGKILL to all children. The wait for them then returns
//!                         `Interrupted`; drops take labs and folders away, and the figures stay
//!   SIGKILL of ourselves  the kernel sends SIGKILL to every child (PR_SET_PDEATHSIG). The lab, the
//!                         processes in it and the folders stay, and the next run removes them
//! ```
//!
//! Each child leads a process group of its own. A Ctrl-C at the terminal reaches us alone, so no part of
//! a cluster stops before the rest. Our SIGKILL goes to the whole group: the child of a child, as a client
//! under `timeout`, holds the pipes that we read to their end.

use anyhow::{Context, Result};
use plover_lab::progress::{Interrupted, Progress};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Whether we were asked to end.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The children that a signal ends.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn children() -> MutexGuard<'static, Vec<u32>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on signals interrupt instead of killing.
pub(crate) fn watch_signals() -> Result<()> {
    let watched = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(watched).context("cannot watch signals")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let children = children();
            INTERRUPTED.store(true, Ordering::Relaxed);
            for &pid in &*children {
                kill(pid);
            }
        }
    });
    Ok(())
}

/// An error once we were asked to end.
pub(crate) fn check() -> Result<(), Interrupted> {
    progress().check()
}

/// For labs of this process: prints nothing, and ends waits on Ctrl-C.
pub(crate) fn progress() -> Progress {
    Progress::silent(Arc::clone(&INTERRUPTED))
}

/// The same, and prints progress.
pub(crate) fn spoken_progress() -> Progress {
    Progress::spoken_by(|line| eprintln!("  {line}"), Arc::clone(&INTERRUPTED))
}

/// Whether a signal is ignored, as under `nohup`. It must stay so.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all of a `sigaction` may be zero.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; what is written is ours.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Kills a child and all processes that it has started.
fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        // It may be gone already.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
}

/// A child that is killed, with all processes that it has started, when this is dropped, and when a signal
/// comes.
#[derive(Debug)]
pub(crate) struct Process {
    /// Taken by `output` alone.
    child: Option<Child>,
    id: u32,
    /// The file of its output, for errors.
    log: Option<PathBuf>,
}

impl Process {
    /// Starts it. To be called from the main thread: the kernel kills the child when the starting thread
    /// ends.
    pub fn start(command: &mut Command) -> Result<Self> {
        let parent = rustix::process::getpid();
        command.process_group(0);
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
        // With the lock held, a signal finds the child or keeps it from being started.
        let mut children = children();
        check()?;
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
        children.push(child.id());
        Ok(Self {
            id: child.id(),
            child: Some(child),
            log: None,
        })
    }

    /// Starts it. Its output goes to `log`, except a standard output that is piped.
    pub fn logged(command: &mut Command, log: &Path, piped: bool) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stderr(file.try_clone()?);
        if piped {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).stdout(file);
        }
        let mut process = Self::start(command)?;
        process.log = Some(log.to_owned());
        Ok(process)
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn child(&mut self) -> &mut Child {
        self.child
            .as_mut()
            .expect("only `output` takes it, and it takes self")
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child().try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("it ended ({status}): {}", self.last_words()),
        }
    }

    /// The end of its output.
    pub fn last_words(&self) -> String {
        let text = self.log.as_ref().and_then(|log| fs::read(log).ok());
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let status = self.child().wait();
        check()?;
        Ok(status?)
    }

    /// Waits for its end, and returns its output.
    pub fn output(mut self) -> Result<Output> {
        let child = self.child.take().context("a child is waited for once")?;
        let output = child.wait_with_output();
        check()?;
        Ok(output?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        children().retain(|&pid| pid != self.id);
        if let Some(child) = &mut self.child {
            // Of a child that was waited for, the number may be another's by now.
            if matches!(child.try_wait(), Ok(None)) {
                kill(self.id);
            }
            let _ = child.wait();
        }
    }
}

/// A folder that is removed when this is dropped. One that a killed run has left is removed first.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder `plover-bench` in `parent`.
    pub fn new(parent: &Path) -> Result<Self> {
        let path = parent.join("plover-bench");
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
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
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::time::{Duration, Instant};

    #[test]
    fn what_a_child_has_started_ends_with_it() {
        let ends: [fn(Process); 2] = [drop, |process: Process| {
            kill(process.id());
            process.output().expect("a killed child can be waited for");
        }];
        for end in ends {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "sleep 60 & echo $!; wait"])
                .stdout(Stdio::piped());
            let mut shell = Process::start(&mut shell).unwrap();
            let out = shell.child().stdout.take().unwrap();
            let mut pid = String::new();
            BufReader::new(out).read_line(&mut pid).unwrap();
            let pid = pid.trim().parse().unwrap();
            let sleeper = plover_lab::process::Process::now(pid).unwrap();
            end(shell);
            let until = Instant::now() + Duration::from_secs(20);
            while sleeper.is_alive() {
                assert!(Instant::now() < until, "process {pid} goes on");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_dropped_process_and_its_folder_are_gone() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("plover-bench/left");
        fs::create_dir_all(&dead).unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        assert!(!dead.exists(), "a dead run's folder stays");
        let log = scratch.folder("a").unwrap().join("log");
        let mut sleeper = Process::logged(Command::new("sleep").arg("1000"), &log, false).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", sleeper.id()));
        sleeper.check().unwrap();
        assert!(proc.exists());
        drop(sleeper);
        assert!(!proc.exists());
        let mut quick = Command::new("sh");
        quick.args(["-c", "echo last words; exit 3"]);
        let mut quick = Process::logged(&mut quick, &log, false).unwrap();
        while quick.check().is_ok() {
            std::thread::yield_now();
        }
        let said = quick.check().unwrap_err().to_string();
        assert!(said.contains("last words") && said.contains('3'), "{said}");
        drop(scratch);
        assert!(fs::read_dir(parent.path()).unwrap().next().is_none());
        let mut echo = Command::new("sh");
        echo.args(["-c", "echo said; exit 3"])
            .stdout(Stdio::piped());
        let output = Process::start(&mut echo).unwrap().output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout, b"said\n");
    }
}
