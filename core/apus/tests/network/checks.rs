//! The promises of the consensus core, checked after every step.

use apus::{Entry, EntryKind};
use plover_types::{Index, View, Viewstamp};
use std::collections::BTreeMap;

/// What has been promised so far.
#[derive(Default)]
pub struct Checks {
    /// Who led which view.
    leaders: BTreeMap<View, (usize, u64)>,
    /// The committed log of each generation of the guest.
    generations: BTreeMap<View, Vec<Entry>>,
    pub deliveries: u64,
    pub elections: u64,
}

impl Checks {
    /// A view has one leader, and no process leads it twice.
    pub fn leads(&mut self, node: usize, incarnation: u64, view: View, last: Viewstamp) {
        let before = self.leaders.insert(view, (node, incarnation));
        assert_eq!(before, None, "view {view} is led twice, now by {node}");
        assert_eq!(view.leader().map(|id| usize::from(id.0)), Some(node));
        assert_eq!(last.view, view, "a leader begins with an entry of its own");
        self.elections += 1;
        // Nothing committed is lost: what the new leader appended comes after all of it.
        let committed = self.generation_of(view).len() as u64;
        assert!(
            last.index.0 > committed,
            "{view} begins at {last}, {committed} are committed"
        );
    }

    pub fn generation_begins(&mut self, view: View) {
        self.generations.insert(view, Vec::new());
    }

    /// Entries are delivered in one order, everywhere the same, without gaps.
    pub fn delivered(&mut self, node: usize, cursor: Index, entry: &Entry) {
        self.deliveries += 1;
        let Viewstamp { index, view } = entry.viewstamp;
        assert_eq!(
            index,
            cursor.next(),
            "{node} delivers {} after {cursor}",
            entry.viewstamp
        );
        let generation = self.generation_of(view);
        let place = (index.0 - 1) as usize;
        match generation.get(place) {
            Some(chosen) => assert_eq!(chosen, entry, "{node} delivers something else"),
            None => {
                assert_eq!(
                    place,
                    generation.len(),
                    "{node} delivers {index} before its predecessors"
                );
                generation.push(entry.clone());
            }
        }
    }

    /// No two replicas may believe that nobody else was elected.
    pub fn leases(&self, holders: &[usize]) {
        assert!(holders.len() <= 1, "{holders:?} hold valid leases at once");
    }

    /// A group that has run is not taken for one that never did.
    pub fn group_empty(&self, fresh: bool) {
        let ran = self
            .generations
            .values()
            .any(|generation| !generation.is_empty());
        assert!(
            !(fresh && ran),
            "the guest would boot again without the operator's word"
        );
    }

    /// Everything that the application proposed and that was committed in the newest generation.
    pub fn payloads(&self) -> Vec<&[u8]> {
        let newest = self.generations.values().next_back();
        let app = newest
            .into_iter()
            .flatten()
            .filter(|entry| entry.kind == EntryKind::App);
        app.map(|entry| entry.payload.as_slice()).collect()
    }

    pub fn generations(&self) -> usize {
        self.generations.len()
    }

    fn generation_of(&mut self, view: View) -> &mut Vec<Entry> {
        let generation = self.generations.range_mut(..=view).next_back();
        generation
            .map(|(_, entries)| entries)
            .expect("no entries before the first generation")
    }
}
