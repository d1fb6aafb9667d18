//! The leader's side of a syncvm (PLOVER §4.4), from the pause to the release.
//!
//! ```text
//!  Ordering ─▶ Pausing ─▶ Scanning ─┬▶ Exchanging ─▶ (Narrowing) ─┬▶ Transferring ─┬▶ Acknowledging ─▶ Acknowledged
//!                          COLO:     ├▶ Listing ───────────────────┘                │
//!                          Remus:    └▶ Copying ─▶ Sending ─────────────────────────┘
//!  before Acknowledged, from every stage: aborted; the guest resumes, its outputs stay held, its pages owed
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

mod checkpoint;
mod comparing;
mod ending;
mod subpages;
mod transfer;
mod unhashed;

use self::checkpoint::{Copying, Sending};
use self::comparing::Exchange;
use self::subpages::Narrowing;
use self::transfer::Transfer;
use self::unhashed::begin_listing;
use super::Leader;
use crate::api::{Action, ConsoleHold};
use crate::context::Context;
use crate::guest::Power;
use crate::hash_keys::SyncKeys;
use crate::hypervisor::Order;
use crate::jobs::Job;
use crate::log_ops::LogOp;
use apus::EntryKind;
use plover_guard::HeldSlot;
use plover_matching::Translation;
use plover_policy::SyncReason;
use plover_syncvm::message::KnownStream;
use plover_syncvm::{Phase, SyncReport};
use plover_types::{Index, Micros, PageNo, PageSet, ReplicaId, SyncNo, Unconsumed};

/// The part of a running syncvm that every stage has.
#[derive(Debug)]
pub(crate) struct Run {
    pub sync: SyncNo,
    pub peer: ReplicaId,
    pub last_progress: Micros,
    /// The cut's place in the log.
    index: Index,
    pub(super) reason: SyncReason,
    /// Drawn when the guest stands and its pages are known.
    keys: SyncKeys,
    started: Micros,
    phase: Phase,
    phase_since: Micros,
    report: SyncReport,
    /// The secondary's guest has rested in the slot that ends, and rests in the one that begins.
    rested: bool,
    rests: bool,
    /// The secondary has fetched the pages that its device reset wrote.
    fetched: bool,
}

/// The outputs, inputs and device state of the slot that was cut off, from the pause to the end mark.
#[derive(Debug)]
struct Cut {
    /// The slot's outputs.
    held: HeldSlot,
    /// Inputs that the hypervisor had not consumed at the pause. The guest gets them again when it
    /// goes on; the secondary's gets them with the state.
    refeed: Unconsumed,
    /// The sequence-number translations that belong to the state.
    translations: Vec<Translation>,
    /// The connections of the state that the next leader has to know.
    streams: Vec<KnownStream>,
    /// The device state, once it is serialised.
    device: Option<Vec<u8>>,
    /// When the guest stood.
    since: Micros,
}

/// The leader's own guest, once all that is to be sent of it has been read.
#[derive(Debug)]
enum OwnGuest {
    /// It stands until the acknowledgement, and gets these when it goes on.
    Stands(Unconsumed),
    /// It was told to go on.
    Resuming,
    Runs,
}

/// The stages, in their order, each with what it has.
#[derive(Debug)]
enum Stage {
    /// Inputs before the cut are not committed yet.
    Ordering,
    Pausing,
    Scanning(Cut),
    /// Both sides' dirty pages are hashed.
    Exchanging(Cut, Exchange),
    /// Nothing is hashed; the secondary's dirty pages are awaited.
    Listing(Cut),
    /// The subpages of divergent pages are compared.
    Narrowing(Cut, Narrowing),
    Transferring(Cut, Transfer),
    /// Of a checkpoint: pages are copied aside.
    Copying(Cut, Copying),
    /// Of a checkpoint: the copies are sent while the guest runs.
    Sending(Cut, Sending),
    /// The secondary has everything; the slot's outputs are still held.
    Acknowledging(HeldSlot, OwnGuest),
    /// Only the confirmation that the guest runs is missing.
    Acknowledged,
}

/// A running syncvm.
#[derive(Debug)]
pub(crate) struct LeadSync {
    pub run: Run,
    stage: Stage,
}

