//! The print of a core's state, which tells it from other states: its `Debug` form, with relative
//! times.
//!
//! Two states that differ only in how late it is are the same state. So every moment is printed
//! relative to the process's own clock, in heartbeats; a moment longer ago than the timeout is
//! just long ago. Generators of chance are left out: what they gave is in the state already.
//!
//! Two states that differ only by a fraction of a heartbeat may have the same print. So the checker
//! may skip a state and miss a bug. It never visits a state that cannot be reached, so each bug that
//! it reports is real.

use plover_types::Micros;
use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hasher};

/// The print of `what` for a process whose clock shows `clock`.
pub fn print(what: &impl Debug, clock: Micros, heartbeat: Micros, timeout: Micros) -> u64 {
    let mut printer = Printer {
        hasher: DefaultHasher::new(),
        clock: clock.0,
        heartbeat: heartbeat.0,
        long_ago: (timeout.0 / heartbeat.0) as i64,
        word: Word::Other,
    };
    write!(printer, "{what:?}").expect("a printer takes everything");
    printer.hasher.finish()
}

/// The last word of the derived `Debug` form, which writes a name, a parenthesis and a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Other,
    Moment,
    MomentOpen,
    Chance,
    ChanceOpen,
}

struct Printer {
    hasher: DefaultHasher,
    clock: u64,
    heartbeat: u64,
    long_ago: i64,
    word: Word,
}

impl Printer {
    fn moment(&mut self, digits: &str) {
        let Ok(moment) = digits.parse::<u64>() else {
            return self.hasher.write(digits.as_bytes());
        };
        if moment == Micros::NEVER.0 {
            return self.hasher.write_i64(i64::MAX);
        }
        let beats = (moment as i64 - self.clock as i64).div_euclid(self.heartbeat as i64);
        self.hasher.write_i64(beats.max(-self.long_ago));
    }
}

impl Write for Printer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.word = match (self.word, text) {
            (Word::MomentOpen, digits) => {
                self.moment(digits);
                Word::Other
            }
            (Word::ChanceOpen, _) => Word::Other,
            (Word::Moment, "(") => Word::MomentOpen,
            (Word::Chance, "(") => Word::ChanceOpen,
            (_, text) => {
                self.hasher.write(text.as_bytes());
                match text {
                    "Micros" => Word::Moment,
                    "SplitMix64" => Word::Chance,
                    _ => Word::Other,
                }
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::SplitMix64;

    #[test]
    fn a_print_knows_relative_times_and_no_chance() {
        let beat = Micros(20);
        let print = |what: &(Micros, SplitMix64, u64), clock| {
            super::print(what, Micros(clock), beat, Micros(100))
        };
        let one = (Micros(1040), SplitMix64::new(1), 7);
        let later = (Micros(5040), SplitMix64::new(2), 7);
        assert_eq!(print(&one, 1000), print(&later, 5000));
        assert_ne!(
            print(&one, 1000),
            print(&one, 1030),
            "a beat makes a difference"
        );
        assert_eq!(print(&one, 2000), print(&one, 3000), "both are long ago");
        assert_ne!(print(&one, 1000), print(&(one.0, one.1.clone(), 8), 1000));
    }
}
