//! The leader's side of a syncvm (PLOVER §4.4), from the pause to the release.
//!
//! ```text
//!  Ordering ─▶ Pausing ─▶ Scanning ─▶ Exchanging ─▶ Transferring ─▶ Acknowledging ─▶ Acknowledged
//!     └───────────┴────────────┴──────────────┴──────────────┴──────────────┴──▶ aborted: the guest
//!                                               resumes, its outputs stay held and its pages owed
//! ```
//!
//! The guest resumes with the end mark, as soon as what is to be sent has been read: until the
//! acknowledgement it runs ahead into the next slot, whose outputs wait for the next syncvm
//! anyway (MC resumes after its local copy for the same reason, PLOVER §3.3). Only where the
//! secondary must reset its devices does the leader stand until the acknowledgement, since
//! pages may still be fetched from it (docs/decisions/0003).
//!
//! The cut must lie at the same place of the input order on both sides. While the leader feeds
//! its guest at the proposal, everything before the cut is fed when the cut is proposed, and the
//! guest is paused at once. Inputs that wait for their commit come before the cut in the log, so
//! the leader waits for the cut's own commit (*Ordering*); were it to pause at once, they would
//! be in neither the state it sends nor the inputs that the other side takes after it.
//!
//! Device state is serialised while pages are scanned and hashed. Own pages are hashed while
//! the secondary's list is on its way; only pages that the secondary alone has written are
//! hashed after it.

mod blocks;
mod checkpoint;
mod unhashed;

use self::blocks::Narrowing;
use self::checkpoint::Copied;
use crate::Role;
use crate::api::{Action, Canary, Note};
use crate::guest::Power;
use crate::join::WINDOW_CHUNKS;
use crate::log_ops::LogOp;
use crate::replica::{Asked, Replica};
use apus::EntryKind;
use plover_guard::{HeldSlot, Known};
use plover_policy::{SlotCost, SlotView, SyncReason};
use plover_syncvm::blocks::BlockMask;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_syncvm::{EarlyHashes, Partial, Phase, SyncReport, compare};
use plover_types::{
    Digest, Index, Micros, PageNo, PageSet, ReplicaId, Runs, SyncNo, Unconsumed, wire,
};

/// A sync that makes no progress for this many election timeouts has lost its secondary.
const PATIENCE_TIMEOUTS: u64 = 10;

/// Stages in the order of their happening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Inputs before the cut are not committed yet.
    Ordering,
    Pausing,
    Scanning,
    /// Of a checkpoint: pages are copied aside.
    Copying,
    Exchanging,
    /// The blocks of divergent pages are compared.
    Narrowing,
    Transferring,
    Acknowledging,
    Acknowledged,
}

/// A running syncvm.
#[derive(Debug)]
pub(crate) struct LeadSync {
    pub sync: SyncNo,
    pub peer: ReplicaId,
    index: Index,
    join: bool,
    /// The guest was idle when its slot ended.
    idle: bool,
    stage: Stage,
    started: Micros,
    last_progress: Micros,
    phase: Phase,
    phase_since: Micros,
    report: SyncReport,
    /// Inputs the hypervisor had not consumed at the pause.
    refeed: Unconsumed,
    held: Option<HeldSlot>,
    device: Option<Vec<u8>>,
    /// The numbers of connections that belong to the state at the cut.
    known: Vec<Known>,
    /// Own dirty pages and debt, rising, with their digests.
    own: Vec<PageNo>,
    own_digests: Option<Vec<Digest>>,
    /// What is known of the hashes that are awaited: of `own`, then of `extra`.
    partial: Option<Partial>,
    theirs: Option<PageSet>,
    their_digests: Vec<Digest>,
    their_total: Option<u32>,
    /// Pages only the secondary has written; hashed after its list came.
    extra: Option<Vec<PageNo>>,
    divergent: Vec<PageNo>,
    narrowing: Narrowing,
    /// What differs of each divergent page; empty: they go whole.
    masks: Vec<BlockMask>,
    next: usize,
    chunks_asked: u32,
    chunks_sent: u32,
    chunks_acked: u32,
    /// The guest is known to run again.
    runs: bool,
    /// Of a checkpoint: what is copied and not yet sent.
    copied: Option<Copied>,
}

impl LeadSync {
    pub fn into_held(self) -> Option<HeldSlot> {
        self.held
    }

