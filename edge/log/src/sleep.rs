//! How the loop sleeps: once, for everything that may end its sleep.
//!
//! The sleep ends for the fabric, for clients, for storage and for a [`Stopper`](crate::Stopper). All
//! but the fabric share one epoll descriptor, which the fabric takes into its own wait. So a sleep is
//! one system call that looks at one descriptor.

use crate::{Server, StateMachine};
use std::time::Duration;

impl<M: StateMachine> Server<M> {
    /// Sleeps until something happens or is due, at most for `patience`.
    pub(crate) fn sleep(&mut self, patience: Option<Duration>) {
        let span = self.may_sleep_for(patience);
        // Nothing to wait for, and no clients to look at: no system call is needed.
        if span.is_zero() && self.clients.address().is_none() && !self.embedded {
            return;
        }
        self.fabric.wait(Some(span));
        if self.fabric.is_readable(self.attached) {
            self.clients.progress();
        }
        self.clients.expire();
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
        let spans = [
            Some(due),
            self.fabric.timeout(),
            self.clients.patience(),
            patience,
        ];
        let span = spans.into_iter().flatten().min().unwrap_or(due);
        if self.tails_wait {
            return Duration::ZERO;
        }
        span
    }
}
