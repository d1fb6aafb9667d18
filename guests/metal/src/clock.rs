//! The time since the start, by the processor's time-stamp counter.

use core::arch::x86_64::_rdtsc;

/// Reads the counter as microseconds.
pub struct Clock {
    /// Microseconds a count, times 2^32.
    scale: u64,
    /// The count at the start: where ring 3 runs natively on an emulated ring 0, the counter is the host's.
    begun: u64,
}

impl Clock {
    /// A counter of this rate.
    pub fn new(tsc_khz: u64) -> Self {
        Self {
            scale: (1000 << 32) / tsc_khz.max(1),
            begun: count(),
        }
    }

    /// Microseconds.
    pub fn now_us(&self) -> u64 {
        let count = count().saturating_sub(self.begun);
        ((u128::from(count) * u128::from(self.scale)) >> 32) as u64
    }

    /// The same for the network stack.
    pub fn instant(&self) -> smoltcp::time::Instant {
        smoltcp::time::Instant::from_micros(self.now_us() as i64)
    }
}

/// The counter.
pub fn count() -> u64 {
    // SAFETY: every processor of this architecture has the counter, and ring 3 may read it (CR4.TSD is clear).
    unsafe { _rdtsc() }
}
