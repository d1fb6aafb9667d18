//! What is delivered at an index is the same everywhere and for ever.
//!
//! The first replica that delivers an index fixes what was chosen there. Every later delivery, on
//! any replica, has to equal it. Each generation has a log of its own: when the operator lets an
//! empty group boot again, the log of the last guest no longer matters.

use super::{Check, demand};
use apus::Entry;
use plover_types::{View, Viewstamp};
use std::collections::BTreeMap;

/// What was chosen in one generation.
#[derive(Debug, Default)]
struct Generation {
    entries: Vec<Entry>,
    /// The view in which each was first delivered.
    views: Vec<View>,
}

/// The chosen log of each generation, by the view in which the generation began.
#[derive(Debug, Default)]
pub struct ChosenLog {
    generations: BTreeMap<View, Generation>,
    deliveries: u64,
}

impl ChosenLog {
    /// A guest was booted in `view`.
    pub fn generation_begins(&mut self, view: View) {
        self.generations.insert(view, Generation::default());
    }

    /// What was committed before `view`, in the generation that it belongs to. A candidate that was
    /// paused may begin its view when a later one has committed more already. No replica follows it
    /// then, and it need not hold what came after its view.
    pub fn before(&self, view: View) -> &[Entry] {
        let Some((_, generation)) = self.generations.range(..=view).next_back() else {
            return &[];
        };
        let count = generation
            .views
            .partition_point(|committed| *committed < view);
        &generation.entries[..count]
    }

    /// What was chosen in the newest generation.
    pub fn newest(&self) -> &[Entry] {
        self.generations
            .values()
            .next_back()
            .map_or(&[], |generation| &generation.entries)
    }

    /// How many generations began.
    pub fn generations(&self) -> usize {
        self.generations.len()
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
        let Some((_, generation)) = self.generations.range_mut(..=view).next_back() else {
            return Err(violation(format!(
                "r{host} delivers {} before any generation",
                entry.viewstamp
            )));
        };
        let place = index.0.wrapping_sub(1) as usize;
        match generation.entries.get(place) {
            Some(chosen) if chosen == entry => Ok(false),
            Some(chosen) => Err(violation(format!(
                "r{host} delivers {} where {} was chosen",
                entry.viewstamp, chosen.viewstamp
            ))),
            None if place == generation.entries.len() => {
                generation.entries.push(entry.clone());
                generation.views.push(now);
                Ok(true)
            }
            None => Err(violation(format!(
                "r{host} delivers {} though no replica delivered its predecessor",
                entry.viewstamp
            ))),
        }
    }

    /// A group that has run is not taken for one that never did.
    pub fn group_empty(&self, host: usize, fresh: bool) -> Check {
        let ran = self
            .generations
            .values()
            .any(|generation| !generation.entries.is_empty());
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
