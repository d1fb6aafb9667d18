//! Events of the disks for the loop, and failures that keep the disks from being used.
//!
//! ```text
//!            failed                       wait over: opened anew
//!   well ───────────▶ failed, waits ────────────────────────────▶ tried
//!    ▲                     ▲              failed again               │
//!    │                     └──────────────────────────────────────────┤
//!    └──────────────────────── the copy is whole ─────────────────────┘
//! ```
//!
//! A replica whose disk failed still votes. The leader offers it a copy of the guest again and again. The
//! replica accepts only now and then, more rarely each time; otherwise the group would do nothing but copy
//! to a full disk.

use crate::error::DiskError;
use crate::worker::DiskEvent;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first wait after a failure. Each further failure doubles it, up to the last. Long enough for the
/// leader's other work, short enough for an operator who has just made room.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_LAST: Duration = Duration::from_secs(64);

/// After this time without a failure the waits start anew.
const WELL_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct State {
    /// The failure; `None` while all is well.
    why: Option<String>,
    /// Failures since the disks were last well for long.
    failures: u32,
    /// When the last of them was, or when it was mended.
    changed: Option<Instant>,
}

impl State {
    fn fail(&mut self, why: &str, now: Instant) {
        let well = self.why.is_none();
        let long = |changed: Instant| now.saturating_duration_since(changed) > WELL_AFTER;
        if well && self.changed.is_none_or(long) {
            self.failures = 0;
        }
        // Failures that follow from the first one do not count.
        if well || self.wait_left(now).is_zero() {
            self.failures += 1;
            self.changed = Some(now);
            self.why = Some(why.to_owned());
        }
    }

    fn mend(&mut self, now: Instant) {
        if self.why.take().is_some() {
            self.changed = Some(now);
        }
    }

    fn wait_left(&self, now: Instant) -> Duration {
        let (Some(_), Some(changed)) = (&self.why, self.changed) else {
            return Duration::ZERO;
        };
        let doubled = self.failures.saturating_sub(1).min(16);
        let wait = (WAIT_FIRST * 2u32.pow(doubled)).min(WAIT_LAST);
        (changed + wait).saturating_duration_since(now)
    }
}

/// Shared by the disks, their threads and the loop; outlives the opened files.
#[derive(Debug)]
pub(crate) struct Health {
    state: Mutex<State>,
    events: Mutex<Vec<DiskEvent>>,
    /// Readable while there are events.
    wake: OwnedFd,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has left nothing half-changed behind these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Health {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            events: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn tell(&self, event: DiskEvent) {
        lock(&self.events).push(event);
        // Fails only if it is readable beyond counting.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn take_events(&self, events: &mut Vec<DiskEvent>) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        events.append(&mut lock(&self.events));
    }

    /// Something failed.
    pub(crate) fn fail(&self, why: &str) {
        lock(&self.state).fail(why, Instant::now());
    }

    /// The last failure was at this time; long ago if there is none.
    #[cfg(test)]
    pub(crate) fn failed_at(&self, time: Option<Instant>) {
        lock(&self.state).changed = time;
    }

    /// All is well again.
    pub(crate) fn mend(&self) {
        lock(&self.state).mend(Instant::now());
    }

    /// The failure, and when the disks are tried again.
    pub(crate) fn failure(&self) -> Option<String> {
        let state = lock(&self.state);
        let why = state.why.as_ref()?;
        Some(match state.wait_left(Instant::now()).as_secs() {
            0 => why.clone(),
            seconds => format!("{why} (tried again in {seconds} s)"),
        })
    }

    /// Whether something is wrong.
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.state).why.is_some()
    }

    /// Refuses while it is too early for another try.
    pub(crate) fn may_try(&self) -> Result<(), DiskError> {
        let state = lock(&self.state);
        match (&state.why, state.wait_left(Instant::now())) {
            (Some(why), left) if !left.is_zero() => Err(DiskError::Waiting(why.clone())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_until_all_was_well_for_long() {
        let (mut state, mut now) = (State::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..9 {
            state.fail("full", now);
            // The next request fails as well, of course.
            state.fail("full again", now + Duration::from_millis(1));
            let left = state.wait_left(now);
            waits.push(left.as_secs());
            now += left;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(state.why.as_deref(), Some("full"));
        // A copy that is whole for a moment and fails again does not reset the waits.
        state.mend(now);
        assert!(state.why.is_none() && state.wait_left(now).is_zero());
        state.fail("full", now + Duration::from_secs(5));
        assert_eq!(state.failures, 10);
        state.mend(now + Duration::from_secs(100));
        now += WELL_AFTER + Duration::from_secs(101);
        state.fail("full", now);
        assert_eq!(state.wait_left(now), WAIT_FIRST);
    }
}
