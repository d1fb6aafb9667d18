//! A client that has received a reply never sees the state behind that reply lost.
//!
//! Every output names the [history](crate::history) that explains it. When it is released,
//! every other member of the committed in-sync set must have acknowledged a state that contains
//! this history, since any of them may lead next; and whoever serves later must contain it.
//!
//! Where outputs are released on match, a member may explain an output in another way: its guest
//! has itself sent the same words at the same place of the stream, and has acknowledged at least
//! as much to the client (COLO §3.1). Whoever serves later must then have done so, or contain
//! the history.

use super::{Check, Violation};
use crate::history::{Histories, History};
use crate::spoken::Spoken;
use plover_types::{ReplicaId, View};
use std::collections::BTreeMap;

/// What clients have been shown.
#[derive(Debug, Default)]
pub struct ExternalConsistency {
    /// Whoever serves contains this: a state that every member of the in-sync set has held.
    anchor: Option<(History, ReplicaId)>,
    /// What was shown beyond it, with the history that explains it.
    shown: Vec<(History, ReplicaId, Spoken)>,
    /// A state that explains all that was shown: so does every one that contains it.
    explains_all: Option<History>,
    /// What each replica has acknowledged that it holds.
    acknowledged: BTreeMap<ReplicaId, History>,
}

/// A replica sends outputs to clients.
#[derive(Debug)]
pub struct Release {
    /// Who.
    pub who: ReplicaId,
    /// In which view.
    pub view: View,
    /// Where its guest stands now, if it still has one.
    pub stands: Option<History>,
    /// The other members of the committed in-sync set, and where their guests stand.
    pub members: Vec<(ReplicaId, Option<History>)>,
    /// Whether outputs may be released on match.
    pub on_match: bool,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "external_consistency",
        section: "PLOVER §3.2 and §4.6; COLO §3.1",
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
        release: &Release,
        at: History,
        spoken: &Spoken,
        all: &Histories,
    ) -> Check {
        let Release { who, view, .. } = *release;
        let mut held_by_all = true;
        for (member, stands) in &release.members {
            let held = self.acknowledged.get(member).copied();
            if held.is_some_and(|held| all.contains(held, at)) {
                continue;
            }
            held_by_all = false;
            // A member without a guest cannot lead with another state.
            let has_sent = |stands| all.has_sent(stands, spoken);
            if !release.on_match || !stands.is_none_or(has_sent) {
                return Err(violation(format!(
                    "{who} (view {view}) releases an output whose state {member}, a member of \
                     the in-sync set, does not hold"
                )));
            }
        }
        let stands = release.stands.unwrap_or(at);
        self.explained(who, view, stands, all)?;
        self.shown.push((at, who, spoken.clone()));
        self.explains_all = Some(stands);
        let old = self.anchor.map(|(old, _)| old);
        if held_by_all && old.is_none_or(|old| all.contains(at, old)) {
            self.anchor = Some((at, who));
            self.shown.retain(|(then, ..)| !all.contains(at, *then));
        }
        Ok(())
    }

    /// Whether a guest that stands here explains all that clients have been shown.
    fn explained(&self, who: ReplicaId, view: View, stands: History, all: &Histories) -> Check {
        if self
            .explains_all
            .is_some_and(|known| all.contains(stands, known))
        {
            return Ok(());
        }
        if let Some((_, by)) = self.anchor.filter(|(old, _)| !all.contains(stands, *old)) {
            return Err(violation(format!(
                "{who} serves in view {view} with a state that does not explain what {by} has \
                 shown to clients"
            )));
        }
        let explains = |(at, _, spoken): &&(History, ReplicaId, Spoken)| {
            all.contains(stands, *at) || all.has_sent(stands, spoken)
        };
        match self.shown.iter().find(|one| !explains(one)) {
            None => Ok(()),
            Some((_, by, spoken)) => Err(violation(format!(
                "{who} serves in view {view} with a state that has not sent what {by} has shown \
                 to client {}: {spoken:?}",
                spoken.client
            ))),
        }
    }

    /// A replica starts to face clients with a guest that stands here.
    pub fn serves(&self, who: ReplicaId, view: View, at: History, all: &Histories) -> Check {
        self.explained(who, view, at, all)
    }

    /// Whether disks of the moment `at` explain all that clients have been shown: they contain it; or,
    /// `on_match`, their guest had itself sent the same by then.
    pub fn is_explained_by(&self, at: History, on_match: bool, all: &Histories) -> bool {
        let explains = |(shown, _, spoken): &(History, ReplicaId, Spoken)| {
            all.contains(at, *shown) || (on_match && all.has_sent(at, spoken))
        };
        self.anchor.is_none_or(|(shown, _)| all.contains(at, shown))
            && self.shown.iter().all(explains)
    }

    /// Whether clients have been shown anything.
    pub fn has_shown(&self) -> bool {
        self.explains_all.is_some()
    }
}
