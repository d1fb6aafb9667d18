//! Once every fault has ended, the group serves again, protected. If no replica holds the guest's
//! state any more, none serves until the operator bootstraps the group.
//!
//! | what is left when the faults end | what must come of it |
//! |---|---|
//! | a leader that holds the guest; or a holder that may lead by the best log of a majority | it serves, is protected, answers a new request of each client |
//! | no holder | no replica serves; the group reports that it is empty; after a bootstrap it begins a new generation |
//! | a holder that may not lead: the others have gone on without it and forgotten how, or lost their disks | no replica serves; once the operator has restarted the holder, as above |

use super::{Check, Violation};
use apus::Phase;
use plover_replica::Replica;
use plover_types::{Micros, ReplicaId, ReplicaSet, View};

/// How long the group may take to heal after the end of all faults. The longest single wait is that
/// of a joining replica: 15 s, and then the copy.
pub const HEALING_MAX: Micros = Micros(45_000_000);

/// The outlook of the group when the faults have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// A replica can lead.
    Alive,
    /// No replica holds the state.
    Lost,
    /// A replica holds the state, but may not lead.
    Stuck,
}

/// The progress of the healing.
#[derive(Debug, Default)]
pub struct Progress {
    outlook: Option<Outlook>,
    /// The generation that was looked at.
    lost: View,
    /// A replica has reported that the guest is lost or the group is empty.
    said: bool,
    /// The operator has acted.
    operator: bool,
}

impl Progress {
    /// A replica reports that the guest is lost, or that the group is empty.
    pub fn said(&mut self) {
        self.said = true;
    }

    /// The operator has acted on the group.
    pub fn operator_spoke(&mut self) {
        self.operator = true;
    }

    /// Whether the operator has acted.
    pub fn has_operator_spoken(&self) -> bool {
        self.operator
    }

    /// The outlook at the first look after healing.
    pub fn outlook(&self) -> Option<Outlook> {
        self.outlook
    }

    /// The faults have ended; these are the processes that run.
    pub fn look<'a>(
        &mut self,
        generation: View,
        voters: ReplicaSet,
        running: impl Iterator<Item = (ReplicaId, &'a Replica)> + Clone,
    ) {
        if self.outlook.is_none() {
            self.outlook = Some(outlook(voters, running));
            self.lost = generation;
        }
    }

    /// A replica starts to serve in this generation of the guest. It must not if the outlook was that no
    /// replica holds the state.
    pub fn serves(&self, who: ReplicaId, generation: View) -> Check {
        if self.outlook == Some(Outlook::Lost) && generation <= self.lost {
            return Err(violation(format!(
                "{who} serves, though every holder's state is lost"
            )));
        }
        Ok(())
    }

    /// The group has not recovered in [`HEALING_MAX`].
    pub fn too_late(&self, report: &str) -> Violation {
        let word = if self.operator {
            ", even after the operator's word"
        } else {
            ""
        };
        let outlook = self.outlook.unwrap_or(Outlook::Alive);
        violation(format!(
            "{} s after all faults ended (outlook: {outlook:?}{word}) the group is not whole: \
             {report}",
            HEALING_MAX.0 / 1_000_000
        ))
    }

    /// No replica serves and none can: one of them must have reported this.
    pub fn silence(&self) -> Check {
        if self.said {
            return Ok(());
        }
        Err(violation(
            "the state is lost, and no replica says so".to_string(),
        ))
    }
}

fn violation(message: String) -> Violation {
    let section = "PLOVER §4.5, §4.6";
    Violation {
        invariant: "progress_after_healing",
        section,
        message,
    }
}

fn outlook<'a>(
    voters: ReplicaSet,
    running: impl Iterator<Item = (ReplicaId, &'a Replica)> + Clone,
) -> Outlook {
    let is_pair = running.clone().any(|(_, r)| r.group_record().size == 2);
    let holders = || {
        running
            .clone()
            .filter(|(_, replica)| replica.status().holds_state)
    };
    // A leader that begins a generation has no guest yet, and needs none of the last generation.
    let leads = |replica: &Replica| {
        let consensus = replica.consensus_core();
        let status = consensus.status();
        let begins = consensus.generation() == status.view;
        status.phase == Phase::Leading && (begins || replica.status().holds_state)
    };
    if running.clone().any(|(_, replica)| leads(replica)) {
        return Outlook::Alive;
    }
    if holders().next().is_none() {
        return Outlook::Lost;
    }
    let cores: Vec<_> = running
        .clone()
        .map(|(id, replica)| (id, replica.consensus_core().status()))
        .collect();
    let remembers = |status: &apus::Status| status.phase != Phase::Recovering;
    let best = cores
        .iter()
        .map(|(_, status)| status)
        .filter(|status| remembers(status))
        .max_by_key(|status| status.last);
    let end = best.map(|best| best.last);
    let knows = |status: &apus::Status| status.forgot.is_some() && status.forgot <= end;
    // A change of the members is in force as soon as it is in the log.
    let voters = best.map_or(voters, |best| best.members.voters);
    let votes = cores
        .iter()
        .filter(|(id, status)| voters.contains(*id) && (remembers(status) || knows(status)))
        .count();
    let sure = |replica: &Replica| !replica.consensus_core().status().doubts;
    let named = |set: ReplicaSet| holders().any(|(id, r)| set.contains(id) && sure(r));
    let may = best.is_some_and(|best| named(best.in_sync));
    let needed = if is_pair { 1 } else { voters.len() / 2 + 1 };
    if may && votes >= needed {
        Outlook::Alive
    } else {
        Outlook::Stuck
    }
}
