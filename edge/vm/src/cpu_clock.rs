//! How much CPU the guest's vCPU threads have used, read from another process.
//!
//! A perf counter of the thread's task clock is exact at each read, and a read takes less than a
//! microsecond. The more obvious clocks do not work:
//!
//! - `clock_gettime` fails for a thread of another process.
//! - `/proc/PID/task/TID/schedstat` is updated only when the thread is switched out or the timer ticks.
//!   Over a fraction of a millisecond a thread that computes without pause looks as idle as one that
//!   sleeps. It is the fallback where perf is not permitted.

use rustix::fd::{FromRawFd, OwnedFd};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The clock of one thread.
pub(crate) enum CpuClock {
    /// A perf counter: exact.
    Perf(OwnedFd),
    /// `/proc/PID/task/TID/schedstat`: late by up to a timer tick while the thread runs.
    Schedstat(File),
}

impl CpuClock {
    /// The clock of thread `tid` of process `pid`.
    pub(crate) fn open(pid: u32, tid: i32) -> std::io::Result<Self> {
        match open_perf(tid) {
            Ok(fd) => Ok(Self::Perf(fd)),
            Err(error) => {
                tracing::info!(event = "no_perf_counter", %error, "no perf counter; idleness is seen to a timer tick only");
                File::open(format!("/proc/{pid}/task/{tid}/schedstat")).map(Self::Schedstat)
            }
        }
    }

    /// CPU time used so far; zero once the thread has ended.
    pub(crate) fn read(&self) -> Duration {
        let nanos = match self {
            Self::Perf(fd) => {
                let mut bytes = [0; 8];
                match rustix::io::read(fd, &mut bytes) {
                    Ok(8) => u64::from_ne_bytes(bytes),
                    _ => 0,
                }
            }
            Self::Schedstat(file) => {
                let mut bytes = [0; 64];
                let got = file.read_at(&mut bytes, 0).unwrap_or(0);
                std::str::from_utf8(&bytes[..got])
                    .ok()
                    .and_then(|text| text.split(' ').next()?.parse().ok())
                    .unwrap_or(0)
            }
        };
        Duration::from_nanos(nanos)
    }
}

/// Opens a counter of `PERF_COUNT_SW_TASK_CLOCK`.
fn open_perf(tid: i32) -> std::io::Result<OwnedFd> {
    const TYPE_SOFTWARE: u64 = 1;
    const TASK_CLOCK: u64 = 1;
    const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    /// The first published size of `struct perf_event_attr`, which every kernel takes.
    const SIZE_VER0: u64 = 64;
    /// Without it the kernel wants CAP_PERFMON. The task clock counts time in the kernel all the same.
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    // type and size are 32 bits each, then config, three words, flags; all else is zero: start at once.
    let attributes: [u64; 8] = [
        TYPE_SOFTWARE | (SIZE_VER0 << 32),
        TASK_CLOCK,
        0,
        0,
        0,
        EXCLUDE_KERNEL,
        0,
        0,
    ];
    // SAFETY: `attributes` is a perf_event_attr of the size that it states. -1, -1: on any CPU,
    // in no group.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            tid,
            -1,
            -1,
            FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// A child that computes gains time, one that sleeps does not: both clocks agree with that.
    #[test]
    fn a_busy_thread_of_another_process_is_told_from_a_sleeping_one() {
        let start = |program: &str, argument: &str| {
            Command::new(program)
                .arg(argument)
                .stdin(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let mut idle = start("cat", "-");
        let clocks = |pid: u32| {
            let schedstat = File::open(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
            let mut clocks = vec![CpuClock::Schedstat(schedstat)];
            match CpuClock::open(pid, pid as i32).unwrap() {
                perf @ CpuClock::Perf(_) => clocks.push(perf),
                CpuClock::Schedstat(_) => eprintln!("no perf here: schedstat only"),
            }
            clocks
        };
        let (busy_clocks, idle_clocks) = (clocks(busy.id()), clocks(idle.id()));
        let wait = || std::thread::sleep(Duration::from_millis(20));
        wait();
        for clock in &busy_clocks {
            let before = clock.read();
            while clock.read() == before {
                wait();
            }
        }
        // `cat` may still be starting; it has no reason to use more than a moment after that.
        let settled = (0..100).any(|_| {
            let before: Vec<_> = idle_clocks.iter().map(CpuClock::read).collect();
            wait();
            idle_clocks.iter().map(CpuClock::read).collect::<Vec<_>>() == before
        });
        for child in [&mut busy, &mut idle] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(settled, "a sleeping thread seems to compute");
    }
}
