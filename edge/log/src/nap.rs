//! How the loop sleeps: once, for everything that may end its sleep.
//!
//! What wakes it is the fabric, a proposer in another thread, the clients' door, and storage. A
//! fabric that can takes the others' descriptors into its own wait; then a nap is one system call
//! that looks at one descriptor. Otherwise all are polled.

use crate::{Server, ServerError, StateMachine};
use plover_fabric::{Attached, Fabric};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The descriptors that the fabric's own wait looks at, too.
#[derive(Debug)]
pub(crate) struct Wakers {
    proposers: Attached,
    pub door: Option<Attached>,
}

impl Wakers {
    /// `None` if the fabric waits for nothing but itself.
    pub(crate) fn attach(
        fabric: &mut dyn Fabric,
        proposers: BorrowedFd<'_>,
        storage: Option<BorrowedFd<'_>>,
    ) -> Option<Self> {
        let proposers = fabric.attach(proposers).ok()?;
        // What storage has done is looked at in every turn; it only has to end the sleep.
        storage
            .map(|storage| fabric.attach(storage))
            .transpose()
            .ok()?;
        let door = None;
        Some(Self { proposers, door })
    }
}

impl<M: StateMachine> Server<M> {
    /// Sleeps until something happens or is due, at most for `patience`.
    pub(crate) fn sleep(&mut self, patience: Option<Duration>) -> Result<(), ServerError> {
        let span = self.may_sleep_for(patience);
        // What is there is taken in without asking the kernel first. A door is looked at each time:
        // its clients wait for nothing else.
        if span.is_zero() && self.door.is_none() && self.wakers.is_some() {
            self.shared.woke();
            return Ok(());
        }
        let attached = self.wakers.as_ref().filter(|wakers| {
            // A door that the fabric does not know has to be polled.
            self.door.is_none() || wakers.door.is_some()
        });
        let (woken, knocked) = match attached {
            Some(Wakers { proposers, door }) => {
                let (proposers, door) = (*proposers, *door);
                self.fabric.wait(Some(span));
                let knocked = door.is_some_and(|door| self.fabric.is_readable(door));
                (self.fabric.is_readable(proposers), knocked)
            }
            None => self.poll(span)?,
        };
        self.shared.woke();
        if woken {
            self.shared.hush();
        }
        if let Some(door) = self.door.as_mut().filter(|_| knocked) {
            door.progress();
        }
        Ok(())
    }

    /// For how long nothing is due. Says to proposers and peers that this replica sleeps.
    fn may_sleep_for(&mut self, patience: Option<Duration>) -> Duration {
        let mut until = self.core.deadline();
        if let Some(incoming) = &self.incoming {
            until = until.min(incoming.ask_at);
        }
        let due = Duration::from_micros(until.since(self.now()).0);
        // A snapshot on its way goes on when its reader has made room.
        let awaited = self.core.awaited();
        self.fabric
            .wake_for(awaited.filter(|_| self.outgoing.is_empty()));
        let spans = [Some(due), self.fabric.timeout(), patience];
        let span = spans.into_iter().flatten().min().unwrap_or(due);
        let entries_wait = !self.shared.may_sleep() && self.taken.requests.is_empty();
        if entries_wait || self.tails_wait {
            return Duration::ZERO;
        }
        span
    }

    /// Whether proposers and clients have something to say, once anything ends the sleep.
    fn poll(&self, span: Duration) -> Result<(bool, bool), ServerError> {
        let timeout = Timespec {
            tv_sec: span.as_secs().min(3600) as i64,
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        // SAFETY: the fabric keeps its descriptor open for as long as it lives, and it is
        // borrowed here.
        let fabric = unsafe { BorrowedFd::borrow_raw(self.fabric.wait_fd()) };
        let door = self.door.as_ref().map(|door| &door.epoll);
        let mut fds = [
            PollFd::from_borrowed_fd(fabric, PollFlags::IN),
            PollFd::new(&self.shared.wake, PollFlags::IN),
            // A second look at the same descriptor stands for what is not there.
            PollFd::new(door.unwrap_or(&self.shared.wake), PollFlags::IN),
            PollFd::from_borrowed_fd(
                self.stable.wait_fd().unwrap_or(self.shared.wake.as_fd()),
                PollFlags::IN,
            ),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ServerError::system("wait for events")(error)),
        }
        Ok((!fds[1].revents().is_empty(), !fds[2].revents().is_empty()))
    }
}
