//! A client that has received a reply never sees the state behind that reply lost.
//!
//! Every output names the [history](crate::history) that explains it. When it is released,
//! every other member of the committed in-sync set must have acknowledged a state that contains
//! this history, because any of them may lead next. Every later leader's history must contain it.
//!
//! Where outputs are released on match, a member may explain an output in another way: its guest
//! has itself sent the same words at the same place of the connection, and has acknowledged at least
//! as much to the client (COLO §3.1). Every later leader's guest must then have done so, too, or
//! contain the history.

use super::{Check, Violation};
use crate::history::{Histories, History};
use crate::spoken::Spoken;
use plover_types::{ReplicaId, View};
use std::collections::BTreeMap;

/// The outputs that clients have received, and the histories that explain them.
#[derive(Debug, Default)]
pub struct ExternalConsistency {
    /// A history that every member of the in-sync set has held, and that every leader must contain.
    anchor: Option<(History, ReplicaId)>,
    /// The outputs released beyond it, each with the history that explains it.
    shown: Vec<(History, ReplicaId, Spoken)>,
    /// A history that explains all outputs; every history that contains it does, too.
    explains_all: Option<History>,
    /// The history that each replica has acknowledged.
    acknowledged: BTreeMap<ReplicaId, History>,
}

/// A replica sends outputs to clients.
#[derive(Debug)]
pub struct Release {
    /// The replica.
    pub who: ReplicaId,
    /// Its view.
    pub view: View,
    /// Its guest's history now, if it still has a guest.
    pub stands: Option<History>,
    /// The other members of the committed in-sync set, and their guests' histories.
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
    /// A secondary acknowledges a syncvm at whose cut the leader's guest was at `at`.
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
        let held_by_all = self.held_by_members(release, at, spoken, all)?;
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

    /// An output goes out that is late: another replica leads already. Like a frame that was long on its way, it must
    /// say nothing that the others do not know.
    pub fn released_late(
        &self,
        release: &Release,
        at: History,
        spoken: &Spoken,
        all: &Histories,
    ) -> Check {
        self.held_by_members(release, at, spoken, all).map(drop)
    }

    /// Whether all other members have acknowledged a state that explains this output, and not only sent it
    /// themselves.
    fn held_by_members(
        &self,
        release: &Release,
        at: History,
        spoken: &Spoken,
        all: &Histories,
    ) -> Result<bool, Violation> {
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
        Ok(held_by_all)
    }

    /// Whether a guest at `stands` explains all outputs that clients have received.
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

    /// A replica starts to face clients with a guest at `at`.
    pub fn serves(&self, who: ReplicaId, view: View, at: History, all: &Histories) -> Check {
        self.explained(who, view, at, all)
    }

    /// Whether disks of the moment `at` explain all outputs that clients have received: their history
    /// contains the output's; or, with `on_match`, their guest had itself sent the same by then.
    pub fn is_explained_by(&self, at: History, on_match: bool, all: &Histories) -> bool {
        let explains = |(shown, _, spoken): &(History, ReplicaId, Spoken)| {
            all.contains(at, *shown) || (on_match && all.has_sent(at, spoken))
        };
        self.anchor.is_none_or(|(shown, _)| all.contains(at, shown))
            && self.shown.iter().all(explains)
    }

    /// Whether clients have received any output.
    pub fn has_shown(&self) -> bool {
        self.explains_all.is_some()
    }
}
