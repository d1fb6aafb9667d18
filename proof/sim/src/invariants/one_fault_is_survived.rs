//! A protected guest survives any single fault: as long as no second one strikes before the group is whole
//! and protected again, some replica holds the guest's state. The same holds when a guest ends by itself.
//!
//! There is no exception for a page that a device reset has written and that only the leader has. A replica that
//! has just joined must not have to fetch one. Later it may have to, rarely, and this is counted
//! (docs/decisions/0003).
//!
//! Where faults strike alone and last ([`crate::alone`]), the clients must be answered again within a bounded time, and
//! a secondary whose hypervisor stands still is dropped long before the leader's patience ends.

use super::{Check, Violation};
use crate::alone::served_within;
use crate::faults::Fault;
use plover_types::ReplicaId;
use std::collections::BTreeSet;

fn violation(message: String) -> Violation {
    Violation {
        invariant: "one_fault_is_survived",
        section: "PROMISES.md, nothing is lost",
        message,
    }
}

/// The faults since the group was whole and protected.
#[derive(Debug, Default)]
pub struct OneFault {
    /// `None`: it has not been whole in this generation, or a second fault has struck.
    only: Option<Option<Fault>>,
    /// A sync is over that began after the last fault ended: nothing of that fault is left. (A message that a full
    /// ring had no room for is missed only later.)
    is_settled: bool,
    /// The replicas that have applied no sync since they joined.
    joined: BTreeSet<ReplicaId>,
}

impl OneFault {
    /// A leader's sync is over.
    pub fn synced(&mut self) {
        self.is_settled = true;
    }

    /// A fault ends.
    pub fn ends(&mut self) {
        self.is_settled = false;
    }

    /// The group is whole and protected, and every fault has ended.
    pub fn is_whole(&mut self) {
        if self.is_settled {
            self.only = Some(None);
        }
    }

    /// A fault strikes.
    pub fn strikes(&mut self, fault: Fault) {
        self.only = match self.only {
            Some(None) => Some(Some(fault)),
            Some(Some(_)) | None => None,
        };
    }

    /// An operator has given protection up for a while.
    pub fn is_given_up(&mut self) {
        self.only = None;
    }

    /// Whether the group was whole and protected, and no fault has struck since.
    pub fn is_undisturbed(&self) -> bool {
        self.only == Some(None)
    }

    /// Whether nothing of the last fault is left.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// A replica has joined.
    pub fn joins(&mut self, who: ReplicaId) {
        self.joined.insert(who);
    }

    /// A replica has applied a sync.
    pub fn applies(&mut self, who: ReplicaId) {
        self.joined.remove(&who);
    }

    /// A member of the in-sync set lacks pages that only the leader has.
    pub fn fetches(&self, who: ReplicaId) -> Check {
        if !self.joined.contains(&who) {
            return Ok(());
        }
        Err(violation(format!(
            "{who} has joined and has to fetch pages that a reset has written: if the leader dies now, the guest \
             is lost"
        )))
    }

    /// The clients get no answers, and only one fault has struck.
    pub fn unanswered(&self) -> Check {
        match self.only {
            Some(Some(fault)) => Err(violation(format!(
                "{fault:?} alone, and {} s later no client is answered",
                served_within(fault).0 / 1_000_000
            ))),
            Some(None) | None => Ok(()),
        }
    }

    /// The hypervisor of a secondary stands still, and the leader still waits for it.
    pub fn unblamed(&self, secondary: ReplicaId) -> Check {
        match self.only {
            Some(Some(_)) => Err(violation(format!(
                "the hypervisor of {secondary} stands still, and the leader has not gone on without it"
            ))),
            Some(None) | None => Ok(()),
        }
    }

    /// No replica holds the guest's state any more.
    pub fn nobody_holds(&self) -> Check {
        let Some(only) = self.only else {
            return Ok(());
        };
        Err(violation(match only {
            Some(fault) => format!("{fault:?} alone has cost a protected guest"),
            None => "a protected guest was lost without any fault".to_string(),
        }))
    }
}
