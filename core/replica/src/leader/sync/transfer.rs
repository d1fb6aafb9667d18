//! The divergent pages are sent, as fast as the secondary acknowledges them. The device state follows: the
//! end mark.

use super::{Cut, LeadSync, OwnGuest, Run, Stage};
use crate::api::Action;
use crate::canary::canary;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use crate::leader::join::WINDOW_CHUNKS;
use plover_syncvm::Phase;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_syncvm::subpages::SubpageMask;
use plover_types::{PageNo, ReplicaId, Runs, SyncNo};

/// The divergent pages, and how far they are sent.
#[derive(Debug)]
pub(super) struct Transfer {
    pages: Vec<PageNo>,
    /// The differing subpages of each page; empty if pages go whole.
    masks: Vec<SubpageMask>,
    /// The first page that was not asked for yet.
    next: usize,
    /// Chunks that were read, sent, acknowledged.
    asked: u32,
    sent: u32,
    acked: u32,
}

impl Transfer {
    /// Whether all pages that were asked for are read, and sent.
    pub fn is_read(&self) -> bool {
        self.sent == self.asked
    }

    fn is_all_sent(&self) -> bool {
        self.next == self.pages.len() && self.is_read()
    }
}

impl Run {
    pub(super) fn send_pages(&mut self, cx: &mut Context, seq: u32, chunk: Vec<u8>) {
        let sync = self.sync;
        self.report.bytes_pages += chunk.len() as u64;
        cx.send_bulk(self.peer, Body::Pages { sync, seq, chunk });
    }
}

impl Leader {
    /// The divergent pages are known: they are sent.
    pub(super) fn transfer(
        &mut self,
        cx: &mut Context,
        mut run: Run,
        cut: Cut,
        pages: Vec<PageNo>,
        masks: Vec<SubpageMask>,
    ) {
        run.enter(Phase::Transfer, cx.now);
        cx.note_phase(run.sync, Phase::Transfer);
        let transfer = Transfer {
            pages,
            masks,
            next: 0,
            asked: 0,
            sent: 0,
            acked: 0,
        };
        let stage = Stage::Transferring(cut, transfer);
        self.sync = Some(LeadSync { run, stage });
        self.pump_transfer(cx);
    }

    /// Asks for as many divergent pages as the window allows; ends with the end mark.
    fn pump_transfer(&mut self, cx: &mut Context) {
        let Some(LeadSync {
            run,
            stage: Stage::Transferring(_, transfer),
        }) = &mut self.sync
        else {
            return;
        };
        while transfer.next < transfer.pages.len()
            && transfer.asked - transfer.acked < WINDOW_CHUNKS
        {
            let end = (transfer.next + CHUNK_PAGES_MAX).min(transfer.pages.len());
            let part = transfer.next..end;
            let pages = &transfer.pages[part.clone()];
            let job = Job::LeadSync(run.sync);
            match transfer.masks.get(part) {
                Some(masks) => {
                    let both = pages.iter().copied().zip(masks.iter().copied());
                    let pages = both.collect();
                    cx.ask(job, |job| Action::ReadSubpages { job, pages });
                }
                None => {
                    let pages = pages.to_vec();
                    cx.ask(job, |job| Action::ReadPages { job, pages });
                }
            }
            transfer.next = end;
            transfer.asked += 1;
        }
        self.end_transfer(cx);
    }

    /// Sends the end mark, once all pages are sent and the device state is there.
    pub(super) fn end_transfer(&mut self, cx: &mut Context) {
        let over = |sync: &mut LeadSync| match &sync.stage {
            Stage::Transferring(cut, transfer) => cut.device.is_some() && transfer.is_all_sent(),
            Stage::Sending(_, sending) => sending.is_over(),
            _ => false,
        };
        let Some(LeadSync { mut run, stage }) = self.sync.take_if(over) else {
            return;
        };
        let needs_reset = cx.config.needs_reset;
        let (cut, chunks, guest, resume) = match stage {
            Stage::Transferring(cut, transfer) if needs_reset => {
                let guest = OwnGuest::Stands(cut.refeed.clone());
                (cut, transfer.sent, guest, None)
            }
            Stage::Transferring(cut, transfer) => {
                let resume = cut.refeed.clone();
                (cut, transfer.sent, OwnGuest::Resuming, Some(resume))
            }
            Stage::Sending(cut, sending) => (cut, sending.sent, sending.guest, None),
            stage => return self.sync = Some(LeadSync { run, stage }),
        };
        let device = cut.device.unwrap_or_default();
        run.report.bytes_device = device.len() as u64;
        run.last_progress = cx.now;
        run.enter(guest.phase(), cx.now);
        let number = run.sync;
        if self.partner == Some(run.peer) {
            cx.tell_reset_pages(run.peer);
        }
        self.send_streams(cx, run.peer, number, cut.streams);
        let end = Body::End {
            sync: number,
            chunks,
            device,
            age: cx.now.since(cut.since),
            refeed: cut.refeed,
            compare: self.matching.compares(),
            translations: cut.translations,
        };
        cx.send_bulk(run.peer, end);
        cx.note_phase(number, Phase::Apply);
        let stage = Stage::Acknowledging(cut.held, guest);
        self.sync = Some(LeadSync { run, stage });
        if let Some(refeed) = resume {
            self.begin_next_slot(cx, refeed);
        }
        self.break_by_canary(cx, number);
    }

