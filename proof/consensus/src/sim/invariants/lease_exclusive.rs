//! No two replicas hold a valid lease at the same moment: a leader releases outputs because its
//! lease says that no other replica was elected.
//!
//! Every host uses its own clock, and clocks run fast or slow by up to four hundredths.

use super::{Check, demand};

/// These hosts' leases are valid now.
pub fn holders(hosts: &[usize]) -> Check {
    demand(
        hosts.len() <= 1,
        "lease_exclusive",
        "PLOVER §3.3; APUS §4.3",
        || format!("hosts {hosts:?} hold valid leases at once"),
    )
}
