//! A member that lives leaves only when the one that takes its place has had a whole copy of the guest.

use super::{Check, Violation};
use plover_types::ReplicaId;

/// A leader has removed `old`, which lives and which `new` is to replace.
pub fn check(old: ReplicaId, new: ReplicaId, has_copy: bool) -> Check {
    if has_copy {
        return Ok(());
    }
    Err(Violation {
        invariant: "replaced_when_copied",
        section: "docs/decisions/0047",
        message: format!("{old} has left, and {new} has no whole copy of the guest"),
    })
}
