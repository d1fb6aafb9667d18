//! Where nothing is wrong, a member of the in-sync set learns at once that an entry is committed, and not
//! with the next heartbeat: its guest would lag behind, and so would every answer that waits for it.
//!
//! It is checked only where disks and the network are fast and no fault has struck for a while.

use super::{Check, Violation};
use plover_types::{Index, Micros, ReplicaId, View};
use std::collections::BTreeMap;

/// A good deal shorter than a heartbeat (25 ms), and longer than anything else takes there.
const TOLD_WITHIN: Micros = Micros(12_000);

/// When the leader of a view has committed its entries.
#[derive(Debug, Default)]
pub struct CommitsAreTold {
    view: View,
    commits: BTreeMap<Index, Micros>,
    /// Since when each member of the in-sync set has been told of commits.
    followed: BTreeMap<ReplicaId, Micros>,
}

impl CommitsAreTold {
    /// The leader of `view` has committed up to `commit`.
    pub fn committed(&mut self, view: View, commit: Index, now: Micros) {
        if view != self.view {
            *self = Self {
                view,
                ..Self::default()
            };
        }
        if commit > Index(0) {
            self.commits.entry(commit).or_insert(now);
        }
    }

    /// `who` is not in the in-sync set: what it learns now, nobody waits for.
    pub fn left(&mut self, who: ReplicaId) {
        self.followed.remove(&who);
    }

    /// A member of the in-sync set has learnt that `commit` is committed. `calm_since` is the time since when
    /// nothing was wrong.
    pub fn learnt(
        &mut self,
        who: ReplicaId,
        (view, commit): (View, Index),
        now: Micros,
        calm_since: Micros,
    ) -> Check {
        if view != self.view {
            return Ok(());
        }
        let since = *self.followed.entry(who).or_insert(now);
        let later = self.commits.split_off(&commit.next());
        let oldest = std::mem::replace(&mut self.commits, later)
            .into_iter()
            .next();
        let since = since.max(calm_since);
        let late = oldest.filter(|(_, at)| *at >= since && now.since(*at) > TOLD_WITHIN);
        match late {
            None => Ok(()),
            Some((index, at)) => Err(Violation {
                invariant: "commits_are_told",
                section: "docs/log.md",
                message: format!(
                    "{who} learns of entry {index} {} after its commit",
                    now.since(at)
                ),
            }),
        }
    }
}
