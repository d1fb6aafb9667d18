//! Whether a thread of another process is running or waiting for a CPU.
//!
//! A vCPU's clock alone cannot tell an idle guest from one whose thread the host has not scheduled yet:
//! neither gains time. On a host with more runnable threads than CPUs every other slot ended with a
//! third of its requests unserved. The scheduler's state is in `/proc/PID/task/TID/stat`: `R` is running
//! or runnable, everything else is not.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The scheduling state of one thread.
#[derive(Debug)]
pub(crate) struct ThreadState(File);

impl ThreadState {
    /// The state of thread `tid` of process `pid`.
    pub(crate) fn open(pid: u32, tid: i32) -> std::io::Result<Self> {
        File::open(format!("/proc/{pid}/task/{tid}/stat")).map(Self)
    }

    /// Whether it runs or waits for a CPU; `false` once it has ended.
    pub(crate) fn is_runnable(&self) -> bool {
        let mut bytes = [0; 96];
        match self.0.read_at(&mut bytes, 0) {
            Ok(got) => state(&bytes[..got]) == Some(b'R'),
            Err(_) => false,
        }
    }
}

/// The state letter: the first field after the name. The name is in parentheses and may contain any
/// byte. It has at most 15 bytes, so its end lies within the bytes that were read.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_state_stands_after_the_last_parenthesis() {
        assert_eq!(state(b"12 (CPU 0/TCG) S 1 2"), Some(b'S'));
        assert_eq!(state(b"12 (a) R (b)) R 1 2"), Some(b'R'));
        assert_eq!(state(b"12 (a"), None);
        assert_eq!(state(b""), None);
    }

    #[test]
    fn a_sleeper_is_told_from_one_that_computes() {
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let mut idle = Command::new("sleep").arg("1000").spawn().unwrap();
        let of = |pid: u32| ThreadState::open(pid, pid as i32).unwrap();
        let (busy_state, idle_state) = (of(busy.id()), of(idle.id()));
        let settles = |state: &ThreadState, runnable: bool| {
            (0..200).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                state.is_runnable() == runnable
            })
        };
        let told = settles(&busy_state, true) && settles(&idle_state, false);
        for child in [&mut busy, &mut idle] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(told);
        assert!(!busy_state.is_runnable(), "it has ended");
    }
}