    fn enter(&mut self, phase: Phase, now: Micros) {
        let place = Phase::ALL
            .iter()
            .position(|p| *p == self.phase)
            .unwrap_or(0);
        self.report.phases[place] = self.report.phases[place] + now.since(self.phase_since);
        self.phase = phase;
        self.phase_since = now;
    }
}

impl Replica {
    /// The slot rule, the failed-sync repetition and the patience with a running one.
    pub(crate) fn tick_lead(&mut self) {
        if self.role != Role::Leader {
            return;
        }
        if let Some(sync) = &self.lead {
            let patience = Micros(self.config.timeout.0 * PATIENCE_TIMEOUTS);
            if sync.stage < Stage::Acknowledged && self.now.since(sync.last_progress) > patience {
                let peer = sync.peer;
                self.abort_lead("the secondary made no progress");
                self.lose_peer(peer, "a syncvm made no progress");
            }
            return;
        }
        if self.secondary().is_none() || self.pending_in_sync.is_some_and(|s| s.len() < 2) {
            return;
        }
        let view = self.slot_view();
        let reason = match self.match_view() {
            _ if self.much_written => Some(SyncReason::Written),
            Some(found) => self.compared_slot_ends(&view, &found),
            None => self.config.policy.sync.ends(&self.slot_rule, &view),
        };
        if let Some(reason) = reason {
            self.start_sync(if self.retry {
                SyncReason::Retry
            } else {
                reason
            });
        }
    }

    fn slot_view(&self) -> SlotView {
        let age = self.now.since(self.slot_started);
        SlotView {
            age,
            outputs_held: !self.guard.is_empty(),
            idle: self.guest_idle,
            goes_on: self.slot_rule.pays_to_go_on(age),
            guard_full: self.guard.is_full(),
            log_half_full: self.is_log_half_full(),
        }
    }

    pub(crate) fn is_log_half_full(&self) -> bool {
        self.apus.status().log_bytes * 2 > self.config.log_bytes_max
    }

    pub(crate) fn lead_deadline(&self) -> Micros {
        if self.role != Role::Leader {
            return Micros::NEVER;
        }
        match &self.lead {
            Some(sync) => {
                sync.last_progress + Micros(self.config.timeout.0 * PATIENCE_TIMEOUTS + 1)
            }
            None if self.secondary().is_some() && self.guest.power == Power::Running => {
                let when = self.config.policy.sync;
                let view = self.slot_view();
                match self.match_view() {
                    Some(found) => self.compared_slot_deadline(&view, &found),
                    None => self.slot_started + when.age_max(&self.slot_rule, &view),
                }
            }
            None => Micros::NEVER,
        }
    }

    /// Ends the slot: the entry cuts the input stream on both sides, the guest is paused.
    pub(crate) fn start_sync(&mut self, reason: SyncReason) {
        let target = if reason == SyncReason::Join {
            self.final_joiner()
        } else {
            self.secondary()
        };
        let Some(peer) = target.filter(|p| self.links.contains(*p)) else {
            // Tried again when the link is back; the consensus core tells if the peer is lost.
            self.slot_started = self.now;
            return;
        };
        if self.lead.is_some() || self.follow.is_some() || self.guest.power != Power::Running {
            return;
        }
        // Whether every input before the cut has been fed.
        let mut fed = self.guest.taken >= self.last_input_proposed;
        let sync = self.sync_no.next();
        let index = if self.takes_checkpoints() {
            fed = true;
            self.delivered
        } else {
            let payload = wire::encode(&LogOp::Syncvm(sync));
            let Ok(viewstamp) = self.propose(EntryKind::App, payload) else {
                self.slot_started = self.now;
                return;
            };
            viewstamp.index
        };
        self.sync_no = sync;
        let report = SyncReport {
            sync,
            reason: reason_name(reason).to_string(),
            slot: self.now.since(self.slot_started),
            ..SyncReport::default()
        };
        self.lead = Some(LeadSync {
            sync,
            peer,
            index,
            join: reason == SyncReason::Join,
            idle: reason == SyncReason::Idle,
            stage: Stage::Ordering,
            started: self.now,
            last_progress: self.now,
            phase: Phase::Pause,
            phase_since: self.now,
            report,
            refeed: Unconsumed::default(),
            held: None,
            device: None,
            known: Vec::new(),
            own: Vec::new(),
            own_digests: None,
            partial: None,
            theirs: None,
            their_digests: Vec::new(),
            their_total: None,
            extra: None,
            divergent: Vec::new(),
            narrowing: Narrowing::default(),
            masks: Vec::new(),
            next: 0,
            chunks_asked: 0,
            chunks_sent: 0,
            chunks_acked: 0,
            runs: false,
            copied: None,
        });
        if fed {
            self.lead_cut(sync);
        }
    }

