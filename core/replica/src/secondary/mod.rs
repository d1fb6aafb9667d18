//! A secondary: it runs the guest in step with the leader, or keeps its last checkpoint.
//!
//! Its part of a syncvm is [`crate::follow`]'s, since a replica that joins, or one that takes over from a
//! leader that died behind the end mark, takes part in one as well. Only a secondary reports its guest's
//! outputs ([`report`]) and keeps a witness warm ([`warm`]).

mod ahead;
mod report;
#[cfg(test)]
mod tests;
pub(crate) mod warm;

use self::ahead::Ahead;
use self::report::OutputReport;
use self::warm::WarmKeeper;
use crate::follow::Kept;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_types::{Micros, Unconsumed};

pub(crate) use self::report::window;

/// The data that exists only while a replica is secondary.
#[derive(Debug)]
pub(crate) struct Secondary {
    /// The attempt by which it has joined, until the log names it in sync. From then on the next set without it is
    /// meant. Before that, a set of the leader alone may come, which has lost the secondary that this replica is to
    /// replace. See also [`crate::follow::join_end`].
    pub joined_by: Option<u64>,
    /// Its report of this slot's outputs, where they are compared.
    pub report: Option<OutputReport>,
    /// The newest checkpoint, where its guest waits.
    pub kept: Option<Kept>,
    /// Its guest rests in this slot. When it goes on, it gets these inputs first.
    pub rests: Option<Unconsumed>,
    pub warm: WarmKeeper,
    /// Entries that are not committed yet, where its guest does not wait for that.
    pub ahead: Ahead,
}

impl Replica {
    /// Whether this secondary's guest rests in this slot.
    pub(crate) fn is_resting(&self) -> bool {
        matches!(&self.phase, Phase::Secondary(secondary) if secondary.rests.is_some())
    }
}

impl Secondary {
    /// The first syncvm is applied: this replica runs the guest in step from now on.
    pub fn new(joined_by: Option<u64>, now: Micros) -> Self {
        Self {
            joined_by,
            report: None,
            kept: None,
            rests: None,
            warm: WarmKeeper::new(now),
            ahead: Ahead::default(),
        }
    }
}
