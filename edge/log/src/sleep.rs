//! How the loop sleeps: once, for everything that may end its sleep.
//!
//! The sleep ends for the fabric, for clients, for storage and for a [`Stopper`](crate::Stopper). All
//! but the fabric share one epoll descriptor. A fabric that can takes it into its own wait; then a
//! sleep is one system call that looks at one descriptor. Otherwise both are polled.

use crate::{Server, ServerError, StateMachine};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::fd::BorrowedFd;
use std::time::Duration;

impl<M: StateMachine> Server<M> {
    /// Sleeps until something happens or is due, at most for `patience`.
    pub(crate) fn sleep(&mut self, patience: Option<Duration>) -> Result<(), ServerError> {
        let span = self.may_sleep_for(patience);
        // Nothing to wait for, and no clients to look at: no system call is needed.
        if span.is_zero() && self.clients.address().is_none() {
            return Ok(());
        }
        let is_ready = match self.attached {
            Some(attached) => {
                self.fabric.wait(Some(span));
                self.fabric.is_readable(attached)
            }
            None => self.poll(span)?,
        };
        if is_ready {
            self.clients.progress();
        }
        Ok(())
    }

    /// How long the loop may sleep. Also tells the fabric which peers' records end the sleep.
    fn may_sleep_for(&mut self, patience: Option<Duration>) -> Duration {
        let mut until = self.core.deadline();
        if let Some(incoming) = &self.incoming {
            until = until.min(incoming.ask_at);
        }
        let due = Duration::from_micros(until.since(self.now()).0);
        // A snapshot under way continues when its reader has made room.
        let awaited = self.core.awaited();
        self.fabric
            .wake_for(awaited.filter(|_| self.outgoing.is_empty()));
        let spans = [Some(due), self.fabric.timeout(), patience];
        let span = spans.into_iter().flatten().min().unwrap_or(due);
        if self.tails_wait {
            return Duration::ZERO;
        }
        span
    }

    /// Whether clients, storage or a stopper have ended the sleep.
    fn poll(&self, span: Duration) -> Result<bool, ServerError> {
        let timeout = Timespec {
            tv_sec: span.as_secs().min(3600) as i64,
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        // SAFETY: the fabric keeps its descriptor open for as long as it lives, and it is
        // borrowed here.
        let fabric = unsafe { BorrowedFd::borrow_raw(self.fabric.wait_fd()) };
        let mut fds = [
            PollFd::from_borrowed_fd(fabric, PollFlags::IN),
            PollFd::new(&self.clients.epoll, PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ServerError::system("wait for events")(error)),
        }
        Ok(!fds[1].revents().is_empty())
    }
}
