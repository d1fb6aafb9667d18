//! Bringing up a new secondary: a full copy in rounds while the leader's guest runs, then one
//! syncvm that takes the rest, then the in-sync set of two (PLOVER §4.5).
//!
//! ```text
//!  leader                                          joiner
//!  JoinStart ────────────────────────────────────▶ start a hypervisor, paused
//!                                       ◀───────── JoinReady
//!  round 0: every page ──────────────────────────▶ written at once
//!  round n: what was dirtied in round n-1 ───────▶ …until little is left
//!  Syncvm (the log) ─ the usual exchange ────────▶ stage, acknowledge, apply, run
//!  in-sync set = both (the log)
//! ```
//!
//! Until the in-sync set is committed nothing depends on the joiner, so any failure simply ends
//! the attempt and another one begins a little later.

use crate::api::{Action, Note, Role};
use crate::guest::Power;
use crate::replica::{Asked, Replica};
use plover_policy::SyncReason;
use plover_syncvm::Ledger;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_types::{Micros, PageNo, PageSet, ReplicaId, ReplicaSet};

/// Chunks under way at most: 24 of 128 KiB stay well inside the bulk ring.
pub(crate) const WINDOW_CHUNKS: u32 = 24;

/// Pages left at which the copy ends with a syncvm. Hashing and sending this many pauses the
/// guest for a few milliseconds, like an ordinary large slot.
const FINAL_PAGES: u32 = 1024;

/// Rounds at most: a guest that dirties faster than the copy runs is stopped in the end.
const ROUNDS_MAX: u32 = 8;

/// How long a joiner may be silent before the attempt is given up. Starting a hypervisor takes
/// most of it.
const PATIENCE: Micros = Micros::from_ms(15_000);

/// How long after a failed attempt the next one begins.
const BACKOFF: Micros = Micros::from_ms(500);

/// The leader's side of an attempt.
#[derive(Debug)]
pub(crate) struct LeadJoin {
    pub peer: ReplicaId,
    pub attempt: u64,
    stage: Stage,
    last_progress: Micros,
    /// Chunks sent so far, over all rounds; the next one's number.
    chunks_sent: u32,
    /// Chunks that were sent before this round.
    round_base: u32,
}

#[derive(Debug)]
enum Stage {
    /// The joiner starts its hypervisor.
    Starting,
    /// A round is being copied.
    Copying {
        round: u32,
        queue: Vec<PageNo>,
        next: usize,
        sent: u32,
        acked: u32,
    },
    /// The final syncvm runs, or its in-sync set is being agreed.
    Final,
}

