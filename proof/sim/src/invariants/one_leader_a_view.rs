//! No view is led twice: not by two replicas, and not by one replica in two lives of its
//! process, the second of which has forgotten what the first had proposed.

use super::{Check, Violation};
use plover_types::{ReplicaId, View};
use std::collections::BTreeMap;

/// Who has led which view.
#[derive(Debug, Default)]
pub struct OneLeaderAView {
    elected: BTreeMap<View, ReplicaId>,
}

impl OneLeaderAView {
    /// A replica says that it leads a view from now on.
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

    /// A replica has lost its disk. Views that it led and that nobody has heard of (`known` is
    /// the highest that anybody has) have left no trace: it may come upon them again.
    pub fn forgotten(&mut self, who: ReplicaId, known: View) {
        self.elected
            .retain(|view, leader| *leader != who || *view <= known);
    }
}