impl OwnGuest {
    /// The phase that the sync is in behind the end mark.
    fn phase(&self) -> Phase {
        match self {
            Self::Resuming => Phase::Resume,
            Self::Stands(_) | Self::Runs => Phase::Apply,
        }
    }
}

impl Run {
    /// Another phase begins, and the time of the one before it is known.
    fn enter(&mut self, phase: Phase, now: Micros) {
        let time = &mut self.report.phases[self.phase as usize];
        *time = *time + now.since(self.phase_since);
        self.phase = phase;
        self.phase_since = now;
    }

    fn is(&self, from: ReplicaId, number: SyncNo) -> bool {
        self.peer == from && self.sync == number
    }
}

impl LeadSync {
    /// Whether the guest runs on until the log reaches the cut.
    pub fn is_ordering(&self) -> bool {
        matches!(self.stage, Stage::Ordering)
    }

    /// Whether the secondary has acknowledged it.
    pub fn is_acknowledged(&self) -> bool {
        matches!(self.stage, Stage::Acknowledged)
    }

    /// Whether the next step is the secondary's: this side has done its part.
    pub fn waits_for_secondary(&self) -> bool {
        match &self.stage {
            Stage::Listing(_) | Stage::Sending(..) | Stage::Acknowledging(..) => true,
            Stage::Exchanging(_, exchange) => exchange.waits_for_theirs(),
            Stage::Narrowing(_, narrowing) => narrowing.waits_for_theirs(),
            Stage::Transferring(cut, transfer) => cut.device.is_some() && transfer.is_read(),
            Stage::Ordering
            | Stage::Pausing
            | Stage::Scanning(_)
            | Stage::Copying(..)
            | Stage::Acknowledged => false,
        }
    }

    /// The outputs of its slot, and the inputs that a guest that still stands must get again.
    pub fn into_parts(self) -> (Option<HeldSlot>, Unconsumed) {
        match self.stage {
            Stage::Ordering | Stage::Pausing | Stage::Acknowledged => (None, Unconsumed::default()),
            Stage::Scanning(cut)
            | Stage::Exchanging(cut, _)
            | Stage::Listing(cut)
            | Stage::Narrowing(cut, _)
            | Stage::Transferring(cut, _)
            | Stage::Copying(cut, _)
            | Stage::Sending(cut, _) => (Some(cut.held), cut.refeed),
            Stage::Acknowledging(held, OwnGuest::Stands(refeed)) => (Some(held), refeed),
            Stage::Acknowledging(held, _) => (Some(held), Unconsumed::default()),
        }
    }

