//! How often the interesting things were reached. A simulator that never reached a moment has
//! proved nothing about it, so the tests ask for each name in [`REACHED`].

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// One more.
    pub fn hit(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Some more.
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.counts.entry(what).or_default() += count;
    }

    /// How often so far.
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Takes in another run's.
    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            self.add(what, *count);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            writeln!(f, "{count:>10}  {what}")?;
        }
        Ok(())
    }
}
