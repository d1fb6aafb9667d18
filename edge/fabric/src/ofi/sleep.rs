//! What makes `wait_fd` readable besides the kernel and the provider.
//!
//! * A [`Nudge`]: there is something to do now that no descriptor tells of.
//! * [`Naps`]: there may be something to do soon. Some providers cannot wake a sleeper at all
//!   (`shm`), and none wakes one because it has room for a write again.
//!
//! And [`look`]: spinning before either.

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
pub(super) fn look(spinner: &mut Spinner, mut is_there: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    spinner.spin(|| start.elapsed() < LOOK_MAX && is_there())
}

/// A descriptor that is readable as long as we say so.
#[derive(Debug)]
pub(super) struct Nudge {
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

/// Shortest nap; about what a wake-up costs.
const NAP_MIN: Duration = Duration::from_micros(50);
/// Longest nap: a thousand looks a second cost a few percent of a core with all providers seen,
/// and a heartbeat timeout is a hundred naps.
const NAP_MAX: Duration = Duration::from_millis(1);
/// A nap lasts this part of the time for which nothing has happened: what was waited for is
/// noticed late by at most that part of the wait.
const NAP_PART: u32 = 4;

/// A timer that makes `wait_fd` readable, ever later while nothing happens.
#[derive(Debug)]
pub(super) struct Naps {
    timer: OwnedFd,
    armed: bool,
    /// When the nap ends, or has ended.
    until: Option<Instant>,
    /// When something last happened.
    fresh_at: Instant,
}

impl Naps {
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

    /// Something happened: the next naps are short.
    pub fn freshen(&mut self, now: Instant) {
        self.fresh_at = now;
    }

    /// Whether something happened not long ago, so that more may come soon.
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.fresh_at) < NAP_MAX
    }

    /// Begins a nap, unless one is under way or over that ends no later. A caller that only sends, as often
    /// as it may, does not put off its end.
    pub fn nap(&mut self, now: Instant) {
        let quiet = now.saturating_duration_since(self.fresh_at);
        let span = (quiet / NAP_PART).clamp(NAP_MIN, NAP_MAX);
        if self.until.is_none_or(|until| now + span < until) {
            self.settime(span);
            self.armed = true;
            self.until = Some(now + span);
        }
    }

    /// What it would wake for is being looked at: the next nap is a new one.
    pub fn wake(&mut self) {
        self.until = None;
    }

    /// Nothing to wake for.
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
    fn a_nap_is_not_put_off() {
        let mut poll = Poll::new().unwrap();
        let mut naps = Naps::new(&mut poll).unwrap();
        let ends = Instant::now() + Duration::from_secs(10);
        let mut is_over = false;
        while !is_over && Instant::now() < ends {
            naps.nap(Instant::now());
            is_over = is_readable(&poll, Duration::ZERO);
        }
        assert!(is_over, "it is begun anew each time");
        let over = naps.until;
        naps.nap(Instant::now());
        assert!(is_readable(&poll, Duration::ZERO), "it is still over");
        naps.wake();
        naps.nap(Instant::now());
        assert!(naps.until > over, "a new one");
    }

    #[test]
    fn a_nap_ends_and_a_cancelled_one_does_not() {
        let mut poll = Poll::new().unwrap();
        let mut naps = Naps::new(&mut poll).unwrap();
        naps.nap(Instant::now());
        assert!(is_readable(&poll, Duration::from_secs(10)));
        naps.cancel();
        assert!(!is_readable(&poll, Duration::from_millis(5)));
    }
}
