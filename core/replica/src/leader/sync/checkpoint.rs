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

use super::{LeadSync, Stage};
use crate::api::Action;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use crate::leader::join::WINDOW_CHUNKS;
use plover_syncvm::Phase;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_types::{PageNo, SyncNo, Unconsumed};
use std::collections::VecDeque;

/// Page chunks of a checkpoint, in the order of their sending.
#[derive(Debug)]
pub(super) struct Copied {
    chunks: VecDeque<Vec<u8>>,
    /// Inputs that the hypervisor had not consumed at the pause. The guest gets them again when
    /// it goes on; the secondary's gets them if it takes over.
    refeed: Unconsumed,
}

impl Leader {
    /// The ledger names what is to be sent: copies it aside.
    pub(super) fn begin_copying(&mut self, cx: &mut Context, number: SyncNo) {
        let now = cx.now;
        let pages: Vec<PageNo> = cx.memory.ledger.owed().iter().collect();
        let Some(sync) = &mut self.sync else { return };
        sync.enter(Phase::Copy, now);
        sync.stage = Stage::Copying;
        let count = pages.len() as u32;
        sync.report.dirty_leader = count;
        sync.report.union = count;
        sync.report.divergent = count;
        sync.copied = Some(Copied {
            chunks: VecDeque::new(),
            refeed: sync.refeed.clone(),
        });
        let peer = sync.peer;
        for part in pages.chunks(CHUNK_PAGES_MAX) {
            sync.chunks_asked += 1;
            let pages = part.to_vec();
            cx.ask(Job::LeadSync(number), |job| Action::ReadPages {
                job,
                pages,
            });
        }
        cx.send_bulk(peer, Body::Checkpoint { sync: number });
        cx.note_phase(number, Phase::Copy);
        self.leave_copy(cx);
    }

    /// A chunk is copied.
    pub(super) fn on_copied(&mut self, cx: &mut Context, chunk: Vec<u8>) {
        let copied = self.sync.as_mut().and_then(|sync| sync.copied.as_mut());
        if let Some(copied) = copied {
            copied.chunks.push_back(chunk);
            self.leave_copy(cx);
        }
    }

    /// Lets the guest go on as soon as pages and device state are copied.
    pub(super) fn leave_copy(&mut self, cx: &mut Context) {
        let now = cx.now;
        let is_copied = |sync: &LeadSync| {
            sync.stage == Stage::Copying
                && sync.device.is_some()
                && sync
                    .copied
                    .as_ref()
                    .is_some_and(|copied| copied.chunks.len() == sync.chunks_asked as usize)
        };
        let Some(sync) = self.sync.as_mut().filter(|sync| is_copied(sync)) else {
            return;
        };
        sync.stage = Stage::Transferring;
        sync.last_progress = now;
        sync.enter(Phase::Resume, now);
        let number = sync.sync;
        cx.note_phase(number, Phase::Transfer);
        self.begin_next_slot(cx);
        self.pump_checkpoint(cx);
    }

    /// Sends as many chunks as the window allows; ends with the end mark.
    pub(super) fn pump_checkpoint(&mut self, cx: &mut Context) {
        let now = cx.now;
        let mut messages = Vec::new();
        let Some(sync) = self
            .sync
            .as_mut()
            .filter(|sync| sync.stage == Stage::Transferring)
        else {
            return;
        };
        let (peer, number) = (sync.peer, sync.sync);
        let Some(copied) = &mut sync.copied else {
            return;
        };
        while sync.chunks_sent - sync.chunks_acked < WINDOW_CHUNKS {
            let Some(chunk) = copied.chunks.pop_front() else {
                break;
            };
            sync.report.bytes_pages += chunk.len() as u64;
            messages.push(Body::Pages {
                sync: number,
                seq: sync.chunks_sent,
                chunk,
            });
            sync.chunks_sent += 1;
        }
        let is_last = copied.chunks.is_empty();
        if is_last {
            let refeed = std::mem::take(&mut copied.refeed);
            let device = sync.device.take().unwrap_or_default();
            sync.report.bytes_device = device.len() as u64;
            sync.stage = Stage::Acknowledging;
            sync.last_progress = now;
            if sync.runs {
                sync.enter(Phase::Apply, now);
            }
            messages.push(Body::End {
                sync: number,
                chunks: sync.chunks_sent,
                device,
                refeed,
                compare: false,
                translations: std::mem::take(&mut sync.translations),
            });
        }
        for body in messages {
            cx.send_bulk(peer, body);
        }
        if is_last {
            cx.note_phase(number, Phase::Apply);
            self.break_by_canary(cx);
        }
    }
}
