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
//! Device state is serialised while pages are hashed and compared.

mod blocks;
mod checkpoint;
mod comparing;
mod ending;
mod transfer;
mod unhashed;

use self::blocks::Narrowing;
use self::checkpoint::Copied;
use super::Leader;
use crate::api::{Action, ConsoleHold};
use crate::context::Context;
use crate::guest::Power;
use crate::jobs::Job;
use crate::log_ops::LogOp;
use apus::EntryKind;
use plover_guard::HeldSlot;
use plover_matching::Translation;
use plover_policy::SyncReason;
use plover_syncvm::subpages::SubpageMask;
use plover_syncvm::{Phase, SyncReport};
use plover_types::{Digest, Index, Micros, PageNo, PageSet, ReplicaId, SyncNo, Unconsumed, wire};

/// The stages, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Inputs before the cut are not committed yet.
    Ordering,
    Pausing,
    Scanning,
    /// Of a checkpoint: pages are copied aside.
    Copying,
    Exchanging,
    /// The subpages of divergent pages are compared.
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
    /// It repeats one that was given up.
    retry: bool,
    /// The guest was idle when its slot ended.
    idle: bool,
    stage: Stage,
    started: Micros,
    pub last_progress: Micros,
    phase: Phase,
    phase_since: Micros,
    report: SyncReport,
    /// Inputs the hypervisor had not consumed at the pause.
    refeed: Unconsumed,
    held: Option<HeldSlot>,
    device: Option<Vec<u8>>,
    /// The sequence-number translations that belong to the state at the cut.
    translations: Vec<Translation>,
    /// Own dirty pages and debt, rising, with their digests.
    own: Vec<PageNo>,
    own_digests: Option<Vec<Digest>>,
    theirs: Option<PageSet>,
    their_digests: Vec<Digest>,
    their_total: Option<u32>,
    /// Pages that only the secondary has written; they are hashed after its list has come.
    extra: Option<Vec<PageNo>>,
    divergent: Vec<PageNo>,
    narrowing: Narrowing,
    /// The differing subpages of each divergent page; empty if pages go whole.
    masks: Vec<SubpageMask>,
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

    /// Whether the secondary has acknowledged it.
    pub fn is_acknowledged(&self) -> bool {
        self.stage == Stage::Acknowledged
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

impl Leader {
    /// Ends the slot: the entry cuts the input stream on both sides, the guest is paused.
    pub(crate) fn start_sync(&mut self, cx: &mut Context, reason: SyncReason) {
        let target = if reason == SyncReason::Join {
            self.final_joiner()
        } else {
            self.secondary(cx)
        };
        let Some(peer) = target.filter(|p| cx.peers.is_linked(*p)) else {
            // It is tried again when the link is back. If the peer is lost, the consensus core says so.
            self.slot.started = cx.now;
            return;
        };
        if self.sync.is_some() || cx.guest.power != Power::Running {
            return;
        }
        // Whether every input before the cut has been fed.
        let mut fed = cx.guest.taken >= self.last_input_proposed;
        let sync = cx.group.sync_no.next();
        let index = if cx.takes_checkpoints() {
            fed = true;
            cx.group.delivered
        } else {
            let payload = wire::encode(&LogOp::Syncvm(sync));
            let Ok(viewstamp) = cx.propose(EntryKind::App, payload) else {
                self.slot.started = cx.now;
                return;
            };
            viewstamp.index
        };
        cx.group.sync_no = sync;
        let report = SyncReport {
            sync,
            reason: reason_name(reason).to_string(),
            slot: cx.now.since(self.slot.started),
            ..SyncReport::default()
        };
        self.sync = Some(LeadSync {
            sync,
            peer,
            index,
            join: reason == SyncReason::Join,
            retry: reason == SyncReason::Retry,
            idle: reason == SyncReason::Idle,
            stage: Stage::Ordering,
            started: cx.now,
            last_progress: cx.now,
            phase: Phase::Pause,
            phase_since: cx.now,
            report,
            refeed: Unconsumed::default(),
            held: None,
            device: None,
            translations: Vec::new(),
            own: Vec::new(),
            own_digests: None,
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
            self.reach_cut(cx, sync);
        }
    }

    /// Whether the guest runs on until the log reaches the cut.
    pub(crate) fn is_ordering(&self) -> bool {
        self.sync
            .as_ref()
            .is_some_and(|sync| sync.stage == Stage::Ordering)
    }

    /// Everything before the cut is fed: the guest is paused, and what comes later waits.
    pub(crate) fn reach_cut(&mut self, cx: &mut Context, number: SyncNo) {
        let now = cx.now;
        let Some(sync) = self.sync.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        if sync.stage != Stage::Ordering {
            return;
        }
        sync.stage = Stage::Pausing;
        sync.last_progress = now;
        cx.note_phase(number, Phase::Pause);
        cx.guest.pause(&mut cx.out);
    }

    /// The guest stands: its slot's outputs are complete, its memory holds still.
    pub(crate) fn on_paused(&mut self, cx: &mut Context, unconsumed: Unconsumed) {
        let now = cx.now;
        let Some(sync) = &mut self.sync else { return };
        let number = sync.sync;
        sync.refeed = unconsumed;
        sync.held = Some(cx.outputs.guard.seal(number));
        sync.translations = cx.guest.translator.translations(now);
        sync.report.matched = self.matching.cut(number, &mut cx.rules.matching);
        self.slot.printed = false;
        cx.guest.pace.begin();
        sync.stage = Stage::Scanning;
        sync.last_progress = now;
        sync.enter(Phase::Scan, now);
        cx.ask(Job::LeadSync(number), Action::Scan);
        // Memory first, as in a migration. It is also quicker: protecting pages interrupts every CPU
        // on which the hypervisor runs at the moment.
        cx.out.push(Action::SaveState);
        cx.out.push(Action::Console(ConsoleHold::Cut(number)));
        cx.note_phase(number, Phase::Scan);
    }

    fn sync_with(&mut self, from: ReplicaId, number: SyncNo) -> Option<&mut LeadSync> {
        self.sync
            .as_mut()
            .filter(|s| s.peer == from && s.sync == number)
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
