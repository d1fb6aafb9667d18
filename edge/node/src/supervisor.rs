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
//! sends frames to that process, and inherits no descriptor of the TAP. The supervisor has one, and only
//! reads from it, once the replica has ended. The kernel reports the end of a
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
//! `SIGTERM`, `SIGINT` and `SIGHUP`, and kill the replica on `SIGABRT`, which systemd's watchdog sends.

use crate::body::BoxError;
use crate::config::{GroupConfig, ReplicaConfig};
use crate::death::{Reporter, is_for_one};
use crate::host::NICE;
use crate::private;
use crate::storage::members_in;
use crate::tap::{Tap, Taps, not_attached};
use plover_fabric::Keys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::io;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When the report is sent again, after the first time.
const REPEAT_AT: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(80),
];

/// For how long the TAP of the dead process is read: until another replica has announced the guest. That
/// takes some 10 ms to 100 ms.
const SEND_ON_FOR: Duration = Duration::from_millis(300);

/// The most frames that are sent on.
const SEND_ON_MAX: usize = 4096;

/// How long the end of what the replica has left is waited for. A process that waits for a disk that hangs
/// may outlive this.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

/// How long a TAP that is busy is waited for. A process of this replica's last run that was killed while it wrote to its disk
/// has its TAP until the disk has answered.
const ATTACHED_WITHIN: Duration = Duration::from_secs(30);

/// How long the address of this replica is waited for. At 95 s a start, systemd's limit of ten in ten minutes is never reached,
/// so it goes on until the network is there.
const ADDRESS_WITHIN: Duration = Duration::from_secs(90);

/// The exit code of a process that a signal has ended, as a shell gives it.
const SIGNALLED: u8 = 128;

/// A replica's process.
#[derive(Debug)]
pub struct ThisProcess {
    /// The number that tells it from the other processes of this replica.
    pub(crate) number: u64,
    pub(crate) supervisor: Pid,
    pub(crate) taps: Taps,
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
/// The TAP cannot be used, or the process or the socket for the report cannot be made.
pub fn supervise(config: &ReplicaConfig) -> Result<Side, BoxError> {
    private::keep_files_private();
    let number = draw()?;
    let record = || members_in(&config.paths.state_dir, &config.group.name);
    let known = record();
    let group = config.group.linked_at_start(known.as_ref());
    let left = known.map(|it| it.left).unwrap_or_default();
    let (keys, _) = config.group.keys_at_start(left)?;
    let reporter = open_reporter(&group, keys.as_ref(), number)
        .map_err(|e| format!("cannot open a UDP socket at the address of this replica, {e}"))?;
    let mut taps = Taps::attach(&config.taps(), |name, nic| {
        attach(name, nic).map_err(|error| not_attached(name, &error))
    })?;
    let supervisor = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(supervisor))?;
    let signals = Signals::block()?;
    // SAFETY: this process has no other thread, so the child finds every lock free.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            drop(reporter);
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(supervisor) {
                return Err("the supervisor has ended".into());
            }
            signals.unblock()?;
            Ok(Side::Replica(ThisProcess {
                number,
                supervisor,
                taps,
            }))
        }
        child => {
            // When the replica dies, the other replicas wait for this process.
            let _ = rustix::process::setpriority_process(None, NICE);
            let child = Pid::from_raw(child).ok_or("no process was made")?;
            let status = wait_for(child, &signals)?;
            kill_what_is_left();
            // The members may have changed since the process was started.
            let newest = Reporter::open(
                &config.group.linked_at_start(record().as_ref()),
                keys,
                number,
            )
            .ok()
            .flatten();
            if let Some(reporter) = newest.or(reporter).as_ref() {
                reporter.send();
                report_on(reporter, &mut taps);
            }
            wait_for_what_is_left();
            Ok(Side::Supervisor(code_of(status)))
        }
    }
}

