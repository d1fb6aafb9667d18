//! Whom the leader sends an entry at once, and who may get it a little later.
//!
//! An entry is committed when a majority has it; the copies beyond that make the group safer
//! against the next failure, but nobody waits for them. In a group of nine every entry would wake
//! eight backups, though four answers are enough. A thrifty leader (the word is that of EPaxos,
//! SOSP'13, §6.1) wakes those four, and the others some times in a heartbeat, with all that has
//! gathered:
//!
//! ```text
//!   commit by {2 3 5 7}: they are eager       entries ──▶ 2 3 5 7     at once
//!                                                     ──▶ 1 4 6 8     within an eighth of a heartbeat
//!   an eager one dies, or nothing was committed
//!   between two times that the others were sent to:  everyone is eager until the next commit
//! ```
//!
//! Nothing rests on who is eager: a majority commits, whoever is in it. What changes is how many
//! copies there are at first, exactly a majority. Groups of three or fewer are
//! not thrifty: there the second backup costs little and hides a slow first one.

use crate::api::Command;
use crate::leading::Leadership;
use crate::{Apus, Role};
use plover_types::{Awaited, Index, Micros, ReplicaId, ReplicaSet};

/// How long an entry may wait for the backups that a majority does not need, as a part of the
/// heartbeat. Long against a round trip, so that their share of the work is small; short against
/// the heartbeat, so that a failover finds them nearly up to date.
const LAZY_PART: u64 = 8;
/// The smallest group in which it is worth it.
const VOTERS_MIN: usize = 4;

/// What a leader keeps about it.
#[derive(Clone, Debug)]
pub(crate) struct Thrift {
    /// Those who are sent everything at once; `None` for everyone.
    eager: Option<ReplicaSet>,
    /// When the others are sent what they lack.
    lazy_at: Micros,
    /// What was committed when they last were.
    commit: Index,
}

impl Thrift {
    pub(crate) fn new() -> Self {
        Self {
            eager: None,
            lazy_at: Micros::NEVER,
            commit: Index(0),
        }
    }

    pub(crate) fn deadline(&self) -> Micros {
        self.lazy_at
    }

    /// Whether `peer` is sent entries at once. If not, its time is not far.
    pub(crate) fn is_eager(&mut self, peer: ReplicaId, now: Micros, heartbeat: Micros) -> bool {
        let Some(eager) = self.eager else {
            return true;
        };
        if eager.contains(peer) || now >= self.lazy_at {
            return true;
        }
        if self.lazy_at == Micros::NEVER {
            self.lazy_at = now + Micros(heartbeat.0 / LAZY_PART);
        }
        false
    }

    /// Something is amiss: everyone is eager until the next commit shows who is fast.
    pub(crate) fn suspend(&mut self) {
        self.eager = None;
        self.lazy_at = Micros::NEVER;
    }
}

impl Apus {
    /// For whose messages a leader need wake up: those to whom something uncommitted is on its way,
    /// once so many of them have written as nothing more can be committed without. `None` for everyone:
    /// it does not lead, nothing is on its way, or not to enough.
    ///
    /// A hint for a caller that can sleep so. It holds until the leader sends something, and what
    /// others write must be found soon all the same: at the [`deadline`](Self::deadline) at the
    /// latest.
    pub fn awaited(&self) -> Option<Awaited> {
        let Role::Leading(leadership) = &self.role else {
            return None;
        };
        let commit = self.log.commit();
        let members = self.members();
        let mut holders = usize::from(self.is_voter() && self.counted() > commit);
        let mut outstanding = ReplicaSet::EMPTY;
        for (&id, peer) in &leadership.peers {
            if !members.voters.contains(id) {
                continue;
            }
            if peer.matched > commit {
                holders += 1;
            } else if peer.next > commit.next() && !self.down.contains(id) {
                outstanding.insert(id);
            }
        }
        let needed = members.quorum().checked_sub(holders)?;
        if needed == 0 || needed > outstanding.len() {
            return None;
        }
        Some(Awaited {
            from: outstanding,
            count: needed,
        })
    }

    /// A majority has just committed up to `index`: those who made it are the eager ones.
    pub(crate) fn choose_eager(&mut self, index: Index) {
        let voters = self.members().voters;
        let thrifty = self.config.thrifty && voters.len() >= VOTERS_MIN;
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        if !thrifty || leadership.thrift.eager.is_some() {
            return;
        }
        let fast = leadership.peers.iter();
        let fast = fast.filter(|(id, peer)| voters.contains(**id) && peer.matched >= index);
        leadership.thrift.eager = Some(ReplicaSet::of(fast.map(|(id, _)| *id)));
    }

    /// Sends the others what they lack, when it is time. If nothing was committed since the
    /// last time although something was proposed, the eager ones are not a majority any more.
    pub(crate) fn tick_thrift(&mut self, now: Micros, out: &mut Vec<Command>) {
        let (commit, last) = (self.log.commit(), self.log.last().index);
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        let Leadership { thrift, .. } = leadership;
        if now < thrift.lazy_at {
            return;
        }
        let stuck = commit == thrift.commit && commit < last;
        thrift.commit = commit;
        if stuck {
            thrift.suspend();
        }
        self.replicate_to_all(now, false, out);
        if let Role::Leading(leadership) = &mut self.role {
            leadership.thrift.lazy_at = Micros::NEVER;
        }
    }
}
