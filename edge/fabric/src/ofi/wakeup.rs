//! Looking again without being woken.
//!
//! Some providers cannot wake a sleeper at all (`efa`, libfabric's `shm`), and none wakes one because it
//! has room for a write again. So the fabric asks to be called again soon, and ever later while nothing
//! happens.

use crate::spin::Spinner;
use std::time::{Duration, Instant};

/// Longest spin, as elsewhere. A look at some providers is a handful of system calls, so the
/// number of looks bounds nothing.
const LOOK_MAX: Duration = Duration::from_micros(30);
/// Shortest sleep; about as long as a wake-up takes.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// Longest sleep: a thousand looks a second cost a few percent of a core with all providers seen,
/// and a heartbeat timeout is a hundred sleeps.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// A sleep lasts this part of the time for which nothing has happened: an arrival is noticed late by
/// at most that part of the wait for it.
const SLEEP_PART: u32 = 4;

/// Looks until something is there or the time is up, if spinning is wanted and pays.
pub fn look(spinner: &mut Spinner, mut is_there: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    spinner.spin(|| start.elapsed() < LOOK_MAX && is_there())
}

/// When to look again.
#[derive(Debug)]
pub struct Pace {
    look_at: Option<Instant>,
    /// When something last happened.
    fresh_at: Instant,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self {
            look_at: None,
            fresh_at: now,
        }
    }

    /// Something happened: the next sleeps are short.
    pub fn freshen(&mut self, now: Instant) {
        self.fresh_at = now;
    }

    /// Whether something happened not long ago, so that more may come soon.
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.fresh_at) < SLEEP_MAX
    }

    /// Asks for a look, unless one is due sooner. So a caller that calls often does not put it off.
    pub fn ask(&mut self, now: Instant) {
        let quiet = now.saturating_duration_since(self.fresh_at);
        let look_at = now + (quiet / SLEEP_PART).clamp(SLEEP_MIN, SLEEP_MAX);
        self.look_at = Some(self.look_at.map_or(look_at, |at| at.min(look_at)));
    }

    /// The caller looks now, or need not.
    pub fn clear(&mut self) {
        self.look_at = None;
    }

    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_while_nothing_happens_and_are_not_put_off() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut pace = Pace::new(start);
        for (now, look_at) in [(0, 50), (40, 50), (60, 50)] {
            pace.ask(at(now));
            assert_eq!(pace.look_at(), Some(at(look_at)));
        }
        for (now, look_at) in [(60, 110), (400, 500), (90_000, 91_000)] {
            pace.clear();
            pace.ask(at(now));
            assert_eq!(pace.look_at(), Some(at(look_at)));
        }
        pace.freshen(at(100_000));
        assert!(pace.is_fresh(at(100_900)) && !pace.is_fresh(at(101_000)));
    }
}
