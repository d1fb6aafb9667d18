//! No guest ever runs with memory of one moment and devices of another.

use super::{Check, Violation};
use crate::guest::FakeGuest;
use plover_types::ReplicaId;

/// A guest has made a step.
pub fn check(who: ReplicaId, guest: &FakeGuest) -> Check {
    if !guest.torn {
        return Ok(());
    }
    Err(Violation {
        invariant: "guest_is_whole",
        section: "PLOVER §4.4",
        message: format!("{who}'s guest runs with memory and devices of two different moments"),
    })
}
