//! No replica receives a form that its release does not know, and the group's version never falls.

use super::{Check, Violation};
use plover_types::wire::Versions;
use plover_types::{ReplicaId, View};

fn violated(message: String) -> Check {
    Err(Violation {
        invariant: "forms_are_known",
        section: "docs/decisions/0050",
        message,
    })
}

/// A record that begins with the version `form` comes to `who`, or an entry to its log.
pub fn record(who: ReplicaId, speaks: Versions, form: u8) -> Check {
    match form > speaks.newest {
        true => violated(format!("{who} speaks {speaks}, and gets a form of {form}")),
        false => Ok(()),
    }
}

/// The newest version that was committed.
#[derive(Debug, Default)]
pub struct FormsAreKnown {
    generation: View,
    committed: u8,
    /// The view of the replica that first knew of it.
    view: View,
}

/// A replica's version, by its own word.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The generation of its log.
    pub generation: View,
    /// The highest view that it has promised.
    pub view: View,
    /// Whether it leads that view.
    pub leads: bool,
    /// The newest version that its log names.
    pub named: u8,
    /// The version that it takes for the group's.
    pub version: u8,
}

impl FormsAreKnown {
    /// A replica has had its turn. A leader's log has every version that was committed in an earlier view.
    pub fn after_turn(&mut self, who: ReplicaId, speaks: Versions, known: Known) -> Check {
        let Known {
            generation, named, ..
        } = known;
        if named > speaks.newest {
            return violated(format!("{who} speaks {speaks}, and its log names {named}"));
        }
        if generation > self.generation {
            // Logs in memory may have died with all hosts, and with them a version that no disk had yet.
            (self.generation, self.committed) = (generation, 0);
        }
        let is_newest = generation == self.generation;
        if is_newest && known.leads && known.view > self.view && named < self.committed {
            let committed = self.committed;
            return violated(format!(
                "{who} leads with version {named} after {committed}"
            ));
        }
        if is_newest && known.version > self.committed {
            (self.committed, self.view) = (known.version, known.view);
        }
        Ok(())
    }
}
