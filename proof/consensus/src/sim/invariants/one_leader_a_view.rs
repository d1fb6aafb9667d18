//! No view is led twice: not by two replicas, and not by two processes of one replica, of which
//! the second has forgotten what the first proposed.

use super::{Check, demand};
use plover_types::View;
use std::collections::BTreeMap;

/// Which replica has led which view.
#[derive(Debug, Default)]
pub struct OneLeaderAView {
    elected: BTreeMap<View, usize>,
}

impl OneLeaderAView {
    /// The process on `host` begins to lead `view`.
    pub fn elected(&mut self, host: usize, view: View) -> Check {
        let before = self.elected.insert(view, host);
        let own = view.leader().map(|id| usize::from(id.0)) == Some(host);
        demand(
            before.is_none() && own,
            "one_leader_a_view",
            "APUS §4.3; Paxos made practical §2",
            || format!("r{host} leads view {view}, led before by {before:?}"),
        )
    }

    /// `host` has lost its disk. It may lead views again that it led and that no other replica has
    /// heard of (`known` is the highest that one has): they have left no trace.
    pub fn forgotten(&mut self, host: usize, known: View) {
        self.elected
            .retain(|view, leader| *leader != host || *view <= known);
    }
}
