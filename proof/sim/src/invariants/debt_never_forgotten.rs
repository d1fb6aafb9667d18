//! Every page that differs between the two sides is owed by one of them, or dirty on one.
//!
//! Clearing a dirty bit makes a debt. A syncvm that fails after the scan must leave its pages in a
//! ledger. A forgotten page differs for ever, because no later syncvm looks at it.

use super::{Check, Violation};
use crate::guest::FakeGuest;
use plover_replica::Replica;
use plover_types::{PageNo, ReplicaId};

/// A side: its replica and its guest.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its replica's id.
    pub who: ReplicaId,
    /// The replica, with its ledger.
    pub replica: &'a Replica,
    /// The guest, with its memory and dirty bits.
    pub guest: &'a FakeGuest,
}

impl Side<'_> {
    /// Whether it is owed or dirty here.
    pub fn accounts_for(&self, page: PageNo) -> bool {
        self.replica.owed().contains(page) || self.guest.dirty().contains(page)
    }
}

/// Checks both sides, at any moment at which the leader is not in the middle of a scan.
pub fn check(leader: Side<'_>, secondary: Side<'_>) -> Check {
    let (ours, theirs) = (leader.guest.memory(), secondary.guest.memory());
    let forgotten: Vec<_> = (0..ours.len())
        .filter(|page| ours[*page] != theirs[*page])
        .filter(|page| {
            let page = PageNo(*page as u32);
            !leader.accounts_for(page) && !secondary.accounts_for(page)
        })
        .collect();
    if forgotten.is_empty() {
        return Ok(());
    }
    Err(Violation {
        invariant: "debt_never_forgotten",
        section: "PLOVER §4.4",
        message: format!(
            "pages {forgotten:?} differ between {} and {}, and neither side knows",
            leader.who, secondary.who
        ),
    })
}
