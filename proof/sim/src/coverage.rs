//! Coverage: how often each interesting moment was reached. The simulator proves nothing about a
//! moment that it never reaches.

use plover_syncvm::Phase;
use std::collections::BTreeMap;
use std::fmt;

/// A syncvm failed on its leader in this phase.
pub fn failed_in(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle | Phase::Wait => "sync: failed on the leader before its pause",
        Phase::Pause => "sync: failed on the leader in Pause",
        Phase::Scan => "sync: failed on the leader in Scan",
        Phase::Copy => "sync: failed on the leader in Copy",
        Phase::Hash => "sync: failed on the leader in Hash",
        Phase::Exchange => "sync: failed on the leader in Exchange",
        Phase::Compare => "sync: failed on the leader in Compare",
        Phase::Transfer => "sync: failed on the leader in Transfer",
        Phase::Apply => "sync: failed on the leader in Apply",
        Phase::Resume | Phase::Release => "sync: failed on the leader in Release",
    }
}

/// A leader's process was killed in this phase of a syncvm.
pub fn killed_in(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle | Phase::Wait => "process: killed in a sync, before its pause",
        Phase::Pause => "process: killed in a sync, in Pause",
        Phase::Scan => "process: killed in a sync, in Scan",
        Phase::Copy => "process: killed in a sync, in Copy",
        Phase::Hash => "process: killed in a sync, in Hash",
        Phase::Exchange => "process: killed in a sync, in Exchange",
        Phase::Compare => "process: killed in a sync, in Compare",
        Phase::Transfer => "process: killed in a sync, in Transfer",
        Phase::Apply => "process: killed in a sync, in Apply",
        Phase::Resume | Phase::Release => "process: killed in a sync, in Release",
    }
}

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Counts one.
    pub fn hit(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Adds `count`.
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.counts.entry(what).or_default() += count;
    }

    /// How often this was reached so far.
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Adds another run's counts.
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
