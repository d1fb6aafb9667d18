//! What is delivered at an index is the same everywhere and for ever.
//!
//! The first replica to deliver an index fixes what was chosen there; every later delivery, by
//! whomever, must equal it. Each life of a guest has a log of its own: when the operator lets an
//! empty group boot again, what the last guest did binds nobody.

use super::{Check, demand};
use apus::Entry;
use plover_types::{View, Viewstamp};
use std::collections::BTreeMap;

/// What was chosen in one life.
#[derive(Debug, Default)]
struct Life {
    entries: Vec<Entry>,
    /// The view in which each was first delivered.
    views: Vec<View>,
}

/// The chosen log of each life, by the view in which the life began.
#[derive(Debug, Default)]
pub struct ChosenLog {
    lives: BTreeMap<View, Life>,
    deliveries: u64,
}

impl ChosenLog {
    /// A guest was booted in `view`.
    pub fn life_begins(&mut self, view: View) {
        self.lives.insert(view, Life::default());
    }

    /// What was committed before `view`, in the life that it belongs to. A candidate that was
    /// paused may take its view up when a later one has long committed more; it leads nobody then,
    /// and owes nothing to what came after it.
    pub fn before(&self, view: View) -> &[Entry] {
        let Some((_, life)) = self.lives.range(..=view).next_back() else {
            return &[];
        };
        let count = life.views.partition_point(|committed| *committed < view);
        &life.entries[..count]
    }

    /// What was chosen in the newest life.
    pub fn newest(&self) -> &[Entry] {
        self.lives
            .values()
            .next_back()
            .map_or(&[], |life| &life.entries)
    }

    /// How many lives began.
    pub fn lives(&self) -> usize {
        self.lives.len()
    }

    /// How many deliveries were compared.
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// `host` delivers `entry` in `now`; whether it is the first to deliver it.
    pub fn delivered(
        &mut self,
        host: usize,
        entry: &Entry,
        now: View,
    ) -> Result<bool, super::Violation> {
        self.deliveries += 1;
        let Viewstamp { index, view } = entry.viewstamp;
        let Some((_, life)) = self.lives.range_mut(..=view).next_back() else {
            return Err(violation(format!(
                "r{host} delivers {} before any life",
                entry.viewstamp
            )));
        };
        let place = index.0.wrapping_sub(1) as usize;
        match life.entries.get(place) {
            Some(chosen) if chosen == entry => Ok(false),
            Some(chosen) => Err(violation(format!(
                "r{host} delivers {} where {} was chosen",
                entry.viewstamp, chosen.viewstamp
            ))),
            None if place == life.entries.len() => {
                life.entries.push(entry.clone());
                life.views.push(now);
                Ok(true)
            }
            None => Err(violation(format!(
                "r{host} delivers {} though nobody delivered its predecessor",
                entry.viewstamp
            ))),
        }
    }

    /// A group that has run is not taken for one that never did.
    pub fn group_empty(&self, host: usize, fresh: bool) -> Check {
        let ran = self.lives.values().any(|life| !life.entries.is_empty());
        demand(!(fresh && ran), "logs_agree", SECTION, || {
            format!("r{host} takes a group that has run for one that never did")
        })
    }
}

const SECTION: &str = "APUS §4.1; Paxos made practical §2";

fn violation(message: String) -> super::Violation {
    super::Violation {
        invariant: "logs_agree",
        section: SECTION,
        message,
    }
}
