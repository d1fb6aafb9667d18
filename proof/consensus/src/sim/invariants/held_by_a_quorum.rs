//! What is delivered lies on the stable storage of a majority (disk mode).
//!
//! The point of `durability = "disk"` is that nothing committed hangs on processes. So at the
//! first delivery of an entry the disks are looked at, of dead hosts too. A disk that has lost
//! something by damage is given the benefit of the doubt: it may have held the entry.

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
