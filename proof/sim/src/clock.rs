//! Every process has its own clock: its own zero, and a crystal that runs a little fast or slow.
//!
//! The lease of `apus` allows for an eighth of drift; the drift here stays far below. The clock of a
//! stopped process goes on, so the process sees it jump (`strike`). That of a host that is suspended stands still, and
//! so does that of a host that is itself a virtual machine and is paused: the process sees nothing.

use plover_types::Micros;

/// A clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Micros,
    zero: Micros,
    drift_ppm: i64,
}

impl Clock {
    /// A clock that showed `zero` when the simulated world's time was `started`, and gains
    /// `drift_ppm` microseconds a second.
    pub fn new(started: Micros, zero: Micros, drift_ppm: i64) -> Self {
        Self {
            started,
            zero,
            drift_ppm,
        }
    }

    /// The time that it shows at the world's time `now`.
    pub fn local(&self, now: Micros) -> Micros {
        let span = now.since(self.started).0;
        let drift = span as i64 * self.drift_ppm / 1_000_000;
        self.zero + Micros(span.saturating_add_signed(drift))
    }

    /// It has stood still for this long.
    pub fn stood(&mut self, span: Micros) {
        self.started = self.started + span;
    }

    /// The world's time at which it shows at least `local`.
    pub fn global(&self, local: Micros) -> Micros {
        if local == Micros::NEVER {
            return Micros::NEVER;
        }
        let span = u128::from(local.since(self.zero).0);
        let rate = 1_000_000_u64.saturating_add_signed(self.drift_ppm);
        let span = (span * 1_000_000).div_ceil(u128::from(rate));
        // The extra microsecond makes up for the rounding in `local`.
        self.started + Micros(u64::try_from(span).unwrap_or(u64::MAX)) + Micros(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_waited_for_too_briefly() {
        for drift_ppm in [-9000, -1, 0, 7, 9000] {
            let clock = Clock::new(Micros(1_000_000), Micros(77), drift_ppm);
            for span in [0, 1, 999, 100_000, 60_000_000] {
                let due = Micros(77 + span);
                let woken = clock.local(clock.global(due));
                let late = woken.since(due).0;
                assert!(woken >= due, "drift {drift_ppm}, span {span}");
                assert!(late <= 3, "drift {drift_ppm}, span {span}: {late} late");
            }
        }
    }
}
