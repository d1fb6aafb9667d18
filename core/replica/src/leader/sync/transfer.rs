//! The divergent pages are sent, as fast as the secondary acknowledges them. The device state follows: the
//! end mark.

use super::Stage;
use crate::api::Action;
use crate::canary::canary;
use crate::context::Context;
use crate::jobs::Job;
use crate::leader::Leader;
use crate::leader::join::WINDOW_CHUNKS;
use plover_syncvm::Phase;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_types::{PageNo, ReplicaId, Runs, SyncNo};

impl Leader {
    /// The divergent pages are known: they are sent.
    pub(super) fn begin_transfer(&mut self, cx: &mut Context) {
        let now = cx.now;
        let Some(sync) = &mut self.sync else { return };
        sync.stage = Stage::Transferring;
        sync.enter(Phase::Transfer, now);
        let number = sync.sync;
        cx.note_phase(number, Phase::Transfer);
        self.pump_transfer(cx);
    }

    /// Asks for as many divergent pages as the window allows; ends with the end mark.
    pub(super) fn pump_transfer(&mut self, cx: &mut Context) {
        let now = cx.now;
        let Some(sync) = &mut self.sync else { return };
        if sync.stage != Stage::Transferring {
            return;
        }
        while sync.next < sync.divergent.len()
            && sync.chunks_asked - sync.chunks_acked < WINDOW_CHUNKS
        {
            let end = (sync.next + CHUNK_PAGES_MAX).min(sync.divergent.len());
            let pages = &sync.divergent[sync.next..end];
            let job = Job::LeadSync(sync.sync);
            match sync.masks.get(sync.next..end) {
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
            sync.next = end;
            sync.chunks_asked += 1;
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
        let early = !cx.config.needs_reset;
        sync.enter(if early { Phase::Resume } else { Phase::Apply }, now);
        let (peer, number, chunks) = (sync.peer, sync.sync, sync.chunks_sent);
        let refeed = sync.refeed.clone();
        let translations = std::mem::take(&mut sync.translations);
        let compare = self.matching.compares();
        cx.send_bulk(
            peer,
            Body::End {
                sync: number,
                chunks,
                device,
                refeed,
                compare,
                translations,
            },
        );
        cx.note_phase(number, Phase::Apply);
        if early {
            self.begin_next_slot(cx);
        }
        self.break_by_canary(cx);
    }

    /// Puts a known bug back: the outputs go before their state is safe.
    pub(super) fn break_by_canary(&mut self, cx: &mut Context) {
        if canary!(cx, ReleaseBeforeAck) {
            if let Some(held) = self.sync.as_mut().and_then(|s| s.held.take()) {
                self.clear_for_release(cx, held);
            }
        }
    }

    pub(crate) fn on_pages_read(&mut self, cx: &mut Context, number: SyncNo, chunk: Vec<u8>) {
        let now = cx.now;
        let Some(sync) = self.sync.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        sync.last_progress = now;
        if sync.copied.is_some() {
            return self.on_copied(cx, chunk);
        }
        let (peer, seq) = (sync.peer, sync.chunks_sent);
        sync.chunks_sent += 1;
        sync.report.bytes_pages += chunk.len() as u64;
        cx.send_bulk(
            peer,
            Body::Pages {
                sync: number,
                seq,
                chunk,
            },
        );
        self.pump_transfer(cx);
    }

    pub(crate) fn on_pages_ack(
        &mut self,
        cx: &mut Context,
        from: ReplicaId,
        number: SyncNo,
        chunks: u32,
    ) {
        let now = cx.now;
        let Some(sync) = self.sync_with(from, number) else {
            return;
        };
        sync.chunks_acked = chunks.min(sync.chunks_sent);
        sync.last_progress = now;
        if sync.copied.is_some() {
            self.pump_checkpoint(cx);
        } else {
            self.pump_transfer(cx);
        }
    }

    pub(crate) fn on_state_saved(&mut self, cx: &mut Context, state: Vec<u8>) {
        let Some(sync) = &mut self.sync else { return };
        // A state saved for a sync that was aborted comes before the next pause is confirmed.
        if sync.stage > Stage::Pausing && sync.device.is_none() {
            sync.device = Some(state);
            if sync.copied.is_some() {
                self.leave_copy(cx);
            } else {
                self.pump_transfer(cx);
            }
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
        let Some(sync) = self.sync_with(from, number) else {
            return;
        };
        let Some(set) = runs.to_set(pages) else {
            return self.abort_sync(cx, "the secondary fetched pages outside the guest");
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
        for (i, pages) in parts.into_iter().enumerate() {
            let job = Job::LeadFetch(number, i + 1 == count);
            cx.ask(job, |job| Action::ReadPages { job, pages });
        }
    }

    pub(crate) fn on_fetch_read(
        &mut self,
        cx: &mut Context,
        number: SyncNo,
        chunk: Vec<u8>,
        last: bool,
    ) {
        let Some(sync) = self.sync.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        sync.report.bytes_pages += chunk.len() as u64;
        let peer = sync.peer;
        cx.send_bulk(
            peer,
            Body::Fetched {
                sync: number,
                chunk,
                last,
            },
        );
    }
}
