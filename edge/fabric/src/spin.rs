//! Spinning for a bounded time before sleeping.
//!
//! A wake-up costs a sleeper some microseconds, and tens of them if its core has to leave an
//! idle state first. A replica that looks at memory instead sees a record after a tenth of a
//! microsecond, but holds a core meanwhile. As soon as two spinners share one core, each burns the
//! time that the other one needs: milliseconds instead of microseconds. So the default is never to
//! spin; a replica that does spin does it for a bounded time, yields in between, and stops for a while
//! when it does not pay.

use std::time::{Duration, Instant};

/// Whether a fabric that can look at memory does so for a while before its caller sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Sleep at once: no time is burnt. The default.
    #[default]
    Never,
    /// Look for up to 30 µs, then sleep; seldom while looking has not paid lately.
    Adaptive,
    /// Never sleep: for a replica that has a core of its own.
    Always,
}

impl std::str::FromStr for Spin {
    type Err = UnknownSpin;

    fn from_str(text: &str) -> Result<Self, UnknownSpin> {
        match text {
            "never" => Ok(Self::Never),
            "adaptive" => Ok(Self::Adaptive),
            "always" => Ok(Self::Always),
            _ => Err(UnknownSpin(text.to_owned())),
        }
    }
}

/// Choose one of the three that the message names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spin = \"{0}\" is unknown: choose \"never\", \"adaptive\" or \"always\"")]
pub struct UnknownSpin(pub String);

/// How long one spin lasts at most. A round trip between replicas that are awake takes a few
/// microseconds, one wake-up up to 50: to look for longer than that costs more than sleeping.
const SPIN_MAX: Duration = Duration::from_micros(30);
/// Looks between two yields. A yield lets a peer that shares the core write its record.
const LOOKS_PER_YIELD: u32 = 64;
/// After so many spins in a row that saw nothing, spinning does not pay.
const MISSES_MAX: u32 = 4;
/// While it does not pay, one sleep in so many is preceded by a spin.
const RETRY_EVERY: u32 = 32;

/// Carries out one [`Spin`].
#[derive(Debug)]
pub struct Spinner {
    spin: Spin,
    /// Spins that saw nothing since one paid.
    misses: u32,
    /// Sleeps without a spin since the last one.
    skipped: u32,
}

impl Spinner {
    pub fn new(spin: Spin) -> Self {
        Self {
            spin,
            misses: 0,
            skipped: 0,
        }
    }

    /// Whether the caller may sleep at all.
    pub fn may_sleep(&self) -> bool {
        self.spin != Spin::Always
    }

    /// Looks until `ready` or the bound; says whether it was ready.
    pub fn spin(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        if !self.is_worth_it() {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_YIELD {
                if ready() {
                    self.misses = 0;
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= SPIN_MAX {
                self.misses = self.misses.saturating_add(1);
                return false;
            }
            std::thread::yield_now();
        }
    }

    fn is_worth_it(&mut self) -> bool {
        match self.spin {
            Spin::Never => false,
            Spin::Always => true,
            Spin::Adaptive if self.misses < MISSES_MAX => true,
            Spin::Adaptive => {
                self.skipped = (self.skipped + 1) % RETRY_EVERY;
                self.skipped == 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_does_not_look() {
        let mut spinner = Spinner::new(Spin::Never);
        assert!(!spinner.spin(|| panic!("looked")));
        assert!(spinner.may_sleep());
    }

    #[test]
    fn adaptive_stops_and_tries_again() {
        let mut spinner = Spinner::new(Spin::Adaptive);
        let mut spins = 0;
        for _ in 0..MISSES_MAX + 3 * RETRY_EVERY {
            let mut looked = false;
            assert!(!spinner.spin(|| {
                looked = true;
                false
            }));
            spins += u32::from(looked);
        }
        assert_eq!(spins, MISSES_MAX + 3);
        // It pays once: from then on it spins each time.
        while !spinner.spin(|| true) {}
        assert!(spinner.spin(|| true) && spinner.spin(|| true));
    }

    #[test]
    fn names_are_read() {
        assert_eq!("adaptive".parse(), Ok(Spin::Adaptive));
        let error = "sometimes".parse::<Spin>().unwrap_err().to_string();
        assert!(
            error.contains("sometimes") && error.contains("never"),
            "{error}"
        );
    }
}
