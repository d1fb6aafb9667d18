//! The supervisor: a small process that outlives the replica's process and reports its death.
//!
//! ```text
//!   plover replica ── fork ──▶ the replica ── starts ──▶ QEMU
//!     │ supervisor               │ ends, in any way        │
//!     │ ◀── waited for ──────────┘                         │
//!     │  nothing of it releases outputs any more           │
//!     │ ── kill, whatever it has left ───────────────────▶ │
//!     │ ── report to all peers ──▶ they wait for no timeout
//!     ▼ exits as the replica did
//! ```
//!
//! # When the report is true
//!
//! A guest's outputs leave the host through the TAP, and only the replica's process writes to it: QEMU
//! sends frames to that process, and inherits no descriptor of the TAP. The kernel reports the end of a
//! process to its parent after all its threads are gone and its descriptors are closed. So when the
//! supervisor has waited for the replica, no output can leave any more. A thread that is stuck in the
//! kernel delays the report, as it should.
//!
//! QEMU dies with the thread that started it. The supervisor is the subreaper of what the replica leaves,
//! kills it once more, and waits for its end before it exits itself: a replica that is started again
//! finds the host as if nothing had run.
//!
//! # The supervisor's own end
//!
//! If it is killed, the kernel kills the replica, and nobody reports anything: the others wait for the
//! timeout. It has one thread, holds no lock, and does nothing until the replica ends but pass on
//! `SIGTERM` and `SIGINT`.

use crate::config::ReplicaConfig;
use crate::death::Reporter;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::io;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The pauses between the times that the report is sent.
const REPEAT_AFTER: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(80),
];

/// How long the end of what the replica has left is waited for. A process that waits for a disk that hangs
/// may outlive this.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

/// The nice value of the supervisor: when the replica dies, others wait for it.
const NICE: i32 = -10;

/// The exit code of a process that a signal has ended, as a shell gives it.
const SIGNALLED: u8 = 128;

/// A replica's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThisProcess {
    /// The number that tells it from the other processes of this replica.
    pub(crate) number: u64,
    /// Its supervisor.
    pub(crate) supervisor: Option<Pid>,
}

impl ThisProcess {
    /// A process that nobody supervises: its death is noticed by the timeout.
    ///
    /// # Errors
    /// The kernel gives no random number.
    pub fn alone() -> io::Result<Self> {
        Ok(Self {
            number: draw()?,
            supervisor: None,
        })
    }
}

/// The two sides of [`supervise`].
#[derive(Debug)]
pub enum Side {
    /// This is the replica's process: run it.
    Replica(ThisProcess),
    /// This is the supervisor. The replica has ended, and this is its exit code.
    Supervisor(ExitCode),
}

/// Starts the process in which the replica runs, and returns twice: at once in the new process, and in this
/// one when the new process has ended. Call it on the main thread while there is no other.
///
/// # Errors
/// The process or the socket for the report cannot be made.
pub fn supervise(config: &ReplicaConfig) -> io::Result<Side> {
    let number = draw()?;
    let reporter = Reporter::open(&config.group, number)?;
    let supervisor = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(supervisor))?;
    let signals = Signals::block()?;
    // SAFETY: this process has no other thread, so the child finds every lock free.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reporter);
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(supervisor) {
                return Err(io::Error::other("the supervisor has ended"));
            }
            signals.unblock()?;
            Ok(Side::Replica(ThisProcess {
                number,
                supervisor: Some(supervisor),
            }))
        }
        child => {
            let _ = rustix::process::setpriority_process(None, NICE);
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidInput)?;
            let status = wait_for(child, &signals)?;
            kill_what_is_left();
            if let Some(reporter) = &reporter {
                reporter.send();
                tracing::warn!("the replica's process has ended: the others are told");
                for pause in REPEAT_AFTER {
                    std::thread::sleep(pause);
                    reporter.send();
                }
            }
            wait_for_what_is_left();
            Ok(Side::Supervisor(code_of(status)))
        }
    }
}

fn draw() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

/// The signals that the supervisor waits for.
struct Signals {
    waited: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks them, so that they wait until they are asked for.
    fn block() -> io::Result<Self> {
        let mut waited = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set, and `sigaddset` only adds to it; `sigprocmask` reads
        // it and writes the old mask into `before`. All pointers are valid for these calls.
        unsafe {
            libc::sigemptyset(waited.as_mut_ptr());
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
                libc::sigaddset(waited.as_mut_ptr(), signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, waited.as_ptr(), before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                waited: waited.assume_init(),
                before: before.assume_init(),
            })
        }
    }

    /// Restores the mask of before.
    fn unblock(&self) -> io::Result<()> {
        // SAFETY: `before` is a set that the kernel wrote; no old mask is asked for.
        match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for one of them.
    fn wait(&self) -> Option<libc::c_int> {
        // SAFETY: `waited` is an initialised set, and no further information is asked for.
        let signal = unsafe { libc::sigwaitinfo(&self.waited, std::ptr::null_mut()) };
        (signal > 0).then_some(signal)
    }
}

/// Waits for the end of the replica's process, and passes on signals that ask for it.
fn wait_for(child: Pid, signals: &Signals) -> io::Result<WaitStatus> {
    loop {
        match signals.wait() {
            Some(libc::SIGTERM) => drop(rustix::process::kill_process(child, Signal::TERM)),
            Some(libc::SIGINT) => drop(rustix::process::kill_process(child, Signal::INT)),
            // A stopped process is a change, too, but not an end.
            _ => {
                if let Some((_, status)) =
                    rustix::process::waitpid(Some(child), WaitOptions::NOHANG)?
                {
                    return Ok(status);
                }
            }
        }
    }
}

/// Kills the processes that the replica has left: they are this process's children now.
fn kill_what_is_left() {
    let me = rustix::process::getpid().as_raw_nonzero();
    // Without this file, they are killed only because the thread that started them has ended.
    let left = std::fs::read_to_string(format!("/proc/self/task/{me}/children"));
    for pid in left.unwrap_or_default().split_ascii_whitespace() {
        if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

fn wait_for_what_is_left() {
    let deadline = Instant::now() + LEFT_WITHIN;
    while let Ok(ended) = rustix::process::wait(WaitOptions::NOHANG) {
        if ended.is_none() {
            if Instant::now() > deadline {
                tracing::error!("a process that the replica has left does not end");
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn code_of(status: WaitStatus) -> ExitCode {
    let code = status.exit_status().map(|code| code as u8);
    let signal = status.terminating_signal().map(|signal| signal as u8);
    ExitCode::from(code.unwrap_or_else(|| SIGNALLED.saturating_add(signal.unwrap_or(0))))
}
