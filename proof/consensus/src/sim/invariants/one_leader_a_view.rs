//! No view is led twice: not by two replicas, and not by one replica in two lives of its
//! process, the second of which has forgotten what the first had proposed.

use super::{Check, demand};
use plover_types::View;
use std::collections::BTreeMap;

/// Who has led which view.
#[derive(Debug, Default)]
pub struct OneLeaderAView {
    elected: BTreeMap<View, usize>,
}

impl OneLeaderAView {
    /// The process on `host` says that it leads `view` from now on.
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

    /// `host` has lost its disk. Views that it led and that nobody has heard of (`known` is the
    /// highest that anybody has) have left no trace: it may come upon them again.
    pub fn forgotten(&mut self, host: usize, known: View) {
        self.elected
            .retain(|view, leader| *leader != host || *view <= known);
    }
}