/// Tries again while the error is of this kind, for so long; `tell` says that it waits.
fn patiently<T>(
    passes: io::ErrorKind,
    within: Duration,
    tell: impl FnOnce(u64),
    mut tried: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let deadline = Instant::now() + within;
    let mut tell = Some(tell);
    loop {
        match tried() {
            Err(error) if error.kind() == passes && Instant::now() < deadline => {
                if let Some(tell) = tell.take() {
                    tell(within.as_secs());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Attaches to the TAP. The processes of this replica's last run may be ending just now, and have it still.
fn attach(name: &str, nic: u8) -> io::Result<Tap> {
    let tell = |seconds| {
        tracing::info!(
            event = "tap_busy",
            "the TAP device '{name}' is busy; it is waited for {seconds} s: a process of this replica's last run may be ending"
        );
    };
    let busy = io::ErrorKind::ResourceBusy;
    patiently(busy, ATTACHED_WITHIN, tell, || Tap::attach(name, nic))
}

/// Opens the socket for the report. At the boot of the host the network may not be there yet.
fn open_reporter(
    group: &GroupConfig,
    keys: Option<&Arc<Keys>>,
    number: u64,
) -> io::Result<Option<Reporter>> {
    let tell = |seconds| {
        tracing::warn!(
            event = "address_awaited",
            "this host does not have the address of this replica in group.replica; it is waited for {seconds} s: the network \
             may not be up yet"
        );
    };
    let not_yet = io::ErrorKind::AddrNotAvailable;
    let open = || Reporter::open(group, keys.cloned(), number);
    patiently(not_yet, ADDRESS_WITHIN, tell, open)
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
            for signal in [
                libc::SIGCHLD,
                libc::SIGTERM,
                libc::SIGINT,
                libc::SIGHUP,
                libc::SIGABRT,
            ] {
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

/// Waits for the end of the replica's process, and passes on signals that are for it.
fn wait_for(child: Pid, signals: &Signals) -> io::Result<WaitStatus> {
    loop {
        match signals.wait() {
            Some(libc::SIGTERM) => drop(rustix::process::kill_process(child, Signal::TERM)),
            Some(libc::SIGINT) => drop(rustix::process::kill_process(child, Signal::INT)),
            Some(libc::SIGHUP) => drop(rustix::process::kill_process(child, Signal::HUP)),
            // systemd's watchdog: the replica's loop hangs. It is killed here, and not together with this process, so that its
            // death is reported.
            Some(libc::SIGABRT) => drop(rustix::process::kill_process(child, Signal::KILL)),
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

/// Repeats the report, and sends on the frames that still come to the dead process's TAP.
fn report_on(reporter: &Reporter, taps: &mut Taps) {
    // Long segments do not fit into the datagrams in which frames are sent on.
    taps.allow_nothing();
    let began = Instant::now();
    let mut repeat_at = REPEAT_AT.iter().peekable();
    let mut left = SEND_ON_MAX;
    loop {
        let now = began.elapsed();
        if now >= SEND_ON_FOR {
            return;
        }
        if repeat_at.next_if(|at| now >= **at).is_some() {
            reporter.send();
        }
        let until = repeat_at.peek().map_or(SEND_ON_FOR, |at| **at);
        let span = until.saturating_sub(now);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: span.subsec_nanos().into(),
        };
        let mut polled: Vec<_> = taps
            .iter()
            .map(|tap| PollFd::new(tap, PollFlags::IN))
            .collect();
        let came = poll(&mut polled, Some(&timeout));
        let mut frames = Vec::new();
        if came.is_ok_and(|came| came > 0) {
            taps.read(left, usize::MAX, &mut frames);
            if frames.is_empty() {
                // The device is gone, or enough has been sent on.
                std::thread::sleep(span);
            }
        }
        left = left.saturating_sub(frames.len());
        for frame in frames.into_iter().filter(is_for_one) {
            reporter.send_on(frame);
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
                tracing::error!(
                    event = "process_left",
                    "a process that the replica has left does not end"
                );
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
