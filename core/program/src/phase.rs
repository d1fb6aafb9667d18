//! The phases of a replica, and the one place where they change.

use crate::Taint;
use plover_types::{Index, Micros, View, Viewstamp};

/// How far a leader's program, which reads its clients itself, is cut off from them for a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quiet {
    /// It reads them.
    #[default]
    Reads,
    /// It is being cut off.
    Asked,
    /// It reads nothing until there is a cut behind this entry, the last of what it has read.
    Done(Index),
}

/// An entry that a leader has proposed, and has not executed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposed {
    /// Just now: consensus has not shown it yet.
    Now,
    /// It is at this index at the latest, unless it was lost.
    UpTo(Index),
}

/// The state of a replica, with the data that exists only in it. The crate's first page draws it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No program runs. The replica reads the log, without executing it, for a checkpoint to start from.
    Looking {
        /// The entry that it reads next.
        next: Index,
    },
    /// A checkpoint is on its way from another replica.
    Fetching {
        /// The entry that it reads next.
        next: Index,
        /// The entry that the checkpoint reflects.
        at: Viewstamp,
    },
    /// The program is being started.
    Restoring {
        /// The checkpoint, or nothing.
        from: Option<Viewstamp>,
    },
    /// The program executes the log.
    Following,
    /// The same, and clients are served.
    Leading {
        /// The view that this replica leads.
        view: View,
        /// The cut was proposed.
        asked: bool,
        /// A checkpoint was asked for, with an entry up to here, or with the last one now.
        proposed: Option<Proposed>,
        /// Where it has cut off the clients of the leader before; none are accepted until it has.
        opened: Option<Viewstamp>,
        /// Whether the program reads its clients, if it reads them itself.
        quiet: Quiet,
    },
    /// The program is not as the log says, and is stopped.
    Tainted {
        /// Why.
        why: Taint,
        /// When it is restored.
        until: Micros,
    },
}

impl Phase {
    /// The name that status shows.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Looking { .. } => "looking",
            Self::Fetching { .. } => "fetching",
            Self::Restoring { .. } => "restoring",
            Self::Following => "following",
            Self::Leading { .. } => "leading",
            Self::Tainted { .. } => "tainted",
        }
    }

    /// Whether the program runs and executes the log.
    pub fn executes(&self) -> bool {
        matches!(self, Self::Following | Self::Leading { .. })
    }

    /// Changes the phase. A transition that the crate's picture lacks is a bug.
    pub(crate) fn enter(&mut self, next: Self) {
        use Phase::{Fetching, Following, Leading, Looking, Restoring, Tainted};
        let allowed = matches!(
            (&*self, &next),
            (Looking { .. }, Fetching { .. } | Restoring { .. })
                | (Fetching { .. }, Looking { .. })
                | (Restoring { .. }, Following | Tainted { .. })
                | (Following, Leading { .. } | Tainted { .. })
                | (Leading { .. }, Following | Tainted { .. })
                | (Tainted { .. }, Looking { .. })
        );
        assert!(allowed, "no such transition: {self:?} to {next:?}");
        *self = next;
    }
}
