//! The program: a child of this process, in a process group of its own.

use crate::direct::Launch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, test_kill_process_group};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a program that is asked to end may take.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The code of a shell, and of some programs, that SIGTERM has ended.
const ENDED_BY_TERM: i32 = 128 + libc::SIGTERM;

/// A program that runs, or has ended.
#[derive(Debug)]
pub(crate) struct Program {
    /// There until it is dropped.
    child: Option<Child>,
    pid: u32,
    handle: OwnedFd,
}

impl Program {
    /// Starts the program. The kernel kills it when the calling thread ends.
    pub fn start(
        words: &[OsString],
        directory: &Path,
        preload: Option<&Launch>,
    ) -> io::Result<Self> {
        let (name, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null());
        die_with_us(&mut command);
        if let Some(launch) = preload {
            launch.give_to(&mut command);
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self {
                handle,
                pid: child.id(),
                child: Some(child),
            }),
            // Nobody would know of it, and it has the port.
            Err(error) => {
                let _ = child.kill();
                reap(child);
                Err(error.into())
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is ending or has ended. The kernel closes a process's connections before it reports its end, and this
    /// tells an end of a connection that the program wanted from one that its death made.
    pub fn is_ending(&self) -> bool {
        Stat::of(self.pid()).map_or(true, Stat::is_ending)
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        self.status().map(in_words)
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Asks it to end, waits for a while, and kills what is left of it. An error says that it has not ended as it was asked to, so
    /// that it may not have written its state.
    pub fn end(mut self) -> Result<(), String> {
        if let Some(how) = self.ended() {
            return Err(format!(
                "the program had ended before SIGTERM asked it to: {how}"
            ));
        }
        if let Some(child) = &self.child {
            let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
        }
        let until = Instant::now() + ENDS_WITHIN;
        let timeout = Timespec {
            tv_sec: ENDS_WITHIN.as_secs() as i64,
            tv_nsec: 0,
        };
        let _ = poll(
            &mut [PollFd::new(&self.handle, PollFlags::IN)],
            Some(&timeout),
        );
        let Some(status) = self.status() else {
            return Err(format!(
                "the program did not end within {} s when SIGTERM asked it to",
                ENDS_WITHIN.as_secs()
            ));
        };
        let is_orderly = match status.signal() {
            Some(signal) => signal == libc::SIGTERM,
            None => matches!(status.code(), Some(0 | ENDED_BY_TERM)),
        };
        if is_orderly {
            return self.is_alone(until);
        }
        Err(format!(
            "when SIGTERM asked the program to end, {}, so it may not have written its state: make it end with code 0, \
             or take checkpoints by program.snapshot_cmd",
            in_words(status)
        ))
    }

    /// Waits for the processes that it has started, which may be the ones with its state: of a shell with a server, SIGTERM ends
    /// the shell.
    fn is_alone(&self, until: Instant) -> Result<(), String> {
        let group = Pid::from_raw(self.pid as i32);
        let is_left = || group.is_some_and(|it| test_kill_process_group(it).is_ok());
        while is_left() {
            if Instant::now() > until {
                return Err(
                    "SIGTERM ended the program, and processes that it had started are left, so their state may not be \
                     written: start the program itself (a shell's 'exec'), or take checkpoints by program.snapshot_cmd"
                        .into(),
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Of `/proc/N/stat`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    flags: u64,
    /// When it began, in ticks since the host was started.
    pub started: u64,
}

impl Stat {
    /// Of a process or a thread.
    pub fn of(number: u32) -> io::Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{number}/stat"))?;
        // The name, in parentheses, may hold anything.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields);
        let field = |at: usize| fields?.split_whitespace().nth(at)?.parse().ok();
        match (field(6), field(19)) {
            (Some(flags), Some(started)) => Ok(Self { flags, started }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub fn is_ending(self) -> bool {
        // Set at the beginning of the end (`PF_EXITING` in the kernel's sched.h).
        const EXITING: u64 = 4;
        self.flags & EXITING != 0
    }
}

/// A result of `/proc`; `None` if the process, the thread or the descriptor is there no more.
pub(crate) fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".into(),
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Drop for Program {
    /// Kills the program and all processes of its group, and waits for its end for a moment.
    fn drop(&mut self) {
        kill_group(self.pid);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            reap(child);
        }
    }
}

/// How long a process that was killed is waited for. By then it runs no instruction of its own any more.
const DIES_WITHIN: Duration = Duration::from_millis(20);

/// Killed processes that have not ended yet.
static DYING: AtomicUsize = AtomicUsize::new(0);

/// Waits for the end of a process that was killed. One that takes longer, because the kernel frees much memory or a hung disk
/// holds it, ends beside the caller, who has more to do. It may hold its port and its files until then.
pub(crate) fn reap(mut child: Child) {
    let until = Instant::now() + DIES_WITHIN;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some(_)) | Err(_) => return,
        }
    }
    DYING.fetch_add(1, Ordering::SeqCst);
    let waits = std::thread::Builder::new().name("reaper".into());
    let waits = waits.spawn(move || {
        let _ = child.wait();
        DYING.fetch_sub(1, Ordering::SeqCst);
    });
    if waits.is_err() {
        // Nobody waits for it then.
        DYING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until all processes that were killed have ended.
pub(crate) fn wait_until_dead(deadline: Instant) -> Result<(), String> {
    while DYING.load(Ordering::SeqCst) > 0 {
        if Instant::now() >= deadline {
            return Err(
                "the program was killed and does not end: look whether its disk hangs".into(),
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Finds the program that the first of `words` names, and gives it its whole path: the program starts in another
/// directory than the one in which its name was given.
pub(crate) fn found(mut words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let name = words.first_mut().ok_or("no program was given")?;
    let path = Path::new(&*name);
    let is_program = |path: &Path| {
        let mode = path.metadata().map(|it| it.permissions().mode());
        path.is_file() && mode.is_ok_and(|mode| mode & 0o111 != 0)
    };
    let found = if path.components().count() > 1 || path.is_absolute() {
        std::path::absolute(path).ok().filter(|it| is_program(it))
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders)
            .map(|folder| folder.join(path))
            .find(|it| is_program(it))
    };
    let found = found.ok_or_else(|| {
        format!(
            "there is no program '{}': give the name of one in PATH, or its path",
            path.display()
        )
    })?;
    *name = found.into();
    Ok(words)
}

/// Makes `command` lead a process group of its own, which Ctrl-C does not reach, and die with the thread that
/// starts it.
pub(crate) fn die_with_us(command: &mut Command) {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed: it makes
    // two system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

/// Kills all processes of the group that `leader` leads. It was started by this process and not waited for, so
/// its number is no other's.
pub(crate) fn kill_group(leader: u32) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_program_is_seen_before_it_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut program =
            Program::start(&["sleep".into(), "1000".into()], dir.path(), None).unwrap();
        assert!(!program.is_ending());
        kill_group(program.pid());
        poll(&mut [PollFd::new(&program, PollFlags::IN)], None).unwrap();
        assert!(program.is_ending());
        assert!(program.ended().is_some_and(|how| how.contains("signal 9")));
    }

    /// A program that crashes while it writes its state would give a checkpoint of half of it.
    #[test]
    fn only_an_end_in_order_is_a_success() {
        let dir = tempfile::tempdir().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let start = |script: &str| {
            let words = ["sh", "-c", script].map(OsString::from);
            Program::start(&words, dir.path(), None).unwrap()
        };
        for (does, error) in [
            ("exit 0", None),
            ("exit 143", None),
            ("trap - TERM; kill -TERM $$", None),
            ("exit 1", Some("code 1")),
            ("kill -KILL $$", Some("signal 9")),
        ] {
            let traps = format!("trap '{does}' TERM; : >ready; while :; do sleep 0.01; done");
            let program = start(&traps);
            let ready = dir.path().join("ready");
            while std::fs::remove_file(&ready).is_err() {
                assert!(Instant::now() < until, "{does}");
                std::thread::sleep(Duration::from_millis(1));
            }
            match (program.end(), error) {
                (Ok(()), None) => {}
                (Err(why), Some(error)) => assert!(why.contains(error), "{does}: {why}"),
                (ended, _) => panic!("{does}: {ended:?}"),
            }
        }
        // SIGTERM ends the shell; the server in it writes its state a while later, and ends by itself.
        let state = dir.path().join("state");
        let server = "sleep 0.3; : >state";
        let program = start(&format!("({server}) & trap - TERM; : >ready; wait"));
        while std::fs::remove_file(dir.path().join("ready")).is_err() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        program.end().unwrap();
        assert!(state.exists());
        let program = start("exit 0");
        poll(&mut [PollFd::new(&program, PollFlags::IN)], None).unwrap();
        assert!(program.end().unwrap_err().contains("before SIGTERM"));
    }

    #[test]
    fn a_program_is_found_or_named_as_missing() {
        let ask = |name: &str| found(vec![name.into(), "-x".into()]);
        let words = ask("sh").unwrap();
        assert!(Path::new(&words[0]).is_absolute() && words[1] == "-x");
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        std::fs::write(&own, "#!/bin/sh\n").unwrap();
        assert!(ask(own.to_str().unwrap()).is_err(), "it is not executable");
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(ask(own.to_str().unwrap()).unwrap()[0], own);
        for name in ["no-such-program-here", "/no/such/file", "/"] {
            assert!(ask(name).unwrap_err().contains(name), "{name}");
        }
    }
}