    /// Puts a known bug back: the outputs go before their state is safe.
    fn break_by_canary(&mut self, cx: &mut Context, number: SyncNo) {
        if canary!(cx, ReleaseBeforeAck) {
            if let Some(LeadSync {
                stage: Stage::Acknowledging(held, _),
                ..
            }) = &mut self.sync
            {
                let held = std::mem::replace(held, cx.outputs.guard.seal(number));
                self.clear_for_release(cx, held);
            }
        }
    }

    pub(crate) fn on_pages_read(&mut self, cx: &mut Context, number: SyncNo, chunk: Vec<u8>) {
        let now = cx.now;
        let Some(LeadSync { run, stage }) = self.running(number) else {
            return;
        };
        run.last_progress = now;
        match stage {
            Stage::Transferring(_, transfer) => {
                run.send_pages(cx, transfer.sent, chunk);
                transfer.sent += 1;
                self.pump_transfer(cx);
            }
            Stage::Copying(_, copying) => {
                copying.push(chunk);
                self.leave_copy(cx);
            }
            _ => {}
        }
    }

    /// The secondary has staged so many chunks.
    pub(crate) fn on_pages_ack(
        &mut self,
        cx: &mut Context,
        from: ReplicaId,
        number: SyncNo,
        chunks: u32,
    ) {
        let now = cx.now;
        let Some(LeadSync { run, stage }) = self.running_with(from, number) else {
            return;
        };
        let (acked, sent) = match stage {
            Stage::Transferring(_, transfer) => (&mut transfer.acked, transfer.sent),
            Stage::Sending(_, sending) => (&mut sending.acked, sending.sent),
            _ => return,
        };
        // Only what is news puts off the end of a sync that does not get on.
        if chunks.min(sent) > *acked {
            *acked = chunks.min(sent);
            run.last_progress = now;
            self.pump_transfer(cx);
            self.pump_checkpoint(cx);
        }
    }

    /// The secondary's device reset wrote pages beside those it was sent.
    pub(crate) fn on_fetch(
        &mut self,
        cx: &mut Context,
        from: ReplicaId,
        number: SyncNo,
        runs: &Runs,
    ) {
        let pages = cx.config.layout.pages();
        let now = cx.now;
        let Some(LeadSync {
            run,
            stage: Stage::Acknowledging(..),
        }) = self.running_with(from, number)
        else {
            return;
        };
        if std::mem::replace(&mut run.fetched, true) {
            return cx.cut_link(
                from,
                "two lists of pages that its device reset wrote, in one syncvm",
            );
        }
        run.last_progress = now;
        let Some(set) = runs.to_set(pages) else {
            cx.cut_link(from, "a list of pages outside the guest, to fetch");
            return self.abort_sync(cx, "the secondary fetched pages outside the guest");
        };
        let list: Vec<PageNo> = set.iter().collect();
        let parts = list.chunks(CHUNK_PAGES_MAX);
        let count = parts.len();
        for (i, part) in parts.enumerate() {
            let pages = part.to_vec();
            let job = Job::LeadFetch(number, i + 1 == count);
            cx.ask(job, |job| Action::ReadPages { job, pages });
        }
    }

    pub(crate) fn on_fetch_read(
        &mut self,
        cx: &mut Context,
        sync: SyncNo,
        chunk: Vec<u8>,
        last: bool,
    ) {
        let Some(LeadSync { run, .. }) = self.running(sync) else {
            return;
        };
        run.report.bytes_pages += chunk.len() as u64;
        let fetched = Body::Fetched { sync, chunk, last };
        cx.send_bulk(run.peer, fetched);
    }
}
