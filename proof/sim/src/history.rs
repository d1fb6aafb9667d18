//! What a guest has lived through, as seen from outside of it.
//!
//! A guest's state is a function of all it has done since it booted: its *history*. Two guests
//! that race (design §2, "divergent") leave a common history and have each their own from there
//! on. So histories form a tree, and "the state of this guest explains that output" means: the
//! node at which the output was sent is this guest's node or one of its ancestors.
//!
//! ```text
//!  boot ── 1 ── 2 ── 3 ── 4 ── 5          the leader; it sent an output at 3
//!                \── 3' ── 4'             the secondary, between two syncvms
//! ```
//!
//! If the leader dies now, the secondary's state at 4' does not explain the output of 3: had
//! it been released, a client would have seen a state that is lost.

use crate::rng::mix;
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
    /// A timer tick: nothing that is counted.
    Other,
}

#[derive(Debug)]
struct Node {
    parent: History,
    depth: u32,
    step: Step,
}

/// The tree. Guests name their place by a 64-bit hash that lives in their memory.
#[derive(Debug, Default)]
pub struct Histories {
    nodes: Vec<Node>,
    // Only looked up, never walked: its order decides nothing.
    by_hash: HashMap<u64, History>,
}

impl Histories {
    /// A guest booted; `hash` names the moment.
    pub fn boot(&mut self, hash: u64) {
        let id = History(self.nodes.len() as u32);
        self.nodes.push(Node {
            parent: id,
            depth: 0,
            step: Step::Boot,
        });
        self.by_hash.insert(hash, id);
    }

    /// A guest at `from` makes a step. `noise` is what no input determines: the moment of an
    /// interrupt, the outcome of a race. Equal steps from equal places lead to one place.
    pub fn step(&mut self, from: u64, step: Step, noise: u64) -> u64 {
        let what = match step {
            Step::Boot => 0,
            Step::Input(number) => mix(1, number),
            Step::Other => 2,
            Step::Typed(number) => mix(3, number),
        };
        let hash = mix(mix(from, what), noise);
        if !self.by_hash.contains_key(&hash) {
            let parent = self.by_hash[&from];
            let id = History(self.nodes.len() as u32);
            let depth = self.nodes[parent.0 as usize].depth + 1;
            self.nodes.push(Node {
                parent,
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
