//! No replica refuses another one: a correct replica never says what contradicts another's log, and never keeps more of it
//! than a leader may. In the field such a peer costs its link; here every peer is correct, so it is a bug.

use super::{Check, demand};
use apus::Contradiction;
use plover_types::ReplicaId;

/// A replica wants the link to a peer dropped.
pub fn refused(host: usize, peer: ReplicaId, why: Contradiction) -> Check {
    demand(
        false,
        "nobody_is_refused",
        "core/apus/src/contradiction.rs",
        || format!("r{host} refuses {peer}: {why}"),
    )
}
