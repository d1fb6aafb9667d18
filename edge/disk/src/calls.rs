//! The calls to a file that have not returned.

use crate::health::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A disk that has not answered for as long is said to hang.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(1);

/// The same for a call that writes out all that was written before.
const FLUSH_HANGS_AFTER: Duration = Duration::from_secs(5);

/// When each of them began, and how long it may take.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Vec<(Instant, Duration)>>);

/// A call; it has returned when this is dropped.
pub(crate) struct Call<'a> {
    calls: &'a Calls,
    of: (Instant, Duration),
}

impl Calls {
    /// A call begins.
    pub fn begin(&self) -> Call<'_> {
        self.begin_within(HANGS_AFTER)
    }

    /// A call begins that writes out all that was written before.
    pub fn begin_flush(&self) -> Call<'_> {
        self.begin_within(FLUSH_HANGS_AFTER)
    }

    fn begin_within(&self, limit: Duration) -> Call<'_> {
        let (calls, of) = (self, (Instant::now(), limit));
        lock(&self.0).push(of);
        Call { calls, of }
    }

    /// For how long a call has not returned that hangs.
    pub fn hang(&self) -> Option<Duration> {
        let calls = lock(&self.0);
        let waits = calls.iter().map(|(begun, limit)| (begun.elapsed(), limit));
        let hang = waits.filter(|(waits, limit)| waits >= *limit);
        hang.map(|(waits, _)| waits).max()
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls.0);
        if let Some(at) = calls.iter().position(|of| *of == self.of) {
            calls.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_has_not_returned_in_its_time_hangs() {
        let calls = Calls::default();
        let (first, second) = (
            calls.begin_within(Duration::from_secs(3600)),
            calls.begin_within(Duration::ZERO),
        );
        assert!(calls.hang().is_some());
        drop(second);
        assert_eq!(calls.hang(), None);
        let third = calls.begin_within(Duration::ZERO);
        drop(first);
        assert!(calls.hang().is_some());
        drop(third);
        assert_eq!(calls.hang(), None);
    }
}
