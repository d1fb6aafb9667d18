//! Whom the leader sends an entry at once, and who may get it a little later.
//!
//! An entry is committed when a majority has it; the copies beyond that make the group safer
//! against the next failure, but nobody waits for them. In a group of nine every entry would wake
//! eight backups, though four answers are enough. A leader with quorum selection (EPaxos calls it thrifty,
//! SOSP'13, §6.1) wakes those four, and the others some times in a heartbeat, with all that has
//! gathered:
//!
//! ```text
//!   commit by {2 3 5 7}: they are eager       entries ──▶ 2 3 5 7     at once
//!                                                     ──▶ 1 4 6 8     within an eighth of a heartbeat,
//!                                                                     or once they lack 1024
//!   an eager one dies, or nothing was committed
//!   between two times that the others were sent to:  everyone is eager for the next commits
//!   some heartbeats later:                           the same, to see who is fast now
//! ```
//!
//! Those are chosen who were in most of the majorities while everyone was eager. Who is fast changes: with
//! what else a host does, and where replicas share cores, with which of them run on the leader's.
//!
//! Nothing rests on who is eager: a majority commits, whoever is in it. What changes is how many
//! copies there are at first, exactly a majority. Groups of three or fewer are
//! do without it: there the second backup costs little and hides a slow first one.

use crate::Command;
use crate::leading::Leadership;
use crate::{Apus, Role};
use plover_types::{Awaited, Index, Micros, ReplicaId, ReplicaSet};

/// How long an entry may wait for the backups that a majority does not need, as a part of the
/// heartbeat. Long against a round trip, so that their share of the work is small; short against
/// the heartbeat, so that a failover finds them nearly up to date.
const SLOW_PART: u64 = 8;
/// Nor do they wait once they lack so many. A few times in a thousand entries, their share of the
/// work is still small; more at once would hold up those that come after, and need as many buffers.
const SLOW_ENTRIES: u64 = 1024;
/// The smallest group in which it is worth it.
const VOTERS_MIN: usize = 4;

/// How many commits with everyone show who is fast.
const LOOK_COMMITS: u32 = 16;
/// How many of them whoever was eager before has for nothing: others have to be clearly faster.
const LOOK_BONUS: u32 = LOOK_COMMITS / 4;
/// After how many heartbeats that is looked at again. Sixteen commits with all are little work
/// beside those of so long a time.
const LOOK_BEATS: u64 = 5;

/// What a leader keeps about it.
#[derive(Clone, Debug)]
pub(crate) struct QuorumSelection {
    /// Those who are sent everything at once; `None` for everyone.
    eager: Option<ReplicaSet>,
    /// When it is to be looked at again who they should be.
    look_at: Micros,
    /// While everyone is eager: how many commits there have been, and of how many each replica has
    /// been a part; some more for who was eager before.
    commits: u32,
    parts: [u32; u16::BITS as usize],
    /// When the others are sent what they lack.
    slow_at: Micros,
    /// What was committed when they last were.
    commit: Index,
}

impl QuorumSelection {
    pub(crate) fn new() -> Self {
        Self {
            eager: None,
            look_at: Micros::NEVER,
            commits: 0,
            parts: [0; u16::BITS as usize],
            slow_at: Micros::NEVER,
            commit: Index(0),
        }
    }

    pub(crate) fn deadline(&self) -> Micros {
        self.slow_at
    }

    /// Whether `peer`, which lacks so many entries, is sent them at once. If not, its time is not far.
    pub(crate) fn is_sent_now(
        &mut self,
        peer: ReplicaId,
        lacks: u64,
        now: Micros,
        heartbeat: Micros,
    ) -> bool {
        let Some(eager) = self.eager else {
            return true;
        };
        if eager.contains(peer) || now >= self.slow_at || lacks >= SLOW_ENTRIES {
            return true;
        }
        if self.slow_at == Micros::NEVER {
            self.slow_at = now + Micros(heartbeat.0 / SLOW_PART);
        }
        false
    }

    /// Something is amiss: everyone is eager until the next commits show who is fast.
    pub(crate) fn suspend(&mut self) {
        let eager = self.eager.take();
        self.parts = [0; u16::BITS as usize];
        for id in eager.iter().flat_map(|eager| eager.iter()) {
            self.parts[usize::from(id.0)] = LOOK_BONUS;
        }
        self.commits = 0;
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

    /// A majority has just committed up to `index`: those who mostly make it are the eager ones.
    pub(crate) fn select_quorum(&mut self, now: Micros, index: Index) {
        let members = self.members();
        let quorum_selection = self.config.quorum_selection && members.voters.len() >= VOTERS_MIN;
        let others = members.quorum() - usize::from(self.is_voter());
        let Role::Leading(Leadership {
            peers, selection, ..
        }) = &mut self.role
        else {
            return;
        };
        if !quorum_selection {
            return;
        }
        if selection.eager.is_some() {
            // This one was sent to the eager ones alone, and says nothing.
            if now >= selection.look_at {
                selection.suspend();
            }
            return;
        }
        let voters = || peers.iter().filter(|(id, _)| members.voters.contains(**id));
        selection.commits += 1;
        for (id, _) in voters().filter(|(_, peer)| peer.matched >= index) {
            selection.parts[usize::from(id.0)] += 1;
        }
        if selection.commits < LOOK_COMMITS {
            return;
        }
        let mut eager = ReplicaSet::EMPTY;
        for _ in 0..others {
            let left = voters().filter(|(id, _)| !eager.contains(**id));
            if let Some((id, _)) = left.max_by_key(|(id, _)| selection.parts[usize::from(id.0)]) {
                eager.insert(*id);
            }
        }
        selection.eager = Some(eager);
        selection.look_at = now + Micros(self.config.heartbeat.0 * LOOK_BEATS);
    }

    /// Sends the others what they lack, when it is time. If nothing was committed since the
    /// last time although something was proposed, the eager ones are not a majority any more.
    pub(crate) fn tick_slow_followers(&mut self, now: Micros, out: &mut Vec<Command>) {
        let (commit, last) = (self.log.commit(), self.log.last().index);
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        let Leadership { selection, .. } = leadership;
        if now < selection.slow_at {
            return;
        }
        let stuck = commit == selection.commit && commit < last;
        selection.commit = commit;
        if stuck {
            selection.suspend();
        }
        self.replicate_to_all(now, false, out);
        if let Role::Leading(leadership) = &mut self.role {
            leadership.selection.slow_at = Micros::NEVER;
        }
    }
}
