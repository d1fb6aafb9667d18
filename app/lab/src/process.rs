//! Processes that cannot be mistaken for others.
//!
//! The lab outlives the command that made it: `lab up` writes down which processes it started,
//! and a later `lab down` or `lab fault` signals them. In between a process may have ended and
//! its number may have been given to another one. A [`Process`] is therefore a number *and*
//! a start time, and a signal goes through a pidfd that is checked after it is opened: from then
//! on the kernel guarantees that it means the same process.
//!
//! The processes of a simulated host are not written down but looked up: all those
//! whose network namespace is the host's. That finds QEMU, which the lab did not start itself,
//! and it still works when nothing that was written down can be read.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One process, which no later process with its number can be mistaken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks after boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It exists and is not stopped.
    Running,
    /// `SIGSTOP` holds it.
    Stopped,
    /// It has ended (perhaps its parent has not waited for it yet).
    Gone,
}

impl Process {
    /// Whether its program's name begins so.
    pub fn is_called(&self, name: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/comm", self.pid))
            .is_ok_and(|called| called.starts_with(name))
    }

    /// The process that has this number now.
    pub fn now(pid: u32) -> Option<Self> {
        let (life, start_ticks) = read_stat(pid)?;
        (life != Life::Gone).then_some(Self { pid, start_ticks })
    }

    /// This process itself.
    pub fn me() -> Option<Self> {
        Self::now(std::process::id())
    }

    /// Its state.
    pub fn life(self) -> Life {
        match read_stat(self.pid) {
            Some((life, start)) if start == self.start_ticks => life,
            _ => Life::Gone,
        }
    }

    /// Whether it has not ended.
    pub fn is_alive(self) -> bool {
        self.life() != Life::Gone
    }

    /// Sends a signal; `false` if the process has ended. Never reaches another process.
    pub fn signal(self, signal: Signal) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        // The number may have passed to another process before the handle was opened, but not after.
        self.is_alive() && pidfd_send_signal(handle, signal).is_ok()
    }
}

/// State and start time out of `/proc/PID/stat`.
fn read_stat(pid: u32) -> Option<(Life, u64)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(stat: &str) -> Option<(Life, u64)> {
    // The second field is the program's name in parentheses, which may itself contain spaces and
    // parentheses. Field 3 comes after the last parenthesis.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    let life = match state {
        // The first thread has ended before the others. The process still has its files, perhaps a
        // listening socket.
        "Z" if threads > 1 => Life::Running,
        "Z" | "X" | "x" => Life::Gone,
        "T" | "t" => Life::Stopped,
        _ => Life::Running,
    };
    Some((life, fields.nth(1)?.parse().ok()?))
}

/// All processes whose network namespace is the one at `namespace` (a path such as
/// `/run/netns/NAME`), but never the caller.
pub fn in_namespace(namespace: &Path) -> Vec<Process> {
    let Ok(wanted) = std::fs::metadata(namespace) else {
        return Vec::new();
    };
    all()
        .filter(|process| {
            // The file of a process that has ended is not readable: that process is in no namespace any
            // more.
            std::fs::metadata(format!("/proc/{}/ns/net", process.pid))
                .is_ok_and(|has| (has.dev(), has.ino()) == (wanted.dev(), wanted.ino()))
        })
        .collect()
}

/// All processes of programs called `names…` that have a file below `dir` in their command line, but
/// never the caller. `lab down` needs this when the namespaces have lost their names. Other programs
/// that look at the lab's files are not among them.
pub fn with_argument_below(dir: &Path, names: &[&str]) -> Vec<Process> {
    let prefix = format!("{}/", dir.display()).into_bytes();
    all()
        .filter(|process| names.iter().any(|name| process.is_called(name)))
        .filter(|process| {
            std::fs::read(format!("/proc/{}/cmdline", process.pid)).is_ok_and(|line| {
                line.split(|byte| *byte == 0)
                    .any(|argument| argument.starts_with(&prefix))
            })
        })
        .collect()
}

fn all() -> impl Iterator<Item = Process> {
    let me = std::process::id();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(move |pid| *pid != me)
        .filter_map(Process::now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn wait_for(process: Process, wanted: Life) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while process.life() != wanted {
            assert!(
                Instant::now() < deadline,
                "not {wanted:?} but {:?}",
                process.life()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn names_with_parentheses_are_read() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        let (life, start) = parse_stat(&format!("17 (a) b) (c) {rest}")).unwrap();
        assert_eq!((life, start), (Life::Running, 4711));
        assert!(parse_stat("").is_none());
        assert!(parse_stat("17 (sh) S 1").is_none());
    }

    #[test]
    fn a_process_stops_continues_and_ends() {
        let mut child = sleeper();
        let process = Process::now(child.id()).unwrap();
        assert!(process.signal(Signal::STOP));
        wait_for(process, Life::Stopped);
        assert!(process.signal(Signal::CONT));
        wait_for(process, Life::Running);
        assert!(process.signal(Signal::KILL));
        // Gone although its parent has not waited for it yet: a zombie runs nothing.
        wait_for(process, Life::Gone);
        assert!(!process.signal(Signal::KILL));
        child.wait().unwrap();
    }

    /// The failure to prevent: the number has been given to another process, which is then killed.
    #[test]
    fn another_process_with_the_same_number_is_not_signalled() {
        let mut child = sleeper();
        let real = Process::now(child.id()).unwrap();
        let older = Process {
            start_ticks: real.start_ticks - 1,
            ..real
        };
        assert!(!older.signal(Signal::KILL));
        assert_eq!(older.life(), Life::Gone);
        assert_eq!(real.life(), Life::Running);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn processes_are_found_by_namespace_and_by_argument() {
        let dir = std::env::temp_dir().join(format!("plover-lab-test-{}", std::process::id()));
        let mut child = Command::new("sh")
            .args(["-c", "read line", "sh"])
            .arg(dir.join("config"))
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = Process::now(child.id()).unwrap();
        assert!(in_namespace(Path::new("/proc/self/ns/net")).contains(&process));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !with_argument_below(&dir, &["sh"]).contains(&process) {
            assert!(
                Instant::now() < deadline,
                "the child never became what it was to run"
            );
        }
        assert!(!with_argument_below(&dir.join("config"), &["sh"]).contains(&process));
        assert!(!with_argument_below(&dir, &["plover", "qemu"]).contains(&process));
        for process in with_argument_below(&dir, &["sh"]) {
            process.signal(Signal::KILL);
        }
        child.wait().unwrap();
    }
}
