//! Progress lines of a long command, and the request to stop it.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Somebody pressed Ctrl-C, or asked the process to end. When a command returns this, everything that it
/// had made is gone.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A flag that becomes true when somebody presses Ctrl-C, closes the terminal or asks the process to end.
///
/// # Errors
/// The signals cannot be watched.
pub fn interruption() -> std::io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Where progress lines go.
type Voice = Arc<dyn Fn(&str) + Send + Sync>;

/// Progress lines with the time since the start, and whether the command was asked to stop.
#[derive(Clone)]
pub struct Progress {
    start: Instant,
    voice: Voice,
    interrupted: Arc<AtomicBool>,
}

impl Progress {
    /// Stops when somebody presses Ctrl-C, closes the terminal or asks the process to end. Speaks on
    /// the error output unless it is to be `quiet`.
    ///
    /// # Errors
    /// The signals cannot be watched.
    pub fn interruptible(quiet: bool) -> std::io::Result<Self> {
        let interrupted = interruption()?;
        // Not on the standard output, which is the result's alone, and not by `eprintln!`, which panics
        // on a closed pipe.
        let speak = move |line: &str| {
            if !quiet {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        };
        Ok(Self::spoken_by(speak, interrupted))
    }

    /// Speaks through `voice`; stops when `interrupted` becomes true.
    pub fn spoken_by(
        voice: impl Fn(&str) + Send + Sync + 'static,
        interrupted: Arc<AtomicBool>,
    ) -> Self {
        Self {
            start: Instant::now(),
            voice: Arc::new(voice),
            interrupted,
        }
    }

    /// Says nothing.
    pub fn silent(interrupted: Arc<AtomicBool>) -> Self {
        Self::spoken_by(|_| (), interrupted)
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Says one line.
    pub fn say(&self, line: impl fmt::Display) {
        let seconds = self.start.elapsed().as_secs_f64();
        (self.voice)(&format!("{seconds:6.1} s  {line}"));
    }

    /// Fails once the command was asked to stop. To be called at least every 100 ms or so.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.interrupted.load(Ordering::Relaxed) {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }

    /// Sleeps; an interruption ends the sleep.
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

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Progress({:?})", self.start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn an_interruption_ends_a_sleep() {
        let flag = Arc::new(AtomicBool::new(false));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&heard);
        let voice = move |line: &str| hear.lock().unwrap().push(line.to_owned());
        let progress = Progress::spoken_by(voice, Arc::clone(&flag));
        progress.say("hello");
        assert!(heard.lock().unwrap()[0].ends_with(" s  hello"));
        progress.sleep(Duration::from_millis(1)).unwrap();
        flag.store(true, Ordering::Relaxed);
        assert!(progress.sleep(Duration::from_secs(3600)).is_err());
        assert!(progress.check().is_err());
    }
}