    fn cut_mut(&mut self) -> Option<&mut Cut> {
        match &mut self.stage {
            Stage::Scanning(cut)
            | Stage::Exchanging(cut, _)
            | Stage::Listing(cut)
            | Stage::Narrowing(cut, _)
            | Stage::Transferring(cut, _)
            | Stage::Copying(cut, _)
            | Stage::Sending(cut, _) => Some(cut),
            Stage::Ordering | Stage::Pausing | Stage::Acknowledging(..) | Stage::Acknowledged => {
                None
            }
        }
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
        let rests = self.lets_rest(cx, reason);
        let index = if cx.takes_checkpoints() {
            fed = true;
            cx.group.delivered
        } else {
            let op = match rests {
                true => LogOp::SyncvmThenRest(sync),
                false => LogOp::Syncvm(sync),
            };
            let payload = op.encode(cx.group.usable_version());
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
        let run = Run {
            sync,
            peer,
            last_progress: cx.now,
            index,
            reason,
            keys: SyncKeys::xxh3([0; 32]),
            started: cx.now,
            phase: Phase::Pause,
            phase_since: cx.now,
            report,
            rested: self.slot.rests,
            rests,
            fetched: false,
        };
        let stage = Stage::Ordering;
        self.sync = Some(LeadSync { run, stage });
        if fed {
            self.reach_cut(cx, sync);
        }
    }

    /// Whether a syncvm waits for the log to reach its cut.
    pub(crate) fn is_ordering(&self) -> bool {
        self.sync.as_ref().is_some_and(LeadSync::is_ordering)
    }

    /// Everything before the cut is fed: the guest is paused, and what comes later waits.
    pub(crate) fn reach_cut(&mut self, cx: &mut Context, number: SyncNo) {
        let Some(sync) = self.running(number).filter(|sync| sync.is_ordering()) else {
            return;
        };
        sync.stage = Stage::Pausing;
        sync.run.last_progress = cx.now;
        // Inputs that come while the guest is being paused wait behind the gate.
        cx.operators.cut(number);
        cx.note_phase(number, Phase::Pause);
        cx.guest.pause(cx.now, &mut cx.out);
    }

    /// The guest stands: its slot's outputs are complete, its memory holds still.
    pub(crate) fn on_paused(&mut self, cx: &mut Context, unconsumed: Unconsumed) {
        let now = cx.now;
        let Some((number, rests)) = self.sync.as_ref().map(|it| (it.run.sync, it.run.rests)) else {
            return;
        };
        let (clean, streams) = self.cut_clean(cx, number, rests);
        let Some(LeadSync { run, stage }) = &mut self.sync else {
            return;
        };
        *stage = Stage::Scanning(Cut {
            held: cx.outputs.guard.seal(number),
            refeed: unconsumed,
            translations: cx.guest.translator.translations(now),
            streams,
            device: None,
            since: now,
        });
        run.report.matched = self.matching.cut(number, rests, &mut cx.rules.matching);
        run.report.clean = clean;
        self.slot.printed = false;
        cx.guest.pace.begin();
        run.last_progress = now;
        run.enter(Phase::Scan, now);
        if cx.config.policy.clean_replies {
            cx.out.push(Action::TellCut(number));
        }
        cx.ask(Job::LeadSync(number), Action::Scan);
        // Memory first, as in a migration.
        cx.order(Order::Save, Action::SaveState);
        cx.out.push(Action::Console(ConsoleHold::Cut(number)));
        cx.note_phase(number, Phase::Scan);
    }

    /// The pages that this guest has written are known, and owed: they are copied or compared.
    pub(crate) fn on_scanned(&mut self, cx: &mut Context, number: SyncNo, set: &PageSet) {
        cx.memory.ledger.owe(set);
        self.slot.is_due = false;
        let Some(LeadSync { mut run, stage }) = self.sync.take_if(|s| s.run.sync == number) else {
            return;
        };
        let pages: Vec<PageNo> = cx.memory.ledger.owed().iter().collect();
        run.report.dirty_leader = pages.len() as u32;
        let stage = match stage {
            Stage::Scanning(cut) if cx.takes_checkpoints() => {
                Stage::Copying(cut, Copying::begin(cx, &mut run, &pages))
            }
            Stage::Scanning(cut) if cx.sends_unhashed() => {
                begin_listing(cx, &mut run);
                Stage::Listing(cut)
            }
            Stage::Scanning(cut) => Stage::Exchanging(cut, Exchange::begin(cx, &mut run, pages)),
            stage => stage,
        };
        self.sync = Some(LeadSync { run, stage });
        self.leave_copy(cx);
    }

    pub(crate) fn on_state_saved(&mut self, cx: &mut Context, state: Vec<u8>) {
        // A state saved for a sync that was aborted comes before the next pause is confirmed.
        let cut = self.sync.as_mut().and_then(LeadSync::cut_mut);
        let Some(cut) = cut.filter(|cut| cut.device.is_none()) else {
            return;
        };
        cut.device = Some(state);
        self.leave_copy(cx);
        self.end_transfer(cx);
    }

    /// The running sync, if it is this one.
    fn running(&mut self, number: SyncNo) -> Option<&mut LeadSync> {
        self.sync.as_mut().filter(|s| s.run.sync == number)
    }

    /// The running sync, if a message of its secondary is about it.
    fn running_with(&mut self, from: ReplicaId, number: SyncNo) -> Option<&mut LeadSync> {
        self.sync.as_mut().filter(|s| s.run.is(from, number))
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
        SyncReason::Rest => "rest",
        SyncReason::Join => "join",
        SyncReason::Retry => "retry",
    }
}
