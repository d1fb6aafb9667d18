//! The leader's side of a sync whose secondary stands still: a checkpoint (Remus, MC; PLOVER §3.3).
//!
//! ```text
//!  Pausing ─▶ Scanning ─▶ Copying ─▶ Transferring ─▶ Acknowledging ─▶ Acknowledged
//!     └────────────┴──────────┴────────────┴───────────────┴──▶ aborted: as any sync
//!                             guest stands │ guest runs
//! ```
//!
//! There is nothing to compare: every page that the guest has written since the last checkpoint
//! goes. So the pages are copied aside while the guest stands, the guest goes on, and then they
//! are sent (MC's *copy* and *transfer*). Outputs wait for the acknowledgement as always.
//!
//! Inputs are not in the log, so a checkpoint needs no place in it either: its acknowledgement concerns
//! only the two replicas that hold the state. The view and the lease guard it as they guard a syncvm, and a
//! majority still decides which of the two may lead.

use super::{LeadSync, OwnGuest, Run, Stage};
use crate::api::Action;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use crate::leader::join::WINDOW_CHUNKS;
use plover_syncvm::Phase;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_types::PageNo;
use std::collections::VecDeque;

/// Page chunks as they are copied aside, in the order of their sending.
#[derive(Debug)]
pub(super) struct Copying {
    asked: usize,
    chunks: VecDeque<Vec<u8>>,
}

/// The copies that are not sent yet, and how far the secondary is; the guest goes on meanwhile.
#[derive(Debug)]
pub(super) struct Sending {
    chunks: VecDeque<Vec<u8>>,
    pub sent: u32,
    pub acked: u32,
    pub guest: OwnGuest,
}

impl Copying {
    /// Has everything copied that the guest has written.
    pub fn begin(cx: &mut Context, run: &mut Run, pages: &[PageNo]) -> Self {
        run.enter(Phase::Copy, cx.now);
        run.report.union = pages.len() as u32;
        run.report.divergent = pages.len() as u32;
        let parts = pages.chunks(CHUNK_PAGES_MAX);
        let asked = parts.len();
        for part in parts {
            let pages = part.to_vec();
            let job = Job::LeadSync(run.sync);
            cx.ask(job, |job| Action::ReadPages { job, pages });
        }
        cx.send_bulk(run.peer, Body::Checkpoint { sync: run.sync });
        cx.note_phase(run.sync, Phase::Copy);
        Self {
            asked,
            chunks: VecDeque::new(),
        }
    }

    pub fn push(&mut self, chunk: Vec<u8>) {
        self.chunks.push_back(chunk);
    }
}

impl Sending {
    pub fn is_over(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl Leader {
    /// Lets the guest go on as soon as pages and device state are copied.
    pub(super) fn leave_copy(&mut self, cx: &mut Context) {
        let whole = |sync: &mut LeadSync| match &sync.stage {
            Stage::Copying(cut, copying) => {
                cut.device.is_some() && copying.chunks.len() == copying.asked
            }
            _ => false,
        };
        let Some(LeadSync {
            mut run,
            stage: Stage::Copying(cut, Copying { chunks, .. }),
        }) = self.sync.take_if(whole)
        else {
            return;
        };
        run.last_progress = cx.now;
        run.enter(Phase::Resume, cx.now);
        cx.note_phase(run.sync, Phase::Transfer);
        let refeed = cut.refeed.clone();
        let sending = Sending {
            chunks,
            sent: 0,
            acked: 0,
            guest: OwnGuest::Resuming,
        };
        let stage = Stage::Sending(cut, sending);
        self.sync = Some(LeadSync { run, stage });
        self.begin_next_slot(cx, refeed);
        self.pump_checkpoint(cx);
    }

    /// Sends as many chunks as the window allows; ends with the end mark.
    pub(super) fn pump_checkpoint(&mut self, cx: &mut Context) {
        let Some(LeadSync {
            run,
            stage: Stage::Sending(_, sending),
        }) = &mut self.sync
        else {
            return;
        };
        while sending.sent - sending.acked < WINDOW_CHUNKS {
            let Some(chunk) = sending.chunks.pop_front() else {
                break;
            };
            run.send_pages(cx, sending.sent, chunk);
            sending.sent += 1;
        }
        self.end_transfer(cx);
    }
}
