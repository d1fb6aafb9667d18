//! How often the interesting things were reached. A simulator that never reached a moment has
//! proved nothing about it, so the tests ask for each name in [`REACHED`].

use std::collections::BTreeMap;
use std::fmt;

/// Moments without which the seeds would prove little.
pub const REACHED: [&str; 36] = [
    "disk: a suffix was not synced",
    "disk: a torn tail",
    "election: a canvass found that a leader lives",
    "election: lost to a higher view",
    "election: won and stood down after a merge",
    "election: won by merging a better log",
    "election: won while another recovers",
    "election: won with an uncommitted tail",
    "end: a healed follower left the leader alone",
    "end: refuses, a majority has forgotten its log",
    "fault: crash",
    "fault: cut off",
    "fault: cut one way",
    "fault: damaged log",
    "fault: lost disk",
    "fault: out of an ambush",
    "fault: partition",
    "fault: pause",
    "fault: slow disk",
    "fault: slow link",
    "follower: jumped to a base",
    "follower: jumped to a new life",
    "group: found empty",
    "guest: an in-sync set was truncated",
    "guest: copied to another",
    "leader: deposed by a newer view's log",
    "leader: its log was full",
    "leader: stepped down",
    "log: a suffix was truncated",
    "members: a change was truncated",
    "members: a fault while a change is pending",
    "members: a leader is removed",
    "members: a replacement was completed",
    "members: a view began with a change pending",
    "network: a ring was full",
    "recovery: during a view change",
];

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
