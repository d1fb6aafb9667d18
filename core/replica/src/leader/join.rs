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
//!  a second one, where devices are reset ────────▶ the same
//!  in-sync set = both (the log)
//! ```
//!
//! A secondary whose host is drained is replaced in the same way, while it stays in step: its syncs go on
//! between the rounds, and the last entry names the joiner instead of it. It stands during the final syncvm, whose
//! cut is in its log too. Outputs of that slot wait for the first sync after the entry is committed, for until
//! then the old secondary may have to lead.
//!
//! Until the in-sync set is committed nothing depends on the joiner, so any failure simply ends
//! the attempt and another one begins a little later, with what has been copied where that is still
//! there. A leader that was the secondary before has kept a witness warm (`secondary::warm`): its round 0
//! copies the pages that the warm copy lacks. Any other leader compares hashes first, and round 0 copies the
//! pages that the joiner's old disks and memory do not hold already (`copy::stream`).

use super::Leader;
use crate::api::{Action, Note};
use crate::canary::canary;
use crate::context::Context;
use crate::jobs::Job;
use plover_policy::SyncReason;
use plover_syncvm::Ledger;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{Micros, PageNo, PageSet, ReplicaId, ReplicaSet};

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

/// How long after a failed attempt the next one begins, with another peer if there is one: the same one is asked again later
/// each time (`peers`).
const BACKOFF: Micros = Micros::from_ms(500);

/// The leader's side of an attempt; the pages go over its [`crate::copy::stream::Stream`].
#[derive(Debug)]
pub(crate) struct LeadJoin {
    pub peer: ReplicaId,
    pub attempt: u64,
    stage: Stage,
    /// It is to replace a secondary that is in sync, and the final syncvm is due.
    replaces: bool,
}

#[cfg(test)]
impl LeadJoin {
    /// An attempt whose final syncvm runs, and which is to replace a secondary.
    pub(super) fn replacing(peer: ReplicaId) -> Self {
        Self {
            peer,
            attempt: 1,
            stage: Stage::Final,
            replaces: true,
        }
    }

    /// The same of an attempt that replaces nobody.
    pub(super) fn ending(peer: ReplicaId) -> Self {
        Self {
            replaces: false,
            ..Self::replacing(peer)
        }
    }

    /// An attempt whose first round is being copied.
    pub(super) fn copying(peer: ReplicaId) -> Self {
        Self {
            stage: Stage::Copying { round: 0 },
            ..Self::ending(peer)
        }
    }
}

#[derive(Debug)]
enum Stage {
    /// The joiner starts its hypervisor.
    Starting,
    /// The joiner's older copy is compared, page by page.
    Comparing,
    /// A round is being copied.
    Copying { round: u32 },
    /// A round is over; the pages dirtied meanwhile are being collected.
    Scanning { round: u32 },
    /// The final syncvm runs. Where devices are reset, it is the first of two: it brings the guest's queues, and
    /// with the second the joiner learns which pages their reset writes (`follow::resetting`).
    Final,
    /// The second of them runs.
    Settling,
}

impl Leader {
    /// Starts an attempt when this leader is solo and a peer can join; gives up an attempt that makes no
    /// progress.
    pub(crate) fn tick_join(&mut self, cx: &mut Context) {
        if self.join.is_some() {
            if cx.now.since(self.join_progress(cx)) > PATIENCE {
                self.fail_join(cx, "it made no progress");
            } else {
                self.pump_join(cx);
            }
            return;
        }
        if !self.wants_a_joiner(cx) || cx.now < self.next_join_at {
            return;
        }
        let ready = cx.peers.ready_for_a_copy(cx.now);
        let candidates = ReplicaSet(ready.0 & !cx.group.in_sync.0 & cx.voters().0);
        // A drained host is better than no second host.
        let wanted = ReplicaSet(candidates.0 & !cx.spared().0);
        let candidates = if wanted.is_empty() {
            candidates
        } else {
            wanted
        };
        // The peer with the warm copy comes first, unless it has been tried in vain.
        let warm = cx.peers.copy().filter(|stream| !stream.failed);
        let warm = warm
            .map(|stream| stream.peer)
            .filter(|p| candidates.contains(*p));
        let warm = warm.or_else(|| cx.newcomer().filter(|new| candidates.contains(*new)));
        // Each attempt takes another peer, so that one broken host does not stop protection.
        let turn = cx.copies.opened as usize % candidates.len().max(1);
        let Some(peer) = warm.or_else(|| candidates.iter().nth(turn)) else {
            return;
        };
        cx.note(Note::JoinBegun { peer });
        let attempt = cx.open_copy(peer, CopyPurpose::Join);
        self.join = Some(LeadJoin {
            peer,
            attempt,
            stage: Stage::Starting,
            replaces: false,
        });
    }

