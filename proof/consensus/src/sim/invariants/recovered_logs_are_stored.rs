//! Disk mode: a log that was forgotten is on stable storage before the next start trusts it.
//!
//! A replica that lost its log may have acknowledged any entry that was chosen before it started again. It votes as
//! one that holds them all once storage says that it has recovered, so storage holds them by then.

use super::{Check, demand};
use plover_types::Viewstamp;

/// Storage of `host` has a new state. It is `trusted` to hold the first of these, and ends with the second.
pub fn stored(host: usize, trusted: Option<(Viewstamp, Viewstamp)>) -> Check {
    let (owes, last) = trusted.unwrap_or_default();
    demand(
        last >= owes,
        "recovered_logs_are_stored",
        "Viewstamped Replication Revisited §4.3; APUS §4.2",
        || format!("the log of r{host} counts as recovered, ends at {last} and has to hold {owes}"),
    )
}
