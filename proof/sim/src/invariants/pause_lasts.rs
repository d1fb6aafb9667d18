//! A guest that an operator has paused stands still until the operator lets it go on, whichever replica leads.
//!
//! The order is an input like any other: a failover may lose it while only the leader's guest stands. So it counts
//! from the moment at which both guests stand after two syncs. The second of them has begun after the order.

use super::{Check, Violation};
use plover_types::ReplicaId;

/// Syncs after the order from which on it counts.
const SYNCS: u32 = 2;

/// The operator's last order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseLasts {
    /// Nothing, or to go on.
    #[default]
    Ended,
    /// To stand still; so many syncs have ended since with both guests standing.
    Ordered(u32),
    /// To stand still, and it counts.
    Holds,
}

impl PauseLasts {
    /// The operator orders a pause.
    pub fn ordered(&mut self) {
        if *self == Self::Ended {
            *self = Self::Ordered(0);
        }
    }

    /// The operator lets the guest go on, or it is another guest.
    pub fn ends(&mut self) {
        *self = Self::Ended;
    }

    /// A sync has ended, and both guests stand.
    pub fn both_stand(&mut self) {
        *self = match *self {
            Self::Ordered(syncs) if syncs + 1 < SYNCS => Self::Ordered(syncs + 1),
            Self::Ordered(_) => Self::Holds,
            other => other,
        };
    }

    /// Whether the pause counts.
    pub fn holds(self) -> bool {
        self == Self::Holds
    }

    /// A replica leads and serves, and its guest stands or runs.
    pub fn leads(self, who: ReplicaId, stands: bool) -> Check {
        if stands || !self.holds() {
            return Ok(());
        }
        Err(Violation {
            invariant: "pause_lasts",
            section: "docs/decisions/0044",
            message: format!("the guest of {who} runs, and the operator has paused it"),
        })
    }
}
