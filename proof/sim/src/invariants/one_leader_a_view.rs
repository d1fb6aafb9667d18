//! No view is led twice: not by two replicas, and not by two processes of one replica, of which the
//! second has forgotten what the first proposed.

use super::{Check, Violation};
use plover_types::{ReplicaId, View};
use std::collections::BTreeMap;

/// The leader of each view.
#[derive(Debug, Default)]
pub struct OneLeaderAView {
    elected: BTreeMap<View, ReplicaId>,
}

impl OneLeaderAView {
    /// A replica reports that it leads a view from now on.
    pub fn elected(&mut self, who: ReplicaId, view: View) -> Check {
        match self.elected.insert(view, who) {
            None => Ok(()),
            Some(before) => Err(Violation {
                invariant: "one_leader_a_view",
                section: "APUS §4.3; Paxos made practical §2",
                message: format!("{who} leads view {view}, which {before} has led before"),
            }),
        }
    }

    /// A replica has lost its disk. It may lead views again that it led and that no other replica has
    /// heard of (`known` is the highest that one has): they have left no trace.
    pub fn forgotten(&mut self, who: ReplicaId, known: View) {
        self.elected
            .retain(|view, leader| *leader != who || *view <= known);
    }
}
