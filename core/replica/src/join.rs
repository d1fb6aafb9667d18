//! Bringing up a new secondary: a copy in rounds while the leader's guest runs, then one syncvm that
//! takes the rest, then the in-sync set of two (PLOVER §4.5).
//!
//! ```text
//!  leader                                          joiner
//!  CopyStart ────────────────────────────────────▶ start a hypervisor, paused, if none stands
//!                                       ◀───────── CopyReady
//!  what the joiner holds is compared ◀───────────▶
//!  round 0: every page that may differ ──────────▶ written at once
//!  round n: what was dirtied in round n-1 ───────▶ …until little is left
//!  Syncvm (the log) ─ the usual exchange ────────▶ stage, acknowledge, apply, run
//!  in-sync set = both (the log)
//! ```
//!
//! Until the in-sync set is committed nothing depends on the joiner, so any failure simply ends
//! the attempt and another one begins a little later, with what has been copied where that is still
//! there. A leader that was the secondary before has kept a witness warm (`warm`): its round 0 is
//! what that copy lacks. Everybody else's is what a joiner's old disks and memory do not hold
//! already, by their hashes (`stream`).

use crate::api::{Action, Note, Role};
use crate::replica::{Asked, Replica};
use plover_policy::SyncReason;
use plover_syncvm::Ledger;
use plover_syncvm::message::CopyPurpose;
use plover_types::{Micros, PageNo, ReplicaId, ReplicaSet};

/// Chunks under way at most: 24 of 128 KiB stay well inside the bulk ring.
pub(crate) const WINDOW_CHUNKS: u32 = 24;

/// Pages left at which the copy ends with a syncvm. Hashing and sending this many pauses the
/// guest for a few milliseconds, like an ordinary large slot.
const FINAL_PAGES: u32 = 1024;

/// Comparisons under way at most: while one travels, both sides hash.
const WINDOW_COMPARISONS: usize = 4;

/// Rounds at most: a guest that dirties faster than the copy runs is stopped in the end.
const ROUNDS_MAX: u32 = 8;

/// How long a joiner may be silent before the attempt is given up. Starting a hypervisor takes
/// most of it.
const PATIENCE: Micros = Micros::from_ms(15_000);

/// How long after a failed attempt the next one begins; one that was refused waits longer
/// (`refusals`).
const BACKOFF: Micros = Micros::from_ms(500);

/// The leader's side of an attempt; the pages go over its [`crate::stream::Stream`].
#[derive(Debug)]
pub(crate) struct LeadJoin {
    pub peer: ReplicaId,
    pub attempt: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The joiner starts its hypervisor.
    Starting,
    /// What it holds of an older copy is compared.
    Comparing,
    /// A round is being copied.
    Copying { round: u32 },
    /// It is over; what was dirtied meanwhile is being collected.
    Scanning { round: u32 },
    /// The final syncvm runs, or its in-sync set is being agreed.
    Final,
}

/// The joiner's side, from the invitation to the in-sync set that names it.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The first syncvm is applied, the in-sync set not yet agreed.
    applied: bool,
}

impl Replica {
    /// Starts an attempt when this leader is solo and somebody is there to join; gives up one
    /// that makes no progress.
    pub(crate) fn tick_join(&mut self) {
        if self.role != Role::Leader {
            return;
        }
        if self.join.is_some() {
            if self.now.since(self.join_progress()) > PATIENCE {
                self.fail_join("it made no progress");
            } else {
                self.pump_join();
            }
            return;
        }
        if !self.serving || !self.is_solo() || self.now < self.next_join_at {
            return;
        }
        let refused = self.refusals.waiting(self.now);
        let candidates = ReplicaSet(self.alive.0 & self.links.0 & !self.in_sync.0 & !refused.0);
        // Whose copy is warm, unless that has been tried in vain.
        let warm = self.stream.as_ref().filter(|stream| !stream.failed);
        let warm = warm
            .map(|stream| stream.peer)
            .filter(|p| candidates.contains(*p));
        // Another one each time, so that one broken host does not stop protection.
        let turn = self.copies as usize % candidates.len().max(1);
        let Some(peer) = warm.or_else(|| candidates.iter().nth(turn)) else {
            return;
        };
        self.note(Note::JoinBegun { peer });
        let attempt = self.open_copy(peer, CopyPurpose::Join);
        self.join = Some(LeadJoin {
            peer,
            attempt,
            stage: Stage::Starting,
        });
    }

    /// When the joiner was last heard of.
    fn join_progress(&self) -> Micros {
        let stream = self.stream.as_ref();
        stream.map_or(Micros::ZERO, |stream| stream.last_progress)
    }

    pub(crate) fn join_deadline(&self) -> Micros {
        match &self.join {
            _ if self.role != Role::Leader => Micros::NEVER,
            Some(_) => self.join_progress() + PATIENCE + Micros(1),
            None if self.serving && self.is_solo() => {
                let retry = Some(self.next_join_at).filter(|at| *at > self.now);
                let refused = self.refusals.deadline(self.now);
                retry.unwrap_or(Micros::NEVER).min(refused)
            }
            None => Micros::NEVER,
        }
    }

