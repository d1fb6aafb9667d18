//! Planned work costs no protection: while no fault has struck since the group was whole, a leader that learns of a
//! new in-sync set finds two replicas in it, whatever an operator does.

use super::{Check, Violation};
use plover_types::{ReplicaId, ReplicaSet};

/// The leader `who` learns of the in-sync set `set`, and no fault has struck.
pub fn check(who: ReplicaId, set: ReplicaSet) -> Check {
    if set.len() > 1 {
        return Ok(());
    }
    Err(Violation {
        invariant: "planned_work",
        section: "PROMISES.md, planned work",
        message: format!("{who} goes on alone, in sync {set}, and no fault has struck"),
    })
}