    /// Whether the guest runs on until the log reaches the cut.
    pub(crate) fn is_ordering(&self) -> bool {
        self.lead
            .as_ref()
            .is_some_and(|sync| sync.stage == Stage::Ordering)
    }

    /// Everything before the cut is fed: the guest is paused, and what comes later waits.
    pub(crate) fn lead_cut(&mut self, number: SyncNo) {
        let now = self.now;
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        if sync.stage != Stage::Ordering {
            return;
        }
        sync.stage = Stage::Pausing;
        sync.last_progress = now;
        self.note_phase(number, Phase::Pause);
        self.guest.pause(&mut self.out);
    }

    /// The guest stands: its slot's outputs are complete, its memory holds still.
    pub(crate) fn lead_paused(&mut self, unconsumed: Unconsumed) {
        let now = self.now;
        let Some(sync) = &mut self.lead else { return };
        let number = sync.sync;
        sync.refeed = unconsumed;
        sync.held = Some(self.guard.seal(number));
        sync.known = self.guest.numbers.known(now);
        sync.report.matched = self.matching.cut(number);
        sync.stage = Stage::Scanning;
        sync.last_progress = now;
        sync.enter(Phase::Scan, now);
        self.out.push(Action::SaveState);
        self.scans.push_back(Asked::Lead(number));
        self.out.push(Action::Scan);
        self.note_phase(number, Phase::Scan);
    }

    pub(crate) fn lead_scanned(&mut self, number: SyncNo, set: &PageSet) {
        self.ledger.owe(set);
        self.much_written = false;
        let now = self.now;
        let key = self.config.hash_key;
        let (checkpoint, unhashed) = (self.takes_checkpoints(), self.sends_unhashed());
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        if checkpoint {
            return self.lead_copy(number);
        }
        sync.stage = Stage::Exchanging;
        sync.own = self.ledger.owed().iter().collect();
        sync.report.dirty_leader = sync.own.len() as u32;
        let peer = sync.peer;
        let pages = sync.own.clone();
        let runs = self.ledger.owed().to_runs();
        let bytes = self.send_bulk(
            peer,
            Body::Dirty {
                sync: number,
                runs,
                key,
            },
        );
        self.count_hash_bytes(bytes);
        if unhashed {
            return self.lead_waits_for_theirs(number);
        }
        if let Some(sync) = &mut self.lead {
            sync.enter(Phase::Hash, now);
            sync.report.early_made = self.early.as_ref().map_or(0, EarlyHashes::made);
        }
        self.lead_hash(&pages);
        self.note_phase(number, Phase::Hash);
    }

    /// Asks for the hashes of `pages` that are not known yet.
    fn lead_hash(&mut self, pages: &[PageNo]) {
        let key = self.config.hash_key;
        let partial = self.known_early(&key, pages);
        let Some(sync) = &mut self.lead else { return };
        let pages = partial.missing().to_vec();
        sync.report.early_kept += partial.known();
        sync.partial = Some(partial);
        self.hashes.push_back(Asked::Lead(sync.sync));
        self.out.push(Action::Hash { key, pages });
    }