    pub(crate) fn fail_join(&mut self, why: &str) {
        let Some(join) = self.join.take() else { return };
        if self.lead.as_ref().is_some_and(|s| s.peer == join.peer) {
            self.abort_lead(why);
        }
        if let Some(stream) = &mut self.stream {
            // What was copied may still be of use to the next attempt.
            stream.is_open = false;
            stream.failed = true;
        }
        self.retry = false;
        self.next_join_at = self.now + BACKOFF;
        self.note(Note::JoinFailed {
            peer: join.peer,
            why: why.to_string(),
        });
    }

    /// The joiner's hypervisor stands: what it has is compared, and round 0 copies what differs.
    pub(crate) fn join_opened(&mut self, attempt: u64, warm: bool) {
        let Some(join) = self.join.as_mut().filter(|j| j.attempt == attempt) else {
            return;
        };
        if matches!(join.stage, Stage::Starting) {
            join.stage = Stage::Comparing;
            let peer = join.peer;
            self.note(Note::JoinOpened { peer, warm });
        }
    }

    /// Goes on as far as the windows allow.
    fn pump_join(&mut self) {
        let (Some(join), Some(stream)) = (&mut self.join, &mut self.stream) else {
            return;
        };
        let attempt = join.attempt;
        match join.stage {
            Stage::Starting | Stage::Scanning { .. } => {}
            Stage::Comparing if stream.is_comparing() => self.pump_comparing(WINDOW_COMPARISONS),
            Stage::Comparing => self.begin_round(0),
            Stage::Copying { round } => {
                self.pump_copy(WINDOW_CHUNKS as usize);
                self.end_round(attempt, round);
            }
            // The final syncvm failed or could not start yet.
            Stage::Final if self.lead.is_none() => self.start_sync(SyncReason::Join),
            Stage::Final => {}
        }
    }

    fn begin_round(&mut self, round: u32) {
        let (Some(join), Some(stream)) = (&mut self.join, &mut self.stream) else {
            return;
        };
        join.stage = Stage::Copying { round };
        let pages = stream.begin_sweep(PageNo(0));
        self.note(Note::JoinRound { round, pages });
        self.pump_join();
    }

    /// Sees what was dirtied meanwhile, once all of a round is acknowledged.
    fn end_round(&mut self, attempt: u64, round: u32) {
        let (Some(join), Some(stream)) = (&mut self.join, &self.stream) else {
            return;
        };
        if stream.is_settled() {
            join.stage = Stage::Scanning { round };
            self.scans.push_back(Asked::Join(attempt));
            self.out.push(Action::Scan);
        }
    }

    /// A round is over, and the stream knows what was dirtied meanwhile.
    pub(crate) fn join_scanned(&mut self, attempt: u64) {
        let (Some(join), Some(stream)) = (&mut self.join, &self.stream) else {
            return;
        };
        let Stage::Scanning { round } = join.stage else {
            return;
        };
        if join.attempt != attempt {
            return;
        }
        // Of a small guest, an eighth: more would be no ordinary slot there.
        let few = FINAL_PAGES.min(self.config.pages / 8);
        if stream.owed().len() <= few || round + 1 >= ROUNDS_MAX {
            join.stage = Stage::Final;
            // What the sync clears stays owed to the stream, too, until the sync is acknowledged.
            self.ledger = Ledger::settled(self.config.pages);
            self.ledger.owe(stream.owed());
            self.start_sync(SyncReason::Join);
        } else {
            self.begin_round(round + 1);
        }
    }

    /// The peer of the attempt whose final syncvm is due.
    pub(crate) fn final_joiner(&self) -> Option<ReplicaId> {
        self.join
            .as_ref()
            .filter(|j| matches!(j.stage, Stage::Final))
            .map(|j| j.peer)
    }

    /// The final syncvm is acknowledged: from here on the joiner is to be in the in-sync set.
    pub(crate) fn join_synced(&mut self, peer: ReplicaId) {
        if self.join.as_ref().is_some_and(|j| j.peer == peer) {
            self.join = None;
            self.stream = None;
            self.refusals.forget(peer);
            self.propose_in_sync(ReplicaSet::of([self.config.me, peer]));
        }
    }

    // The joiner's side; how it takes pages is in `standby`.

    pub(crate) fn begin_joining(&mut self) {
        self.set_role(Role::Joining);
        self.joined = Some(Joined { applied: false });
    }

    /// The first syncvm is applied: this replica runs the guest in step from now on.
    pub(crate) fn joiner_applied(&mut self) {
        if let Some(joined) = &mut self.joined {
            joined.applied = true;
        }
        self.standby = None;
        self.set_role(Role::Secondary);
        self.begin_warming();
    }

    /// Whether this replica has joined and waits for the in-sync set that names it: older sets
    /// in the log do not, and must not make it drop its guest.
    pub(crate) fn joined_is_pending(&self) -> bool {
        self.joined.as_ref().is_some_and(|j| j.applied)
    }
}

#[cfg(test)]
pub(crate) mod tests;
