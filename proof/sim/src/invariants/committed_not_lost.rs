//! An elected replica holds every entry that was committed in an older view.
//!
//! A replica may be stopped during its election, and wake when the others are already in a later
//! view. It then wins by old votes, and need not hold the entries that the others have committed
//! since. It can commit nothing itself.

use super::logs_agree::CommittedLog;
use super::{Check, Violation};
use plover_replica::Replica;
use plover_types::{Index, ReplicaId};

/// A replica has just won an election.
pub fn elected(who: ReplicaId, replica: &Replica, log: &CommittedLog) -> Check {
    let consensus = replica.consensus_core();
    let status = consensus.status();
    for index in (status.base.0 + 1..=log.last().0).map(Index) {
        let Some(first) = log.first(index).filter(|first| first.view < status.view) else {
            continue;
        };
        let held = consensus.entry(index);
        if held.is_some_and(|entry| log.agrees(entry)) {
            continue;
        }
        let held = held.map_or("nothing".to_string(), |entry| entry.viewstamp.to_string());
        return Err(Violation {
            invariant: "committed_not_lost",
            section: "APUS §4.3, PLOVER §4.6",
            message: format!(
                "{who} leads view {} with {held} at index {index}, which {} has delivered in \
                 view {}",
                status.view, first.by, first.view
            ),
        });
    }
    Ok(())
}
