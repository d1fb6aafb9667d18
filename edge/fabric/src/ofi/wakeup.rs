//! Two descriptors of our own that end a sleep, besides the kernel's and the provider's.
//!
//! * A [`Nudge`]: there is something to do now that no other descriptor shows.
//! * A [`PollTimer`]: there may be something to do soon. Some providers cannot wake a sleeper at all
//!   (`shm`), and none wakes one because it has room for a write again.
//!
//! And [`look`] spins before either.

use crate::poll::{Interest, Poll};
use crate::spin::Spinner;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Longest spin, as elsewhere. A look at some providers is a handful of system calls, so the
/// number of looks bounds nothing.
const LOOK_MAX: Duration = Duration::from_micros(30);

/// Looks until something is there or the time is up, if spinning is wanted and pays.
pub fn look(spinner: &mut Spinner, mut is_there: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    spinner.spin(|| start.elapsed() < LOOK_MAX && is_there())
}

/// A descriptor that is readable while it is set.
#[derive(Debug)]
pub struct Nudge {
    event: OwnedFd,
    set: bool,
}

impl Nudge {
    pub fn new(poll: &mut Poll) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        poll.watch(&event, Interest::Read)?;
        Ok(Self { event, set: false })
    }

    /// Makes it readable, or not. No system call if it is so already.
    pub fn set(&mut self, on: bool) {
        if on == self.set {
            return;
        }
        let done = if on {
            rustix::io::write(&self.event, &1u64.to_ne_bytes())
        } else {
            rustix::io::read(&self.event, &mut [0; 8])
        };
        // The counter goes from 0 to 1 and back, so neither can block.
        assert_eq!(done, Ok(8), "an eventfd failed");
        self.set = on;
    }
}

/// Shortest sleep; about as long as a wake-up takes.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// Longest sleep: a thousand looks a second cost a few percent of a core with all providers seen,
/// and a heartbeat timeout is a hundred sleeps.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// A sleep lasts this part of the time for which nothing has happened: an arrival is noticed late by
/// at most that part of the wait for it.
const SLEEP_PART: u32 = 4;

/// A timer that makes `wait_fd` readable, ever later while nothing happens.
#[derive(Debug)]
pub struct PollTimer {
    timer: OwnedFd,
    armed: bool,
    /// When it fires, or has fired.
    until: Option<Instant>,
    /// When something last happened.
    fresh_at: Instant,
}

impl PollTimer {
    pub fn new(poll: &mut Poll) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        poll.watch(&timer, Interest::Read)?;
        Ok(Self {
            timer,
            armed: false,
            until: None,
            fresh_at: Instant::now(),
        })
    }

    /// Something happened: the next sleeps are short.
    pub fn freshen(&mut self, now: Instant) {
        self.fresh_at = now;
    }

    /// Whether something happened not long ago, so that more may come soon.
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.fresh_at) < SLEEP_MAX
    }

    /// Starts the timer, unless it runs or has fired and does so no later. So a caller that calls often
    /// does not put it off.
    pub fn start(&mut self, now: Instant) {
        let quiet = now.saturating_duration_since(self.fresh_at);
        let span = (quiet / SLEEP_PART).clamp(SLEEP_MIN, SLEEP_MAX);
        if self.until.is_none_or(|until| now + span < until) {
            self.settime(span);
            self.armed = true;
            self.until = Some(now + span);
        }
    }

    /// The caller looks now: the next start is a new one.
    pub fn wake(&mut self) {
        self.until = None;
    }

    /// There is nothing to wake for.
    pub fn cancel(&mut self) {
        if self.armed {
            self.settime(Duration::ZERO);
            self.armed = false;
        }
        self.until = None;
    }

    fn settime(&self, after: Duration) {
        let value = Timespec {
            tv_sec: after.as_secs() as i64,
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        // It also makes the descriptor unreadable again.
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        assert!(set.is_ok(), "a timer of a valid time failed: {set:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags};
    use std::os::fd::BorrowedFd;

    fn is_readable(poll: &Poll, within: Duration) -> bool {
        // SAFETY: `poll` is borrowed and keeps its descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(poll.fd()) };
        let timeout = Timespec {
            tv_sec: within.as_secs() as i64,
            tv_nsec: i64::from(within.subsec_nanos()),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn a_nudge_stays_until_it_is_taken_back() {
        let mut poll = Poll::new().unwrap();
        let mut nudge = Nudge::new(&mut poll).unwrap();
        for _ in 0..2 {
            assert!(!is_readable(&poll, Duration::ZERO));
            nudge.set(true);
            nudge.set(true);
            assert!(is_readable(&poll, Duration::ZERO));
            nudge.set(false);
            nudge.set(false);
        }
    }

    #[test]
    fn the_timer_is_not_put_off() {
        let mut poll = Poll::new().unwrap();
        let mut timer = PollTimer::new(&mut poll).unwrap();
        let ends = Instant::now() + Duration::from_secs(10);
        let mut is_over = false;
        while !is_over && Instant::now() < ends {
            timer.start(Instant::now());
            is_over = is_readable(&poll, Duration::ZERO);
        }
        assert!(is_over, "each start puts it off");
        let over = timer.until;
        timer.start(Instant::now());
        assert!(is_readable(&poll, Duration::ZERO), "it has still fired");
        timer.wake();
        timer.start(Instant::now());
        assert!(timer.until > over, "a new one");
    }

    #[test]
    fn the_timer_fires_and_a_cancelled_one_does_not() {
        let mut poll = Poll::new().unwrap();
        let mut timer = PollTimer::new(&mut poll).unwrap();
        timer.start(Instant::now());
        assert!(is_readable(&poll, Duration::from_secs(10)));
        timer.cancel();
        assert!(!is_readable(&poll, Duration::from_millis(5)));
    }
}
