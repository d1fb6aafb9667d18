//! Two replicas never send as the guest: no slot's outputs are released by two of them, and once a
//! leader faces clients, no other replica releases anything in its view or an older one.
//!
//! Where outputs are released on match, two leaders may release outputs of one slot: the new leader's
//! guest has sent the same, so it releases the outputs that the old leader could not. `streams_go_on`
//! then checks the bytes that clients see.

use super::{Check, Violation};
use plover_types::{ReplicaId, SyncNo, View};
use std::collections::BTreeMap;

/// The senders so far.
#[derive(Debug, Default)]
pub struct OneSenderASlot {
    slots: BTreeMap<SyncNo, ReplicaId>,
    /// The newest view in which a replica faced clients, and that replica.
    newest: Option<(View, ReplicaId)>,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "one_sender_a_slot",
        section: "PLOVER §4.6",
        message,
    }
}

impl OneSenderASlot {
    /// A replica starts to face clients.
    pub fn serves(&mut self, who: ReplicaId, view: View) {
        if self.newest.is_none_or(|(newest, _)| newest < view) {
            self.newest = Some((view, who));
        }
    }

    /// Whether a replica that sends in `view` comes late: another one serves in a newer view.
    pub fn is_late(&self, view: View) -> bool {
        self.newest.is_some_and(|(newest, _)| newest > view)
    }

    /// A replica sends outputs of this slot to clients.
    pub fn released(&mut self, who: ReplicaId, view: View, slot: SyncNo, on_match: bool) -> Check {
        let is_other =
            |&(newest, by): &(View, ReplicaId)| newest > view || (newest == view && by != who);
        if let Some((newest, by)) = self.newest.filter(is_other) {
            return Err(violation(format!(
                "{who} releases outputs in view {view} while {by} serves in view {newest}"
            )));
        }
        match *self.slots.entry(slot).or_insert(who) {
            before if before == who || on_match => Ok(()),
            before => Err(violation(format!(
                "{who} (view {view}) releases outputs of slot {slot}, as {before} has done"
            ))),
        }
    }

    /// A disk was lost, and with it the only promise of views above `known`.
    pub fn forgotten(&mut self, known: View) {
        self.newest = self.newest.filter(|(view, _)| *view <= known);
    }

    /// The slots of a new generation are counted anew.
    pub fn new_generation(&mut self) {
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_sender_is_found_in_the_same_view_and_in_an_older_one() {
        let (first, second) = (ReplicaId(0), ReplicaId(1));
        let (old, view) = (View::new(1, second), View::new(2, first));
        let mut senders = OneSenderASlot::default();
        senders.serves(first, view);
        assert_eq!(senders.released(first, view, SyncNo(1), true), Ok(()));
        assert!(senders.released(second, view, SyncNo(2), true).is_err());
        assert!(senders.released(second, old, SyncNo(3), true).is_err());
        let next = View::new(3, second);
        assert_eq!(senders.released(second, next, SyncNo(4), true), Ok(()));
    }
}
