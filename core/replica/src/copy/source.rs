//! The source's end of a copy, for a join or a warm copy: questions and pages out, answers in.

use super::stream::Stream;
use crate::api::Action;
use crate::context::Context;
use crate::jobs::Job;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{Digest, HashKey, PageNo, ReplicaId, SplitMix64};

impl Context {
    /// Offers a copy to `peer`, going on with an older one to it if there is one. Returns the
    /// opening's number.
    pub(crate) fn open_copy(&mut self, peer: ReplicaId, purpose: CopyPurpose) -> u64 {
        self.copies.opened += 1;
        let attempt = self.copies.opened;
        if self.peers.copy().is_none_or(|s| s.peer != peer) {
            let drawn = self.config.seed ^ self.now.0.rotate_left(32) ^ attempt;
            let id = SplitMix64::new(drawn).next_u64();
            let stream = Stream::new(peer, id, self.config.layout.pages());
            self.peers.begin_copy(stream);
        }
        let (now, key) = (self.now, self.key_of_copy());
        let Some(stream) = self.peers.copy_mut() else {
            return attempt;
        };
        stream.reopen(attempt, key, now);
        let start = Body::CopyStart {
            purpose,
            attempt,
            stream: stream.id,
            policy: self.config.promises(),
            machine: self.guest.machine.clone(),
            pages: self.config.layout.pages(),
            disk_blocks: self.config.layout.disk_blocks(),
        };
        self.send_bulk(peer, start);
        attempt
    }

    /// The stream that a target speaks of, if that is the present opening.
    fn stream_of(&mut self, from: ReplicaId, attempt: u64) -> Option<&mut Stream> {
        let now = self.now;
        let stream = self
            .peers
            .copy_mut()
            .filter(|s| s.peer == from && s.attempt == attempt)?;
        stream.last_progress = now;
        Some(stream)
    }

    /// The target stands ready. Returns whether that is news.
    pub(crate) fn on_copy_ready(
        &mut self,
        from: ReplicaId,
        attempt: u64,
        written: Option<u32>,
        (compare_from, keep_from): (u32, u32),
    ) -> bool {
        let Some(stream) = self.stream_of(from, attempt).filter(|s| !s.is_open) else {
            return false;
        };
        stream.opened(written, compare_from);
        stream.keep_from = keep_from.min(stream.owed().capacity());
        true
    }

    /// The target refuses this opening, or has given it up. Returns whether it is the present one.
    pub(crate) fn on_copy_failed(&mut self, from: ReplicaId, attempt: u64) -> bool {
        match self.stream_of(from, attempt) {
            Some(stream) => {
                stream.is_open = false;
                true
            }
            None => false,
        }
    }

    pub(crate) fn on_compared(&mut self, from: ReplicaId, attempt: u64, first: u32, bytes: &[u8]) {
        let Some(stream) = self.stream_of(from, attempt).filter(|s| s.is_open) else {
            return;
        };
        let key = stream.key;
        if let Some(pages) = stream.compared(first, Digest::of_bytes(bytes).collect()) {
            let pages = pages.map(PageNo).collect();
            self.ask(Job::CompareSource(attempt), |job| Action::Hash {
                job,
                key,
                pages,
            });
        }
    }

    pub(crate) fn copy_hashed(&mut self, attempt: u64, digests: &[Digest]) {
        if let Some(stream) = self.peers.copy_mut().filter(|s| s.attempt == attempt) {
            stream.hashed(digests);
        }
    }

    pub(crate) fn on_copy_ack(&mut self, from: ReplicaId, attempt: u64, chunks: u32) {
        if let Some(stream) = self.stream_of(from, attempt).filter(|s| s.is_open) {
            stream.acked(chunks);
        }
    }

    /// Asks the target for as many hashes as the window allows.
    pub(crate) fn pump_comparing(&mut self, window: usize) {
        while let Some(stream) = self.peers.copy_mut() {
            let Some(pages) = stream.next_comparison(window) else {
                return;
            };
            let (peer, attempt) = (stream.peer, stream.attempt);
            let (first, count) = (pages.start, pages.len() as u32);
            let body = match stream.key {
                HashKey::Xxh3(key) => Body::Compare {
                    attempt,
                    first,
                    count,
                    key,
                },
                HashKey::Universal(key) => Body::CompareUnderKey {
                    attempt,
                    first,
                    count,
                    key,
                },
            };
            self.send_bulk(peer, body);
        }
    }

    /// Reads as many chunks as the window allows; they are sent when they are read.
    pub(crate) fn pump_copy(&mut self, window: usize) {
        while let Some(stream) = self.peers.copy_mut() {
            let Some((seq, pages)) = stream.next_chunk(window) else {
                return;
            };
            let job = Job::CopyRead(stream.attempt, seq);
            self.ask(job, |job| Action::CopyPages { job, pages });
        }
    }

    /// A chunk is read: it goes to the target. Returns its length.
    pub(crate) fn copy_pages_read(&mut self, attempt: u64, seq: u32, chunk: Vec<u8>) -> u64 {
        let Some(stream) = self.peers.copy().filter(|s| s.attempt == attempt) else {
            return 0;
        };
        let (peer, bytes) = (stream.peer, chunk.len() as u64);
        self.copies.bytes += bytes;
        let body = Body::Copy {
            attempt,
            seq,
            chunk,
        };
        self.send_bulk(peer, body);
        bytes
    }
}
