//! A host that has died finds its guest's disks as they were at one moment. If it was in sync, that
//! moment explains everything that clients have seen, so that a restart of all hosts may go on from
//! these disks.

use super::external_consistency::ExternalConsistency;
use super::{Check, Violation};
use crate::history::Histories;
use plover_types::ReplicaId;

fn violation(message: String) -> Violation {
    Violation {
        invariant: "disks_survive",
        section: "PLOVER §3.2 and §4.4; docs/decisions/0012",
        message,
    }
}

/// A member of the in-sync set has died and left these blocks, each of which names the history of
/// the guest that wrote it last.
pub fn check(
    who: ReplicaId,
    blocks: &[u64],
    shown: &ExternalConsistency,
    on_match: bool,
    all: &Histories,
) -> Check {
    let Some((first, rest)) = blocks.split_first() else {
        return Ok(());
    };
    if rest.iter().any(|block| block != first) {
        return Err(violation(format!(
            "{who} died and left disks of several moments"
        )));
    }
    let at = all.find(*first);
    if at.is_some_and(|at| shown.is_explained_by(at, on_match, all)) {
        return Ok(());
    }
    Err(violation(format!(
        "{who} died and left disks that do not explain what clients have seen"
    )))
}
