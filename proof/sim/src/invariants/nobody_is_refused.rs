//! No replica refuses another one: a correct replica never says what contradicts another's log, and never sends more than may
//! be under way. In the field such a peer costs its link; here every peer is correct, so it is a bug.

use super::{Check, Violation};
use plover_types::ReplicaId;

/// A replica has cut the link to a peer.
pub fn refused(who: ReplicaId, peer: ReplicaId, why: &str) -> Check {
    Err(Violation {
        invariant: "nobody_is_refused",
        section: "core/apus/src/contradiction.rs",
        message: format!("{who} cuts the link to {peer}: it has sent {why}"),
    })
}
