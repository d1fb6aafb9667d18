//! Commit quorum selection: which backups are sent an entry at once, and which a little later.
//!
//! An entry is committed when a majority has it. More copies make the group safer against the next
//! failure, but no client waits for them. In a group of nine every entry would wake eight backups,
//! though four answers are enough. A leader with quorum selection (EPaxos, SOSP'13, §6.1, calls it
//! thrifty) wakes those four at once, the *fast set*, and sends the *slow followers* all that has
//! gathered some times in a heartbeat:
//!
//! ```text
//!   {2 3 5 7} is the fast set                    entries ──▶ 2 3 5 7     at once
//!                                                        ──▶ 1 4 6 8     within an eighth of a heartbeat,
//!                                                                        or once they lack 1024
//!   one of the fast set dies, or nothing was
//!   committed between two sends to the others    entries ──▶ all, for the next commits
//!   some heartbeats later                        the same, to see which are fast now
//! ```
//!
//! The fast set consists of those that were in most of the majorities while all were sent
//! everything. It changes with what else a host does and, where replicas share cores, with which of
//! them run on the leader's core.
//!
//! Safety does not depend on the fast set: any majority commits. Only the number of copies changes,
//! which is exactly a majority at first. Groups of three or fewer do without selection: there the
//! second backup costs little and hides a slow first one.

use crate::Command;
use crate::leading::Leadership;
use crate::{Apus, Role};
use plover_types::{Awaited, Index, Micros, ReplicaId, ReplicaSet};

/// How long an entry may wait before it is sent to slow followers, as a part of the heartbeat. Long
/// against a round trip, so that their share of the work is small; short against the heartbeat, so
/// that a failover finds them nearly up to date.
const SLOW_PART: u64 = 8;
/// A slow follower that lacks so many entries is sent them at once. That keeps its share of the work
/// small; more at once would delay the entries that come after, and need as many buffers.
const SLOW_ENTRIES: u64 = 1024;
/// The smallest group in which selection pays.
const VOTERS_MIN: usize = 4;

/// How many commits with all backups decide which are fast.
const LOOK_COMMITS: u32 = 16;
/// Head start, in commits, for the backups that are already in the fast set, so that the set changes
/// only when others are clearly faster.
const LOOK_BONUS: u32 = LOOK_COMMITS / 4;
/// After how many heartbeats the fast set is chosen again. Sixteen commits with all backups are
/// little work compared with those of so long a time.
const LOOK_BEATS: u64 = 5;

/// The leader's state of the selection.
#[derive(Clone, Debug)]
pub(crate) struct QuorumSelection {
    /// The backups that are sent everything at once; `None` for all of them.
    fast: Option<ReplicaSet>,
    /// When to choose them again.
    look_at: Micros,
    /// While all are sent everything: how many commits there have been, and of how many each backup
    /// has been a part, with the head start.
    commits: u32,
    parts: [u32; u16::BITS as usize],
    /// When slow followers are sent what they lack.
    slow_at: Micros,
    /// The commit index when they were last sent something.
    commit: Index,
}

impl QuorumSelection {
    pub(crate) fn new() -> Self {
        Self {
            fast: None,
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

    /// Whether `peer`, which lacks so many entries, is sent them at once. If not, sets when it is.
    pub(crate) fn is_sent_now(
        &mut self,
        peer: ReplicaId,
        lacks: u64,
        now: Micros,
        heartbeat: Micros,
    ) -> bool {
        let Some(fast) = self.fast else {
            return true;
        };
        if fast.contains(peer) || now >= self.slow_at || lacks >= SLOW_ENTRIES {
            return true;
        }
        if self.slow_at == Micros::NEVER {
            self.slow_at = now + Micros(heartbeat.0 / SLOW_PART);
        }
        false
    }

    /// Sends everything to all until the next commits show which are fast: a backup may have failed.
    pub(crate) fn suspend(&mut self) {
        let fast = self.fast.take();
        self.parts = [0; u16::BITS as usize];
        for id in fast.iter().flat_map(|fast| fast.iter()) {
            self.parts[usize::from(id.0)] = LOOK_BONUS;
        }
        self.commits = 0;
    }
}

impl Apus {
    /// The backups whose answers a leader waits for: those with uncommitted entries on their way, and
    /// how many of them have to answer before anything more can be committed. `None` if any message
    /// may matter: this replica does not lead, or entries are on their way to too few backups.
    ///
    /// A hint for a caller that can sleep until so many have written. It holds until the leader
    /// sends something. Messages of others are to be read soon all the same: at the
    /// [`deadline`](Self::deadline) at the latest.
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
            } else if peer.next > commit.next() && !self.is_log_kept_from(id) {
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

    /// A majority has just committed up to `index`: chooses the backups that are mostly part of it.
    pub(crate) fn select_quorum(&mut self, now: Micros, index: Index) {
        let members = self.members();
        let selects = self.config.quorum_selection && members.voters.len() >= VOTERS_MIN;
        let others = members.quorum() - usize::from(self.is_voter());
        let Role::Leading(Leadership {
            peers, selection, ..
        }) = &mut self.role
        else {
            return;
        };
        if !selects {
            return;
        }
        if selection.fast.is_some() {
            // Only the fast set was sent this entry, so it does not show which are fast.
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
        let mut fast = ReplicaSet::EMPTY;
        for _ in 0..others {
            let left = voters().filter(|(id, _)| !fast.contains(**id));
            if let Some((id, _)) = left.max_by_key(|(id, _)| selection.parts[usize::from(id.0)]) {
                fast.insert(*id);
            }
        }
        selection.fast = Some(fast);
        selection.look_at = now + Micros(self.config.heartbeat.0 * LOOK_BEATS);
    }

    /// Sends slow followers the entries that they lack, when it is time. If nothing was committed since
    /// the last time although something was proposed, the fast set is not a majority any more.
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
