//! What a long command says while it works, and how it notices that it shall stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Somebody pressed Ctrl-C, or asked the process to end. Everything that the command had made
/// is gone when this comes out of it.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Progress lines with the time since the start, on the error output, so that the result on
/// the standard output stays alone.
#[derive(Clone, Debug)]
pub struct Progress {
    start: Instant,
    quiet: bool,
    interrupted: Arc<AtomicBool>,
}

impl Progress {
    /// Speaks, unless `quiet`, and obeys `interrupted`.
    pub fn new(quiet: bool, interrupted: Arc<AtomicBool>) -> Self {
        Self {
            start: Instant::now(),
            quiet,
            interrupted,
        }
    }

    /// Says nothing and cannot be interrupted: for tests.
    pub fn silent() -> Self {
        Self::new(true, Arc::new(AtomicBool::new(false)))
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Says one line.
    pub fn say(&self, line: impl std::fmt::Display) {
        if !self.quiet {
            // Not `eprintln!`, which panics when nobody reads any more.
            use std::io::Write;
            let seconds = self.start.elapsed().as_secs_f64();
            let _ = writeln!(std::io::stderr(), "{seconds:6.1} s  {line}");
        }
    }

    /// Fails once the command was asked to stop. To be called at least every 100 ms or so.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.interrupted.load(Ordering::Relaxed) {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }

    /// Sleeps, but not through an interruption.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_ends_a_sleep() {
        let flag = Arc::new(AtomicBool::new(false));
        let progress = Progress::new(true, Arc::clone(&flag));
        progress.sleep(Duration::from_millis(1)).unwrap();
        flag.store(true, Ordering::Relaxed);
        assert!(progress.sleep(Duration::from_secs(3600)).is_err());
        assert!(progress.check().is_err());
    }
}