/// The joiner's side.
#[derive(Debug)]
pub(crate) struct Joined {
    attempt: u64,
    chunks: u32,
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
        if let Some(join) = &self.join {
            if self.now.since(join.last_progress) > PATIENCE {
                self.fail_join("it made no progress");
            } else if matches!(join.stage, Stage::Final) && self.lead.is_none() {
                // The final syncvm failed or could not start yet.
                self.start_sync(SyncReason::Join);
            }
            return;
        }
        if !self.serving || !self.is_solo() || self.now < self.next_join_at {
            return;
        }
        let candidates = ReplicaSet(self.alive.0 & self.links.0 & !self.in_sync.0);
        let Some(peer) = candidates.iter().nth(
            // Another one each time, so that one broken host does not stop protection.
            self.join_attempts as usize % candidates.len().max(1),
        ) else {
            return;
        };
        self.join_attempts += 1;
        let attempt = self.join_attempts;
        let now = self.now;
        self.join = Some(LeadJoin {
            peer,
            attempt,
            stage: Stage::Starting,
            last_progress: now,
            chunks_sent: 0,
            round_base: 0,
        });
        self.note(Note::JoinBegun { peer });
        let start = Body::JoinStart {
            attempt,
            policy: self.config.policy.to_string(),
            pages: self.config.pages,
            disk_blocks: self.config.disk_blocks,
        };
        self.send_bulk(peer, start);
    }

    pub(crate) fn join_deadline(&self) -> Micros {
        match &self.join {
            _ if self.role != Role::Leader => Micros::NEVER,
            Some(join) => join.last_progress + PATIENCE + Micros(1),
            None if self.serving && self.is_solo() && self.next_join_at > self.now => {
                self.next_join_at
            }
            None => Micros::NEVER,
        }
    }

    pub(crate) fn fail_join(&mut self, why: &str) {
        let Some(join) = self.join.take() else { return };
        if self.lead.as_ref().is_some_and(|s| s.peer == join.peer) {
            self.abort_lead(why);
        }
        self.retry = false;
        self.next_join_at = self.now + BACKOFF;
        self.note(Note::JoinFailed {
            peer: join.peer,
            why: why.to_string(),
        });
    }

    fn join_of(&mut self, from: ReplicaId, attempt: u64) -> Option<&mut LeadJoin> {
        let now = self.now;
        let join = self
            .join
            .as_mut()
            .filter(|j| j.peer == from && j.attempt == attempt)?;
        join.last_progress = now;
        Some(join)
    }

    pub(crate) fn on_join_failed(&mut self, from: ReplicaId, attempt: u64, why: &str) {
        if self.join_of(from, attempt).is_some() {
            self.fail_join(why);
        }
    }

    /// The joiner's hypervisor stands: round 0 copies every page.
    pub(crate) fn on_join_ready(&mut self, from: ReplicaId, attempt: u64) {
        let Some(join) = self.join_of(from, attempt) else {
            return;
        };
        if matches!(join.stage, Stage::Starting) {
            self.ledger = Ledger::all(self.config.pages);
            self.begin_round(0);
        }
    }

    fn begin_round(&mut self, round: u32) {
        let queue: Vec<PageNo> = self.ledger.owed().iter().collect();
        self.note(Note::JoinRound {
            round,
            pages: queue.len() as u32,
        });
        if let Some(join) = &mut self.join {
            join.stage = Stage::Copying {
                round,
                queue,
                next: 0,
                sent: 0,
                acked: 0,
            };
        }
        self.pump_copy();
    }

    /// Asks for as many pages as the window allows.
    fn pump_copy(&mut self) {
        let Some(join) = &mut self.join else { return };
        let Stage::Copying {
            queue,
            next,
            sent,
            acked,
            ..
        } = &mut join.stage
        else {
            return;
        };
        while *next < queue.len() && *sent - *acked < WINDOW_CHUNKS {
            let end = (*next + CHUNK_PAGES_MAX).min(queue.len());
            let pages = queue[*next..end].to_vec();
            for page in &pages {
                // Read below, before the guest's next turn; a later write is a later scan's.
                self.ledger.copied(*page);
            }
            *next = end;
            *sent += 1;
            self.reads.push_back(Asked::Join(join.attempt));
            self.out.push(Action::ReadPages(pages));
        }
    }

    pub(crate) fn join_pages_read(&mut self, attempt: u64, chunk: Vec<u8>) {
        let Some(join) = self.join.as_mut().filter(|j| j.attempt == attempt) else {
            return;
        };
        let peer = join.peer;
        let seq = join.chunks_sent;
        join.chunks_sent += 1;
        self.send_bulk(
            peer,
            Body::Copy {
                attempt,
                seq,
                chunk,
            },
        );
    }

    pub(crate) fn on_copy_ack(&mut self, from: ReplicaId, attempt: u64, chunks: u32) {
        let Some(join) = self.join_of(from, attempt) else {
            return;
        };
        let base = join.round_base;
        let done = match &mut join.stage {
            Stage::Copying {
                queue,
                next,
                sent,
                acked,
                ..
            } => {
                *acked = chunks.saturating_sub(base).min(*sent);
                *next == queue.len() && *acked == *sent
            }
            _ => false,
        };
        if done {
            join.round_base = chunks;
            self.scans.push_back(Asked::Join(attempt));
            self.out.push(Action::Scan);
        } else {
            self.pump_copy();
        }
    }

    /// A round is over; this is what was dirtied meanwhile.
    pub(crate) fn join_scanned(&mut self, attempt: u64, set: &PageSet) {
        self.ledger.owe(set);
        let Some(join) = self.join.as_mut().filter(|j| j.attempt == attempt) else {
            return;
        };
        let Stage::Copying { round, .. } = join.stage else {
            return;
        };
        // Of a small guest, an eighth: more would be no ordinary slot there.
        let few = FINAL_PAGES.min(self.config.pages / 8);
        if self.ledger.owed().len() <= few || round + 1 >= ROUNDS_MAX {
            join.stage = Stage::Final;
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
            self.propose_in_sync(ReplicaSet::of([self.config.me, peer]));
        }
    }

    // The joiner's side.

    pub(crate) fn on_join_start(&mut self, attempt: u64, policy: &str, size: (u32, u32)) {
        if !matches!(
            self.role,
            Role::Witness | Role::Joining | Role::Secondary | Role::Deposed
        ) {
            return;
        }
        let why = self.why_not_join(policy, size);
        if let (Some(leader), Some(why)) = (self.leader, why) {
            self.send_bulk(leader, Body::JoinFailed { attempt, why });
            return;
        }
        self.drop_guest();
        self.set_role(Role::Witness);
        self.set_role(Role::Joining);
        self.joined = Some(Joined {
            attempt,
            chunks: 0,
            applied: false,
        });
        self.ledger = Ledger::settled(self.config.pages);
        self.guest.power = Power::Starting;
        self.out.push(Action::StartGuest);
    }

    /// What keeps this replica from running the leader's guest: it is configured for another.
    fn why_not_join(&self, policy: &str, (pages, blocks): (u32, u32)) -> Option<String> {
        let own = self.config.policy.to_string();
        if policy != own {
            return Some(format!(
                "the [policy] of its configuration is another than the leader's: {own} instead of \
                 {policy}"
            ));
        }
        let (own_pages, own_blocks) = (self.config.pages, self.config.disk_blocks);
        ((pages, blocks) != (own_pages, own_blocks)).then(|| {
            format!(
                "the guest has {} MiB of RAM and disks of {blocks} blocks (4 KiB), this replica is \
                 configured for {} MiB and {own_blocks} blocks",
                pages.saturating_sub(blocks) / 256,
                own_pages.saturating_sub(own_blocks) / 256,
            )
        })
    }

    pub(crate) fn joiner_is_ready(&mut self) {
        let (Some(joined), Some(leader)) = (&self.joined, self.leader) else {
            return;
        };
        let attempt = joined.attempt;
        self.send_bulk(leader, Body::JoinReady { attempt });
    }

    pub(crate) fn on_copy(&mut self, attempt: u64, seq: u32, chunk: Vec<u8>) {
        let Some(leader) = self.leader else { return };
        let Some(joined) = self.joined.as_mut().filter(|j| j.attempt == attempt) else {
            return;
        };
        if seq != joined.chunks || self.role != Role::Joining {
            return;
        }
        joined.chunks += 1;
        let chunks = joined.chunks;
        self.out.push(Action::WriteChunks(vec![chunk]));
        self.send_bulk(leader, Body::CopyAck { attempt, chunks });
    }

    pub(crate) fn report_join_failed(&mut self, why: String) {
        if let (Some(joined), Some(leader)) = (&self.joined, self.leader) {
            let attempt = joined.attempt;
            self.send_bulk(leader, Body::JoinFailed { attempt, why });
        }
    }

    /// The first syncvm is applied: this replica runs the guest in step from now on.
    pub(crate) fn joiner_applied(&mut self) {
        if let Some(joined) = &mut self.joined {
            joined.applied = true;
        }
        self.set_role(Role::Secondary);
    }

    /// Whether this replica has joined and waits for the in-sync set that names it: older sets
    /// in the log do not, and must not make it drop its guest.
    pub(crate) fn joined_is_pending(&self) -> bool {
        self.joined.as_ref().is_some_and(|j| j.applied)
    }
}

#[cfg(test)]
mod tests;
