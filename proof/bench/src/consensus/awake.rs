//! Cores that do not fall asleep while something is measured.
//!
//! In a virtual machine a core that has nothing to do is given back to the host, and waking it
//! costs 50 µs and more: several times what is measured here. Whether a wake-up meets such a core
//! is up to the scheduler, so that one and the same program takes 8 µs or 60, a floor as well as
//! what stands on it. A spinner of the idle class on each core keeps it; it runs only when
//! nothing else wants to, and any other thread takes its place at once. For every system alike.

use super::children::Process;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::thread;

/// Starts the spinners; they end with what is returned.
pub(super) fn keep(folder: &Path) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("keep-awake");
    Process::start(&mut command, &folder.join("awake.log"), false)
}

/// Spins on every core, for ever.
pub(crate) fn run() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are read during the call, and 0 means this thread. Threads that are
    // started later inherit the class.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if done != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot spin in the idle class");
    }
    let cores = thread::available_parallelism()?.get();
    for _ in 1..cores {
        thread::spawn(spin::<()>);
    }
    spin()
}

fn spin<T>() -> T {
    loop {
        std::hint::spin_loop();
    }
}
