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
}

impl FormsAreKnown {
    /// A replica has had its turn. Its log names the version `named`, and it takes `version` for the group's. A leader's
    /// log has every version that was committed.
    pub fn after_turn(
        &mut self,
        who: ReplicaId,
        speaks: Versions,
        leads: bool,
        (generation, named, version): (View, u8, u8),
    ) -> Check {
        if named > speaks.newest {
            return violated(format!("{who} speaks {speaks}, and its log names {named}"));
        }
        if generation > self.generation {
            // Logs in memory may have died with all hosts, and with them a version that no disk had yet.
            (self.generation, self.committed) = (generation, 0);
        }
        let is_newest = generation == self.generation;
        if is_newest && leads && named < self.committed {
            let committed = self.committed;
            return violated(format!("{who} leads with version {named} after {committed}"));
        }
        if is_newest {
            self.committed = self.committed.max(version);
        }
        Ok(())
    }
}