    /// A part of the secondary's list.
    pub(crate) fn lead_hashes(
        &mut self,
        from: ReplicaId,
        number: SyncNo,
        runs: &Runs,
        (first, total): (u32, u32),
        digests: &[u8],
        wait: Micros,
    ) {
        let (pages, unhashed) = (self.config.pages, self.sends_unhashed());
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
            return;
        };
        if first == 0 && sync.theirs.is_none() {
            let Some(set) = runs.to_set(pages) else {
                return self.abort_lead("the secondary's dirty pages lie outside the guest");
            };
            sync.report.dirty_secondary = set.len();
            sync.theirs = Some(set);
            sync.their_total = Some(total);
            sync.report.phases[Phase::Wait as usize] = wait;
        }
        if first as usize != sync.their_digests.len() || sync.their_total != Some(total) {
            return self.abort_lead("the secondary's digests do not follow each other");
        }
        sync.their_digests.extend(Digest::of_bytes(digests));
        sync.report.bytes_hashes += digests.len() as u64 + runs.0.len() as u64 * 4;
        sync.last_progress = now;
        if unhashed {
            self.lead_takes_theirs();
        } else {
            self.try_compare();
        }
    }

    pub(crate) fn lead_hashed(&mut self, number: SyncNo, digests: &[Digest]) {
        let now = self.now;
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        let Some(partial) = sync.partial.take() else {
            return;
        };
        let digests = partial.complete(digests);
        if sync.own_digests.is_none() {
            sync.own_digests = Some(digests);
            sync.enter(Phase::Exchange, now);
            self.note_phase(number, Phase::Exchange);
        } else {
            // The digests of `extra`: merge both rising lists into the union's order.
            let extra = sync.extra.take().unwrap_or_default();
            let own = std::mem::take(&mut sync.own);
            let own_digests = sync.own_digests.take().unwrap_or_default();
            let mut union: Vec<_> = own.into_iter().zip(own_digests).collect();
            union.extend(extra.into_iter().zip(digests));
            union.sort_unstable_by_key(|(page, _)| *page);
            (sync.own, sync.own_digests) = {
                let (pages, digests): (Vec<_>, Vec<_>) = union.into_iter().unzip();
                (pages, Some(digests))
            };
            sync.extra = Some(Vec::new());
        }
        self.try_compare();
    }

    /// Compares as soon as both lists are whole.
    fn try_compare(&mut self) {
        let now = self.now;
        let Some(sync) = &mut self.lead else { return };
        let Some(theirs) = &sync.theirs else { return };
        if sync.own_digests.is_none()
            || sync.stage != Stage::Exchanging
            || sync.their_total != Some(sync.their_digests.len() as u32)
        {
            return;
        }
        if sync.extra.is_none() {
            let mut extra = theirs.clone();
            extra.subtract(self.ledger.owed());
            let extra: Vec<PageNo> = extra.iter().collect();
            // From here on the secondary's pages are owed too, should this sync fail.
            self.ledger.owe(theirs);
            sync.extra = Some(extra.clone());
            if !extra.is_empty() {
                sync.enter(Phase::Hash, now);
                return self.lead_hash(&extra);
            }
        } else if sync.extra.as_ref().is_some_and(|e| !e.is_empty()) {
            return;
        }
        sync.enter(Phase::Compare, now);
        let ours = sync.own_digests.as_deref().unwrap_or_default();
        let Some(found) = compare(&sync.own, ours, &sync.their_digests) else {
            return self.abort_lead("the hash lists are not of one length");
        };
        sync.report.union = sync.own.len() as u32;
        sync.report.same = found.same;
        sync.report.divergent = found.divergent.len() as u32;
        sync.divergent = found.divergent;
        if !self.narrow() {
            self.begin_transfer();
        }
    }

    /// What is to be sent is known.
    fn begin_transfer(&mut self) {
        let now = self.now;
        let Some(sync) = &mut self.lead else { return };
        sync.stage = Stage::Transferring;
        sync.enter(Phase::Transfer, now);
        let number = sync.sync;
        self.note_phase(number, Phase::Transfer);
        self.pump_transfer();
    }

    /// Asks for as many divergent pages as the window allows; ends with the end mark.
    fn pump_transfer(&mut self) {
        let now = self.now;
        let Some(sync) = &mut self.lead else { return };
        if sync.stage != Stage::Transferring {
            return;
        }
        while sync.next < sync.divergent.len()
            && sync.chunks_asked - sync.chunks_acked < WINDOW_CHUNKS
        {
            let end = (sync.next + CHUNK_PAGES_MAX).min(sync.divergent.len());
            let pages = &sync.divergent[sync.next..end];
            let action = match sync.masks.get(sync.next..end) {
                Some(masks) => {
                    let both = pages.iter().copied().zip(masks.iter().copied());
                    Action::ReadBlocks(both.collect())
                }
                None => Action::ReadPages(pages.to_vec()),
            };
            sync.next = end;
            sync.chunks_asked += 1;
            self.reads.push_back(Asked::Lead(sync.sync));
            self.out.push(action);
        }
        let all_sent = sync.next == sync.divergent.len() && sync.chunks_sent == sync.chunks_asked;
        if !all_sent {
            return;
        }
        let Some(device) = sync.device.clone() else {
            return;
        };
        sync.report.bytes_device = device.len() as u64;
        sync.stage = Stage::Acknowledging;
        sync.last_progress = now;
        let early = !self.config.needs_reset;
        sync.enter(if early { Phase::Resume } else { Phase::Apply }, now);
        let (peer, number, chunks) = (sync.peer, sync.sync, sync.chunks_sent);
        let refeed = sync.refeed.clone();
        let known = std::mem::take(&mut sync.known);
        let compare = self.matching.compares();
        self.send_bulk(
            peer,
            Body::End {
                sync: number,
                chunks,
                device,
                refeed,
                compare,
                known,
            },
        );
        self.note_phase(number, Phase::Apply);
        if early {
            self.lead_resume();
        }
        self.break_by_canary();
    }

    /// Puts a known bug back: the outputs go before their state is safe.
    fn break_by_canary(&mut self) {
        if self.canary(Canary::ReleaseBeforeAck) {
            if let Some(held) = self.lead.as_mut().and_then(|s| s.held.take()) {
                self.clear_for_release(held);
            }
        }
    }

    pub(crate) fn lead_pages_read(&mut self, number: SyncNo, chunk: Vec<u8>) {
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        if sync.copied.is_some() {
            return self.lead_copied(chunk);
        }
        let (peer, seq) = (sync.peer, sync.chunks_sent);
        sync.chunks_sent += 1;
        sync.report.bytes_pages += chunk.len() as u64;
        self.send_bulk(
            peer,
            Body::Pages {
                sync: number,
                seq,
                chunk,
            },
        );
        self.pump_transfer();
    }

    pub(crate) fn lead_pages_ack(&mut self, from: ReplicaId, number: SyncNo, chunks: u32) {
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
            return;
        };
        sync.chunks_acked = chunks.min(sync.chunks_sent);
        sync.last_progress = now;
        if sync.copied.is_some() {
            self.pump_checkpoint();
        } else {
            self.pump_transfer();
        }
    }

    pub(crate) fn lead_state_saved(&mut self, state: Vec<u8>) {
        let Some(sync) = &mut self.lead else { return };
        // A state saved for a sync that was aborted comes before the next pause is confirmed.
        if sync.stage > Stage::Pausing && sync.device.is_none() {
            sync.device = Some(state);
            if sync.copied.is_some() {
                self.leave_copy();
            } else {
                self.pump_transfer();
            }
        }
    }

    /// The secondary's device reset wrote pages beside those it was sent.
    pub(crate) fn lead_fetch(&mut self, from: ReplicaId, number: SyncNo, runs: &Runs) {
        let pages = self.config.pages;
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
            return;
        };
        let Some(set) = runs.to_set(pages) else {
            return self.abort_lead("the secondary fetched pages outside the guest");
        };
        if sync.stage != Stage::Acknowledging {
            return;
        }
        sync.last_progress = now;
        let list: Vec<PageNo> = set.iter().collect();
        let parts: Vec<_> = list
            .chunks(CHUNK_PAGES_MAX)
            .map(<[PageNo]>::to_vec)
            .collect();
        let count = parts.len();
        for (i, part) in parts.into_iter().enumerate() {
            self.reads
                .push_back(Asked::LeadFetch(number, i + 1 == count));
            self.out.push(Action::ReadPages(part));
        }
    }

    pub(crate) fn lead_fetch_read(&mut self, number: SyncNo, chunk: Vec<u8>, last: bool) {
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        sync.report.bytes_pages += chunk.len() as u64;
        let peer = sync.peer;
        self.send_bulk(
            peer,
            Body::Fetched {
                sync: number,
                chunk,
                last,
            },
        );
    }

    /// The secondary holds all of it: the state of this slot cannot be lost any more.
    pub(crate) fn lead_ack(&mut self, from: ReplicaId, number: SyncNo) {
        let now = self.now;
        let Some(sync) = self.lead_of(from, number) else {
            return;
        };
        if sync.stage != Stage::Acknowledging {
            return;
        }
        sync.stage = Stage::Acknowledged;
        sync.last_progress = now;
        sync.enter(Phase::Release, now);
        let (index, join, peer) = (sync.index, sync.join, sync.peer);
        let held = sync.held.take();
        self.note_phase(number, Phase::Release);
        self.ledger.settle();
        self.retry = false;
        self.matching.acknowledged(number);
        if let Some(held) = held {
            let outputs = self.clear_for_release(held) as u32;
            if let Some(sync) = &mut self.lead {
                sync.report.outputs = outputs;
            }
        }
        self.apus.trim(index);
        if join {
            self.join_synced(peer);
        }
        if self.guest.power == Power::Paused {
            self.lead_resume();
        }
        self.release_what_is_safe();
        if let Some(sync) = &mut self.lead {
            sync.enter(Phase::Resume, now);
        }
        self.finish_lead();
    }

    /// The next slot begins.
    fn lead_resume(&mut self) {
        let Some(sync) = &mut self.lead else { return };
        let refeed = std::mem::take(&mut sync.refeed);
        let (idle, before) = (sync.idle, self.out.len());
        self.resume_guest(refeed);
        // What it is fed now it may answer at once.
        let fed = |action: &Action| matches!(action, Action::Feed(_) | Action::Operate(_));
        self.idleness_unproven = idle && !self.out.iter().skip(before).any(fed);
        self.slot_started = self.now;
        self.early = None;
        self.slot_rule.begin();
        self.guest_idle = false;
        self.idle.disturb();
    }

    /// The guest runs again.
    pub(crate) fn lead_resumed(&mut self) {
        let now = self.now;
        let Some(sync) = self
            .lead
            .as_mut()
            .filter(|s| s.stage >= Stage::Transferring)
        else {
            return;
        };
        if !sync.runs {
            sync.runs = true;
            sync.report.pause = now.since(sync.started);
            let next = if sync.stage == Stage::Transferring {
                Phase::Transfer
            } else {
                Phase::Apply
            };
            sync.enter(next, now);
        }
        self.finish_lead();
    }

    /// The sync is over when it is acknowledged and the guest runs.
    fn finish_lead(&mut self) {
        let over = |s: &LeadSync| s.runs && s.stage == Stage::Acknowledged;
        if !self.lead.as_ref().is_some_and(over) {
            return;
        }
        let Some(mut sync) = self.lead.take() else {
            return;
        };
        sync.enter(Phase::Idle, self.now);
        let report = &sync.report;
        self.slot_rule.learn(&SlotCost {
            slot: report.slot,
            pause: report.pause,
            outputs: report.outputs + report.matched,
        });
        if !sync.join {
            self.early_learn(&sync.report);
        }
        self.note(Note::Synced(Box::new(sync.report)));
    }

    /// Gives a running sync up: the guest goes on, nothing is released, nothing forgotten.
    pub(crate) fn abort_lead(&mut self, why: &str) {
        let Some(mut sync) = self.lead.take() else {
            return;
        };
        if sync.stage == Stage::Acknowledged {
            // Only the confirmation that the guest runs was missing.
            return;
        }
        self.note(Note::SyncFailed {
            sync: sync.sync,
            why: why.to_string(),
        });
        self.retry = true;
        self.matching.stop();
        if let Some(held) = sync.held.take() {
            self.guard.reopen(held);
        }
        if self.canary(Canary::DirtyBitsLost) {
            self.ledger.settle();
        }
        self.slot_started = self.now;
        self.early = None;
        self.slot_rule.begin();
        self.guest_idle = false;
        match self.guest.power {
            Power::Pausing => self.guest.resume_when_paused = true,
            Power::Paused => self.resume_guest(sync.refeed),
            Power::Off | Power::Starting | Power::Running => {}
        }
    }

    fn lead_of(&mut self, from: ReplicaId, number: SyncNo) -> Option<&mut LeadSync> {
        self.lead
            .as_mut()
            .filter(|s| s.peer == from && s.sync == number)
    }

    fn count_hash_bytes(&mut self, bytes: u64) {
        if let Some(sync) = &mut self.lead {
            sync.report.bytes_hashes += bytes;
        }
    }
}

fn reason_name(reason: SyncReason) -> &'static str {
    match reason {
        SyncReason::Idle => "idle",
        SyncReason::Longest => "longest",
        SyncReason::Interval => "interval",
        SyncReason::Output => "output",
        SyncReason::Differ => "differ",
        SyncReason::Unmatched => "unmatched",
        SyncReason::GuardFull => "guard_full",
        SyncReason::LogFull => "log_full",
        SyncReason::Written => "written",
        SyncReason::Quiet => "quiet",
        SyncReason::Join => "join",
        SyncReason::Retry => "retry",
    }
}
