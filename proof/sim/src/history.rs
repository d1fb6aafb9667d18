//! The history of a guest, as seen from outside of it.
//!
//! A guest's state is a function of all it has done since it booted: its *history*. Two guests whose
//! races end differently leave their common history, and each has its own from there on. So
//! histories form a tree. A guest's state *explains* an output if the node at which the output was
//! sent is this guest's node or one of its ancestors.
//!
//! ```text
//!  boot ── 1 ── 2 ── 3 ── 4 ── 5          the leader; it sent an output at 3
//!                \── 3' ── 4'             the secondary, between two syncvms
//! ```
//!
//! If the leader dies now, the secondary's state at 4' does not explain the output of 3: had
//! it been released, a client would have seen a state that is lost.

use crate::rng::mix;
use crate::spoken::Spoken;
use std::collections::HashMap;

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History(u32);

/// What happened in one step of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The hypervisor was switched on.
    Boot,
    /// The guest consumed the input frame with this number.
    Input(u64),
    /// The guest read the line with this number on its console.
    Typed(u64),
    /// The guest's machine was reset, and it boots again.
    Reset,
    /// Anything else, such as a timer tick.
    Other,
}

#[derive(Debug)]
struct Node {
    parent: History,
    /// The node at which this guest booted.
    boot: History,
    depth: u32,
    step: Step,
}

/// The tree. Guests name their place by a 64-bit hash, which they keep in their memory.
#[derive(Debug, Default)]
pub struct Histories {
    nodes: Vec<Node>,
    // Never iterated, so that the run does not depend on its order.
    by_hash: HashMap<u64, History>,
    /// The words that guests have sent at each place of each connection, and the node at which
    /// each was sent.
    words: HashMap<(u8, u8, u32), Vec<(History, u32)>>,
    /// How many of each client's frames guests have reported as consumed, and the node of each report.
    heard: HashMap<u8, Vec<(History, u32)>>,
}

impl Histories {
    /// A guest booted; `hash` names the moment.
    pub fn boot(&mut self, hash: u64) {
        let id = History(self.nodes.len() as u32);
        self.nodes.push(Node {
            parent: id,
            boot: id,
            depth: 0,
            step: Step::Boot,
        });
        self.by_hash.insert(hash, id);
    }

    /// A guest at `from` makes a step. `noise` stands for everything that no input determines: the
    /// moment of an interrupt, the outcome of a race. Equal steps from equal places lead to one place.
    pub fn step(&mut self, from: u64, step: Step, noise: u64) -> u64 {
        let what = match step {
            Step::Boot => 0,
            Step::Input(number) => mix(1, number),
            Step::Other => 2,
            Step::Typed(number) => mix(3, number),
            Step::Reset => 4,
        };
        let hash = mix(mix(from, what), noise);
        if !self.by_hash.contains_key(&hash) {
            let parent = self.by_hash[&from];
            let id = History(self.nodes.len() as u32);
            let depth = self.nodes[parent.0 as usize].depth + 1;
            let boot = self.nodes[parent.0 as usize].boot;
            self.nodes.push(Node {
                parent,
                boot,
                depth,
                step,
            });
            self.by_hash.insert(hash, id);
        }
        hash
    }

    /// The place with this name, if any guest was ever there.
    pub fn find(&self, hash: u64) -> Option<History> {
        self.by_hash.get(&hash).copied()
    }

    /// Whether a guest at `later` has lived through `earlier`.
    pub fn contains(&self, later: History, earlier: History) -> bool {
        let depth = self.nodes[earlier.0 as usize].depth;
        let mut at = later;
        while self.nodes[at.0 as usize].depth > depth {
            at = self.nodes[at.0 as usize].parent;
        }
        at == earlier
    }

    /// Whether the guests with these names come from the same boot.
    pub fn are_of_one_boot(&self, one: u64, other: u64) -> bool {
        let boot = |hash| self.find(hash).map(|at| self.nodes[at.0 as usize].boot);
        boot(one).is_some() && boot(one) == boot(other)
    }

    /// A guest at `spoken.history` sends this.
    pub fn speak(&mut self, spoken: &Spoken) {
        // A torn guest has no history. `guest_is_whole` reports it.
        let Some(&at) = self.by_hash.get(&spoken.history) else {
            return;
        };
        for (place, word) in spoken.placed() {
            let said = self
                .words
                .entry((spoken.client, spoken.connection, place))
                .or_default();
            said.push((at, word));
        }
        let heard = self.heard.entry(spoken.client).or_default();
        heard.push((at, spoken.heard));
    }

    /// Whether a guest at `at` has itself sent the content of `spoken`: the same words at the same
    /// places, and a report of at least as many consumed frames of the client.
    pub fn has_sent(&self, at: History, spoken: &Spoken) -> bool {
        let lived = |(then, _): &&(History, u32)| self.contains(at, *then);
        let words = spoken.placed().all(|(place, word)| {
            let said = self.words.get(&(spoken.client, spoken.connection, place));
            let said = said.into_iter().flatten().filter(|(_, w)| *w == word);
            said.rev().any(|one| lived(&one))
        });
        let heard = self.heard.get(&spoken.client);
        let mut heard = heard.into_iter().flatten().rev();
        words && heard.any(|one| one.1 >= spoken.heard && lived(&one))
    }

    /// The steps from a place back to the boot, latest first.
    pub fn back(&self, from: History) -> impl Iterator<Item = (History, Step)> + '_ {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            let at = next?;
            let node = &self.nodes[at.0 as usize];
            next = (node.parent != at).then_some(node.parent);
            Some((at, node.step))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn races_part_and_equal_steps_meet() {
        let mut all = Histories::default();
        all.boot(1);
        let a = all.step(1, Step::Input(5), 0);
        assert_eq!(a, all.step(1, Step::Input(5), 0));
        let b = all.step(a, Step::Input(6), 0);
        let c = all.step(a, Step::Input(6), 99);
        let at = |hash| all.find(hash).unwrap();
        assert!(all.contains(at(b), at(a)) && all.contains(at(c), at(a)));
        assert!(!all.contains(at(b), at(c)) && !all.contains(at(c), at(b)));
        assert!(!all.contains(at(a), at(b)));
        assert_eq!(all.back(at(c)).count(), 3);
    }
}
