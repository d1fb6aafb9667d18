//! What differs is sent, as fast as it is acknowledged, and after it the device state: the end mark.

use super::Stage;
use crate::api::{Action, Canary};
use crate::join::WINDOW_CHUNKS;
use crate::replica::{Asked, Replica};
use plover_syncvm::Phase;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_syncvm::message::Body;
use plover_types::{PageNo, ReplicaId, Runs, SyncNo};

impl Replica {
    /// What is to be sent is known.
    pub(super) fn begin_transfer(&mut self) {
        let now = self.now;
        let Some(sync) = &mut self.lead else { return };
        sync.stage = Stage::Transferring;
        sync.enter(Phase::Transfer, now);
        let number = sync.sync;
        self.note_phase(number, Phase::Transfer);
        self.pump_transfer();
    }

    /// Asks for as many divergent pages as the window allows; ends with the end mark.
    pub(super) fn pump_transfer(&mut self) {
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
        let translations = std::mem::take(&mut sync.translations);
        let compare = self.matching.compares();
        self.send_bulk(
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
        self.note_phase(number, Phase::Apply);
        if early {
            self.lead_resume();
        }
        self.break_by_canary();
    }

    /// Puts a known bug back: the outputs go before their state is safe.
    pub(super) fn break_by_canary(&mut self) {
        if self.canary(Canary::ReleaseBeforeAck) {
            if let Some(held) = self.lead.as_mut().and_then(|s| s.held.take()) {
                self.clear_for_release(held);
            }
        }
    }

    pub(crate) fn lead_pages_read(&mut self, number: SyncNo, chunk: Vec<u8>) {
        let now = self.now;
        let Some(sync) = self.lead.as_mut().filter(|s| s.sync == number) else {
            return;
        };
        sync.last_progress = now;
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
}
