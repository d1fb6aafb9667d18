//! Whoever is elected holds every entry that anybody has delivered.

use super::logs_agree::CommittedLog;
use super::{Check, Violation};
use plover_replica::Replica;
use plover_types::{Index, ReplicaId};

/// A replica has just won an election.
pub fn elected(who: ReplicaId, replica: &Replica, log: &CommittedLog) -> Check {
    let consensus = replica.consensus_core();
    let status = consensus.status();
    let lost = |message: String| {
        let section = "APUS §4.3, PLOVER §4.6";
        Err(Violation {
            invariant: "committed_not_lost",
            section,
            message,
        })
    };
    if status.last.index < log.last() {
        let first = log.first_to_deliver(status.last.index.next());
        return lost(format!(
            "{who} leads view {} with a log that ends at {}; {} was delivered (first by {first:?})",
            status.view,
            status.last,
            log.last()
        ));
    }
    for index in status.base.0 + 1..=log.last().0 {
        let Some(entry) = consensus.entry(Index(index)) else {
            return lost(format!(
                "{who} leads view {} without index {index}",
                status.view
            ));
        };
        if !log.agrees(entry) {
            let first = log.first_to_deliver(Index(index));
            return lost(format!(
                "{who} leads view {} with {} at index {index}, where {first:?} delivered another",
                status.view, entry.viewstamp
            ));
        }
    }
    Ok(())
}
