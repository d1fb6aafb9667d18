//! The fault injection points of a leader that releases on match: the moments at which it may die, as in
//! COLO's figure 4. Only tests and the simulator ask for them.
//!
//! ```text
//!   leader's guest sends k     secondary has sent k     k goes out            checkpoint
//!  ─────────────┼──────── A ────────────┼─────── B ─────────┼───── C ─────┼──────── D ────────
//! ```

use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_types::SyncNo;
use serde::{Deserialize, Serialize};

/// An area of figure 4 (COLO §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// The leader's guest has sent an output, and nothing like it is known of the secondary's.
    A,
    /// Both have sent it, and nothing of it has gone out.
    B,
    /// It is going out: clients have a part of it, and the secondary knows nothing of that.
    C,
    /// A checkpoint is under way: before its end mark, or after.
    D,
}

impl Replica {
    fn leader(&self) -> Option<&Leader> {
        match &self.phase {
            Phase::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    /// Whether an output of this leader's guest waits for the secondary's to send the same: area A.
    pub fn awaits_a_match(&self) -> bool {
        let idle = self.leader().is_some_and(|leader| leader.sync.is_none());
        idle && self.heard().is_some() && !self.cx.outputs.guard.is_empty()
    }

    /// Whether outputs of `slot` that go out now do so because both guests have sent them: area B
    /// before, area C amidst.
    pub fn is_match(&self, slot: SyncNo) -> bool {
        let secondary = self.leader().and_then(|leader| leader.secondary(&self.cx));
        slot > self.cx.group.sync_no && self.heard().is_some() && secondary.is_some()
    }

    /// The slot that is compared, and how many of the secondary's frames were reported to this leader.
    pub fn heard(&self) -> Option<(SyncNo, u64)> {
        self.leader()?.matching.heard()
    }

    /// The slot that is compared, and how many of its frames this secondary has reported.
    pub fn said(&self) -> Option<(SyncNo, u64)> {
        match &self.phase {
            Phase::Secondary(secondary) => Some(secondary.report.as_ref()?.reported()),
            _ => None,
        }
    }
}
