//! A bound on the bytes that are read in a second.

use crate::health::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Readers wait here for their turn.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_s: u64,
    /// When the next bytes may be read.
    next: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.max(1),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so many bytes may be read.
    pub(crate) fn wait_for(&self, bytes: usize) {
        let mut next = lock(&self.next);
        let now = Instant::now();
        let at = (*next).max(now);
        *next = at + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        drop(next);
        std::thread::sleep(at - now);
    }
}
