//! The phases of a replica, each with the data that exists only in it, and the one way between them.

use crate::api::{Action, Note, Role};
use crate::copy::target::CopyTarget;
use crate::leader::Leader;
use crate::replica::Replica;
use crate::secondary::Secondary;

/// Where a replica stands ([`crate`] draws the ways between).
#[derive(Debug)]
pub(crate) enum Phase {
    /// Has forgotten the log and recovers it.
    Recovering,
    /// Votes and logs; may keep a warm copy of the guest.
    Witness { copy: Option<CopyTarget> },
    /// Receives a full copy.
    Joining { copy: CopyTarget },
    /// Runs the guest in step, or keeps its last checkpoint.
    Secondary(Box<Secondary>),
    /// Runs the guest and faces clients.
    Leader(Box<Leader>),
    /// Led, and does not know yet who leads now; its guest runs on with its outputs held.
    Deposed,
}

impl Phase {
    pub fn role(&self) -> Role {
        match self {
            Self::Recovering => Role::Recovering,
            Self::Witness { .. } => Role::Witness,
            Self::Joining { .. } => Role::Joining,
            Self::Secondary(_) => Role::Secondary,
            Self::Leader(_) => Role::Leader,
            Self::Deposed => Role::Deposed,
        }
    }
}

/// Whether a replica may go from one role to another.
fn is_allowed(from: Role, to: Role) -> bool {
    use Role::{Deposed, Joining, Leader, Recovering, Secondary, Witness};
    matches!(
        (from, to),
        (Recovering, Witness | Leader)
            | (Witness, Joining | Leader)
            | (Joining, Secondary | Witness)
            | (Secondary, Leader | Witness)
            | (Leader, Deposed | Witness)
            | (Deposed, Leader | Secondary | Witness)
    )
}

impl Replica {
    /// The one place where the phase changes. The caller gives up before what the old phase still holds.
    ///
    /// # Panics
    /// If there is no way between the two, or a leader's syncvm still runs.
    pub(crate) fn enter(&mut self, to: Phase) {
        let (from, role) = (self.phase.role(), to.role());
        assert!(is_allowed(from, role), "no way from {from:?} to {role:?}");
        if let Phase::Leader(leader) = &self.phase {
            assert!(
                leader.sync.is_none(),
                "a leader gives its syncvm up before it leaves"
            );
        }
        self.phase = to;
        self.abstain_if_at_fault();
        self.cx.out.push(Action::Role { from, to: role });
        let view = self.cx.group.view;
        self.cx.note(Note::Role {
            from,
            to: role,
            view,
        });
    }

    /// The guest was given up, or there was none.
    pub(crate) fn become_witness(&mut self) {
        if !matches!(self.phase, Phase::Witness { .. }) {
            self.enter(Phase::Witness { copy: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_replica_that_ran_the_guest_becomes_its_leader() {
        assert!(is_allowed(Role::Secondary, Role::Leader));
        assert!(is_allowed(Role::Deposed, Role::Leader), "it won again");
        assert!(!is_allowed(Role::Joining, Role::Leader));
        assert!(
            is_allowed(Role::Deposed, Role::Secondary),
            "it stays in step"
        );
        assert!(!is_allowed(Role::Witness, Role::Secondary));
    }
}
