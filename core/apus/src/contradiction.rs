//! What no correct peer says. The message is dropped as if it were lost, and the caller drops the link to its sender
//! ([`crate::Command::Refuse`]): a peer that is broken or hostile costs its link, and not this process.
//!
//! Everything is checked before the log changes. So to this replica the peer is one that is cut off: it hears no leader
//! from there, counts no vote, and goes on with the others.

use crate::log::Accepted;
use crate::message::Batch;
use crate::{Apus, Command, Config};
use plover_types::{Index, ReplicaId, Viewstamp};

/// Why a peer is refused. Look at its host: its log or its memory is damaged, its program is another one, or somebody has
/// taken it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Its bytes are no message, or one that no correct replica sends.
    #[error("bytes that are no message of consensus")]
    Malformed,
    /// Its log has another entry where this one's is committed, or where the same leader has said that they are equal.
    #[error("the entry {told}, where its log and this one's agreed on {held}")]
    Agreed {
        /// Its entry.
        told: Viewstamp,
        /// This replica's.
        held: Viewstamp,
    },
    /// Its log has an entry that cannot lie before the end of what is reclaimed here.
    #[error("the entry {told}, although this log is committed up to {base} and reclaimed")]
    Reclaimed {
        /// Its entry.
        told: Viewstamp,
        /// The newest that is reclaimed.
        base: Viewstamp,
    },
    /// Its log begins after what is committed here, and in an older view.
    #[error("a log that begins at {base}, although {committed} is committed")]
    Begins {
        /// Where its log begins.
        base: Viewstamp,
        /// The newest committed entry here.
        committed: Viewstamp,
    },
    /// It names a round that no group can have reached since this replica last heard of one (see `rounds`).
    #[error("round {told}, although {known} is the highest known here: no group counts so fast")]
    Ahead {
        /// Its round.
        told: u64,
        /// The highest that this replica has heard of.
        known: u64,
    },
    /// It sends more than a leader keeps.
    #[error("entries without end: {held} bytes of them are not reclaimed")]
    Endless {
        /// Bytes that this log takes.
        held: usize,
    },
}

impl Config {
    /// Bytes of memory that a leader's log takes at most: entries of the application are refused beyond. Entries are
    /// seldom so small that this is reached before `log_bytes_max`.
    pub(crate) fn held_bytes_max(&self) -> usize {
        const SMALL_ENTRIES: usize = 32 << 20;
        4 * self.log_bytes_max + SMALL_ENTRIES
    }
}

impl Apus {
    /// Takes a peer's entries into the log, see [`crate::log::Log::accept`].
    ///
    /// The log of a correct peer is no longer than a leader's. This one may hold as much again, which that leader has
    /// reclaimed and this replica has not: it does not know yet that it is committed.
    pub(crate) fn accept(
        &mut self,
        prev: Viewstamp,
        entries: Batch<'_>,
        matched: Index,
    ) -> Result<Accepted, Contradiction> {
        let held = self.log.held();
        if held > 2 * self.config.held_bytes_max() {
            return Err(Contradiction::Endless { held });
        }
        self.log.accept(prev, entries, matched, &mut self.pool)
    }

    /// Drops a message of `peer`, and has the link to it dropped.
    pub(crate) fn refuse(&mut self, peer: ReplicaId, why: Contradiction, out: &mut Vec<Command>) {
        self.rejected += 1;
        out.push(Command::Refuse { peer, why });
    }
}
