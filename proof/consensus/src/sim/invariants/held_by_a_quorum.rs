//! Disk mode: a delivered entry is on the stable storage of a majority.
//!
//! With `durability = "disk"` nothing committed depends on processes. So at the first delivery of
//! an entry the disks are checked, those of dead hosts too. A disk that was damaged counts as one
//! that holds the entry, for it may have held it.

use super::{Check, demand};
use plover_types::Viewstamp;

/// `holding` of the voters' disks hold the entry; `quorum` are needed.
pub fn chosen(viewstamp: Viewstamp, holding: usize, quorum: usize) -> Check {
    demand(
        holding >= quorum,
        "held_by_a_quorum",
        "APUS §4.2; Paxos made practical §2",
        || format!("{viewstamp} is delivered and lies on {holding} disks, not on {quorum}"),
    )
}
