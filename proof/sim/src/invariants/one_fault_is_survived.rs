//! A protected guest survives any single fault: as long as no second one strikes before the group is whole
//! and protected again, some replica holds the guest's state.
//!
//! One exception is known and counted: a leader that dies while its secondary fetches a page that a device
//! reset has written (docs/decisions/0003).

use super::{Check, Violation};
use crate::faults::Fault;

/// The faults since the group was whole and protected.
#[derive(Debug, Default)]
pub struct OneFault {
    /// `None`: it has not been whole in this generation, or a second fault has struck.
    only: Option<Option<Fault>>,
    /// A sync is over that began after the last fault ended: nothing of that fault is left. (A message that a full
    /// ring had no room for is missed only later.)
    is_settled: bool,
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

    /// More than a single fault has come together.
    pub fn excuse(&mut self) {
        self.only = None;
    }

    /// No replica holds the guest's state any more.
    pub fn nobody_holds(&self) -> Check {
        let Some(only) = self.only else {
            return Ok(());
        };
        Err(Violation {
            invariant: "one_fault_is_survived",
            section: "PROMISES.md, nothing is lost",
            message: match only {
                Some(fault) => format!("{fault:?} alone has cost a protected guest"),
                None => "a protected guest was lost without any fault".to_string(),
            },
        })
    }
}
