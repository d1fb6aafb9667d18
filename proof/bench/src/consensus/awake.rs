//! Keeps cores awake while something is measured.
//!
//! In a virtual machine an idle core is given back to the host, and waking it costs 50 µs and more:
//! several times what is measured here. The scheduler decides whether a wake-up meets such a core, so
//! the same program takes 8 µs or 60, and a floor varies as much as the system above it. A spinner of
//! the idle class on each core keeps the core awake. It runs only when nothing else wants to, and any
//! other thread takes its place at once. This is the same for every system.

use crate::children::Process;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::thread;

/// Starts the spinners. They end when the returned process is dropped.
pub(super) fn keep(folder: &Path) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("keep-awake");
    Process::logged(&mut command, &folder.join("awake.log"), false)
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
