//! A client that has received a reply never sees the state behind that reply lost.
//!
//! Every output names the [history](crate::history) that explains it. When it is released,
//! every other member of the committed in-sync set must have acknowledged a state that contains
//! this history, since any of them may lead next; and whoever serves later must contain it.

use super::{Check, Violation};
use crate::history::{Histories, History};
use plover_types::{ReplicaId, ReplicaSet, View};
use std::collections::BTreeMap;

/// What clients have been shown.
#[derive(Debug, Default)]
pub struct ExternalConsistency {
    /// The history of the newest output that was released, and who released it.
    shown: Option<(History, ReplicaId)>,
    /// What each replica has acknowledged that it holds.
    acknowledged: BTreeMap<ReplicaId, History>,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "external_consistency",
        section: "PLOVER §3.2 and §4.6",
        message,
    }
}

impl ExternalConsistency {
    /// A secondary acknowledges a syncvm at whose cut the leader's guest stood here.
    pub fn acknowledged(&mut self, who: ReplicaId, at: History) {
        self.acknowledged.insert(who, at);
    }

    /// An output that `at` explains goes out.
    pub fn released(
        &mut self,
        who: ReplicaId,
        view: View,
        in_sync: ReplicaSet,
        at: History,
        all: &Histories,
    ) -> Check {
        for member in in_sync.iter().filter(|member| *member != who) {
            let held = self.acknowledged.get(&member);
            if !held.is_some_and(|held| all.contains(*held, at)) {
                return Err(violation(format!(
                    "{who} (view {view}) releases an output whose state {member}, a member of \
                     the in-sync set {in_sync}, does not hold"
                )));
            }
        }
        match self.shown {
            Some((shown, _)) if all.contains(shown, at) => Ok(()),
            Some((shown, by)) if !all.contains(at, shown) => Err(violation(format!(
                "{who} (view {view}) releases an output of a history that does not contain what \
                 {by} has shown to clients"
            ))),
            _ => {
                self.shown = Some((at, who));
                Ok(())
            }
        }
    }

    /// A replica starts to face clients with a guest that stands here.
    pub fn serves(&self, who: ReplicaId, view: View, at: History, all: &Histories) -> Check {
        match self.shown {
            Some((shown, by)) if !all.contains(at, shown) => Err(violation(format!(
                "{who} serves in view {view} with a state that does not explain what {by} has \
                 shown to clients"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether clients have been shown anything.
    pub fn has_shown(&self) -> bool {
        self.shown.is_some()
    }
}