    /// Whether a replica is to join: none is in sync, or the one that is should be replaced.
    fn wants_a_joiner(&self, cx: &Context) -> bool {
        self.serving && (self.is_solo(cx) || self.replaces_secondary(cx))
    }

    /// Whether the running attempt is this one.
    pub(crate) fn joins_with(&self, attempt: u64) -> bool {
        self.join
            .as_ref()
            .is_some_and(|join| join.attempt == attempt)
    }

    /// When the joiner was last heard of. In the final syncvm it says nothing of the copy.
    fn join_progress(&self, cx: &Context) -> Micros {
        let stream = cx.peers.copy();
        let copied = stream.map_or(Micros::ZERO, |stream| stream.last_progress);
        let joiner = self.final_joiner();
        let sync = self.sync.as_ref();
        let sync = sync.filter(|sync| Some(sync.run.peer) == joiner);
        copied.max(sync.map_or(Micros::ZERO, |sync| sync.run.last_progress))
    }

    pub(crate) fn join_deadline(&self, cx: &Context) -> Micros {
        match &self.join {
            Some(_) => self.join_progress(cx) + PATIENCE + Micros(1),
            None if self.wants_a_joiner(cx) => {
                let retry = Some(self.next_join_at).filter(|at| *at > cx.now);
                let refused = cx.peers.refusal_deadline(cx.now);
                retry.unwrap_or(Micros::NEVER).min(refused)
            }
            None => Micros::NEVER,
        }
    }

    pub(crate) fn fail_join(&mut self, cx: &mut Context, why: &str) {
        let Some(join) = self.join.take() else { return };
        if self.sync.as_ref().is_some_and(|s| s.run.peer == join.peer) {
            self.abort_sync(cx, why);
        }
        if join.replaces {
            // The secondary stands at the joiner's cut: its next sync lets it go on.
            self.slot.is_due = true;
        } else if self.secondary(cx).is_none() {
            // The joiner may have acknowledged the first of two syncvms, and will report nothing.
            self.matching.stop();
        }
        if let Some(stream) = cx.peers.copy_mut() {
            // The next attempt may go on with the pages that were copied.
            stream.is_open = false;
            stream.failed = true;
        }
        self.slot.is_retry = false;
        self.next_join_at = cx.now + BACKOFF;
        // The guest stands in each final syncvm, and clients wait for one that fails: not again and again.
        cx.peers.refused(join.peer, cx.now);
        // It may have been slow and nothing else, and would go on waiting for this leader.
        let (attempt, reason) = (join.attempt, why.to_string());
        cx.send_bulk(
            join.peer,
            Body::CopyFailed {
                attempt,
                why: reason,
            },
        );
        cx.note(Note::JoinFailed {
            peer: join.peer,
            why: why.to_string(),
        });
    }

    /// The joiner's hypervisor stands: its pages are compared, and round 0 copies those that differ.
    pub(crate) fn join_opened(&mut self, cx: &mut Context, attempt: u64, warm: bool) {
        let Some(join) = self.join.as_mut().filter(|j| j.attempt == attempt) else {
            return;
        };
        if matches!(join.stage, Stage::Starting) {
            join.stage = Stage::Comparing;
            let peer = join.peer;
            cx.note(Note::JoinOpened { peer, warm });
        }
    }

