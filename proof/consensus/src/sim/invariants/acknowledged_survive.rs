//! A proposal that was acknowledged to a client stays committed, once, and in real-time order.
//!
//! The leader that took a proposal answers its client when it delivers the entry. From then on
//! the proposal is in the log at that place for ever, and only there; and every proposal that is
//! made after the answer comes after it in the log. Together with equal logs this is
//! linearizability of the log, seen by clients.

use super::{Check, demand};
use apus::{Entry, EntryKind};
use plover_types::Index;
use std::collections::BTreeMap;

const NAME: &str = "acknowledged_survive";
const SECTION: &str = "APUS §3.1; Paxos made practical §2";

/// Proposals, named by numbers that are never used twice.
#[derive(Debug, Default)]
pub struct Acknowledged {
    next: u64,
    /// The highest index that had been acknowledged when a proposal was made.
    floors: BTreeMap<u64, Index>,
    /// Where each acknowledged one is.
    places: BTreeMap<u64, Index>,
    highest: Index,
}

impl Acknowledged {
    /// A new proposal.
    pub fn propose(&mut self) -> u64 {
        self.next += 1;
        self.floors.insert(self.next, self.highest);
        self.next
    }

    /// The proposal at the beginning of `payload`.
    pub fn name_of(payload: &[u8]) -> Option<u64> {
        let word = payload.get(..8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }

    /// An operator has let a new guest boot, and the clients of the last one know.
    pub fn generation_begins(&mut self) {
        self.places.clear();
        self.highest = Index(0);
        self.floors.values_mut().for_each(|floor| *floor = Index(0));
    }

    /// A leader answers the client of the proposal in `entry`.
    pub fn acknowledged(&mut self, entry: &Entry) -> Check {
        let Some(name) = Self::name_of(&entry.payload) else {
            return Ok(());
        };
        let index = entry.viewstamp.index;
        let before = self.places.insert(name, index);
        let once = before.is_none_or(|place| place == index);
        demand(once, NAME, SECTION, || {
            format!("proposal {name} is committed at {before:?} and at {index}")
        })?;
        self.highest = self.highest.max(index);
        let floor = self.floors.get(&name).copied().unwrap_or_default();
        demand(index > floor, NAME, SECTION, || {
            format!("proposal {name} at {index} was made after the answer for {floor}")
        })
    }

    /// In the end every acknowledged proposal is in the chosen log, at its place.
    pub fn survive(&self, chosen: &[Entry]) -> Check {
        for (name, place) in &self.places {
            let entry = chosen.get(place.0 as usize - 1);
            let found = entry
                .filter(|entry| entry.kind == EntryKind::App)
                .and_then(|entry| Self::name_of(&entry.payload));
            demand(found == Some(*name), NAME, SECTION, || {
                format!("proposal {name} was acknowledged at {place}, where {found:?} is")
            })?;
        }
        Ok(())
    }

    /// How many were acknowledged in the newest generation.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
