//! Ctrl-C while a lab is up: the children end, the lab is taken down, and the figures stay.
//!
//! Children are in process groups of their own, so that a Ctrl-C at the terminal reaches us alone. A
//! thread waits for signals. The first signal makes it end the child that is waited for, and the wait
//! then returns [`Interrupted`]. From there on errors are returned as always, and drops take labs down.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The benchmark was asked to end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("ended by a signal; the lab is taken down, and what was measured is kept")]
pub(crate) struct Interrupted;

struct State {
    interrupted: bool,
    children: Vec<u32>,
}

static STATE: Mutex<State> = Mutex::new(State {
    interrupted: false,
    children: Vec::new(),
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on signals interrupt instead of killing.
pub(crate) fn watch() -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let mut state = state();
            state.interrupted = true;
            for pid in &state.children {
                end(*pid);
            }
        }
    });
    Ok(())
}

/// An error once we were asked to end.
pub(crate) fn check() -> Result<()> {
    if state().interrupted {
        return Err(Interrupted.into());
    }
    Ok(())
}

/// Sends SIGTERM, which ends a child as Ctrl-C would: a lab that is coming up takes itself down.
fn end(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// A child that a signal to us ends too.
#[derive(Debug)]
pub(crate) struct Task(Option<Child>);

impl Task {
    /// Starts it.
    pub fn start(command: &mut Command) -> Result<Self> {
        check()?;
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
        let mut state = state();
        state.children.push(child.id());
        if state.interrupted {
            end(child.id());
        }
        Ok(Self(Some(child)))
    }

    /// Its pipes.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.0.as_mut()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let child = self.0.as_mut().context("a child is waited for once")?;
        let status = child.wait();
        check()?;
        Ok(status?)
    }

    /// Waits for its end, and returns its output.
    pub fn output(mut self) -> Result<Output> {
        let child = self.0.take().context("a child is waited for once")?;
        let pid = child.id();
        let output = child.wait_with_output();
        forget(pid);
        check()?;
        Ok(output?)
    }
}

fn forget(pid: u32) {
    state().children.retain(|other| *other != pid);
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            forget(child.id());
            // Ends a child that was never waited for. Most have ended already.
            if !matches!(child.try_wait(), Ok(Some(_))) {
                end(child.id());
                let _ = child.wait();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_task_ends_with_its_owner() {
        let task = Task::start(Command::new("sleep").arg("1000")).unwrap();
        let pid = task.0.as_ref().unwrap().id();
        drop(task);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        let mut echo = Command::new("sh");
        echo.args(["-c", "echo said; exit 3"])
            .stdout(Stdio::piped());
        let output = Task::start(&mut echo).unwrap().output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout, b"said\n");
        assert!(state().children.is_empty());
    }
}