    /// Goes on as far as the windows allow.
    fn pump_join(&mut self, cx: &mut Context) {
        let (Some(join), Some(stream)) = (&mut self.join, cx.peers.copy_mut()) else {
            return;
        };
        let attempt = join.attempt;
        match join.stage {
            Stage::Starting | Stage::Scanning { .. } => {}
            Stage::Comparing if stream.is_comparing() => cx.pump_comparing(WINDOW_COMPARISONS),
            Stage::Comparing => self.begin_round(cx, 0),
            Stage::Copying { round } => {
                cx.pump_copy(WINDOW_CHUNKS as usize);
                self.end_round(cx, attempt, round);
            }
            // The final syncvm failed or could not start yet.
            Stage::Final | Stage::Settling if self.sync.is_none() => {
                cx.memory.ledger.owe(stream.owed());
                self.start_sync(cx, SyncReason::Join);
            }
            Stage::Final | Stage::Settling => {}
        }
    }

    fn begin_round(&mut self, cx: &mut Context, round: u32) {
        let (Some(join), Some(stream)) = (&mut self.join, cx.peers.copy_mut()) else {
            return;
        };
        join.stage = Stage::Copying { round };
        let pages = stream.begin_sweep(PageNo(0));
        cx.note(Note::JoinRound { round, pages });
        self.pump_join(cx);
    }

    /// Scans for the pages that were dirtied meanwhile, once all of a round is acknowledged.
    fn end_round(&mut self, cx: &mut Context, attempt: u64, round: u32) {
        let (Some(join), Some(stream)) = (&mut self.join, cx.peers.copy()) else {
            return;
        };
        // Pages that a scan finds during a sync with the secondary would be settled with that sync, unsent.
        if stream.is_settled() && self.sync.is_none() {
            join.stage = Stage::Scanning { round };
            cx.ask(Job::JoinRound(attempt), Action::Scan);
        }
    }

    /// A round is over, and the stream knows the pages that were dirtied meanwhile.
    pub(crate) fn join_scanned(&mut self, cx: &mut Context, attempt: u64) {
        let (Some(join), Some(stream)) = (&mut self.join, cx.peers.copy()) else {
            return;
        };
        let Stage::Scanning { round } = join.stage else {
            return;
        };
        if join.attempt != attempt {
            return;
        }
        // Of a small guest, an eighth of its pages: more would be no ordinary slot there.
        let few = FINAL_PAGES.min(cx.config.layout.pages() / 8);
        if stream.owed().len() <= few || round + 1 >= ROUNDS_MAX {
            join.stage = Stage::Final;
            // Pages whose dirty bits the sync clears stay owed to the stream, too, until the sync is
            // acknowledged.
            join.replaces = cx.group.in_sync.len() > 1;
            if !join.replaces {
                cx.memory.ledger = Ledger::settled(cx.config.layout.pages());
            }
            cx.memory.ledger.owe(stream.owed());
            self.start_sync(cx, SyncReason::Join);
        } else {
            self.begin_round(cx, round + 1);
        }
    }

    /// The peer of the attempt whose final syncvm is due.
    pub(crate) fn final_joiner(&self) -> Option<ReplicaId> {
        self.join
            .as_ref()
            .filter(|j| matches!(j.stage, Stage::Final | Stage::Settling))
            .map(|j| j.peer)
    }

    /// A round's scan has cleared dirty bits that the next sync with the secondary would have found.
    pub(crate) fn owe_secondary(&mut self, cx: &mut Context, set: &PageSet) {
        if cx.group.in_sync.len() > 1 {
            cx.memory.ledger.owe(set);
        }
    }

    /// Whether the final syncvm of a joiner is due that replaces a secondary. Until the log names the joiner, pages that
    /// this side owes to one of the two it owes to the other as well.
    pub(crate) fn is_replacing(&self) -> bool {
        self.join.as_ref().is_some_and(|join| join.replaces)
    }

    /// The final syncvm is acknowledged. After the last one the joiner is to be in the in-sync set.
    pub(crate) fn join_synced(&mut self, cx: &mut Context, peer: ReplicaId) {
        let Some(join) = self.join.as_mut().filter(|join| join.peer == peer) else {
            return;
        };
        let resets = cx.config.needs_reset && !cx.takes_checkpoints();
        if resets && matches!(join.stage, Stage::Final) && !canary!(cx, JoinAtOnce) {
            join.stage = Stage::Settling;
            if let Some(stream) = cx.peers.copy_mut() {
                stream.last_progress = cx.now;
            }
            return;
        }
        self.settles = join.replaces;
        self.join = None;
        cx.peers.end_copy();
        let both = ReplicaSet::of([cx.config.me, peer]);
        self.propose_in_sync(cx, both);
    }
}
