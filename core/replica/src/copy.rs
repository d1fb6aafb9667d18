//! The source's end of a copy, whatever it is for: questions and pages out, answers in.

use crate::api::{Action, Canary, Note, Role};
use crate::replica::{Asked, Replica};
use crate::stream::Stream;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{Digest, PageNo, ReplicaId, SplitMix64};

impl Replica {
    /// Offers a copy to `peer`, going on with an older one to it if there is one. Returns the
    /// opening's number.
    pub(crate) fn open_copy(&mut self, peer: ReplicaId, purpose: CopyPurpose) -> u64 {
        self.copies += 1;
        let attempt = self.copies;
        if self.stream.as_ref().is_none_or(|s| s.peer != peer) {
            let drawn = self.config.seed ^ self.now.0.rotate_left(32) ^ attempt;
            let id = SplitMix64::new(drawn).next_u64();
            self.stream = Some(Stream::new(peer, id, self.config.pages));
        }
        let now = self.now;
        let Some(stream) = &mut self.stream else {
            return attempt;
        };
        stream.reopen(attempt, now);
        let start = Body::CopyStart {
            purpose,
            attempt,
            stream: stream.id,
            policy: self.config.policy.to_string(),
            pages: self.config.pages,
            disk_blocks: self.config.disk_blocks,
        };
        self.send_bulk(peer, start);
        attempt
    }

    /// The stream that a target speaks of, if that is the present opening.
    fn stream_of(&mut self, from: ReplicaId, attempt: u64) -> Option<&mut Stream> {
        let now = self.now;
        let stream = self
            .stream
            .as_mut()
            .filter(|s| s.peer == from && s.attempt == attempt)?;
        stream.last_progress = now;
        Some(stream)
    }

    pub(crate) fn on_copy_ready(
        &mut self,
        from: ReplicaId,
        attempt: u64,
        written: Option<u32>,
        (compare_from, keep_from): (u32, u32),
    ) {
        let Some(stream) = self.stream_of(from, attempt).filter(|s| !s.is_open) else {
            return;
        };
        stream.opened(written, compare_from);
        stream.keep_from = keep_from;
        if self.role == Role::Leader {
            self.join_opened(attempt, written.is_some());
        }
    }

    pub(crate) fn on_copy_failed(&mut self, from: ReplicaId, attempt: u64, why: &str) {
        let Some(stream) = self.stream_of(from, attempt) else {
            return;
        };
        stream.is_open = false;
        if self.join.as_ref().is_some_and(|j| j.attempt == attempt) {
            self.refusals.add(from, self.now);
            self.fail_join(why);
        } else if self.role == Role::Secondary {
            self.warming.refused(self.now);
            self.note(Note::WarmRefused {
                peer: from,
                why: why.to_string(),
            });
        }
    }

    pub(crate) fn on_compared(&mut self, from: ReplicaId, attempt: u64, first: u32, bytes: &[u8]) {
        let key = self.config.hash_key;
        let Some(stream) = self.stream_of(from, attempt).filter(|s| s.is_open) else {
            return;
        };
        if let Some(pages) = stream.compared(first, Digest::of_bytes(bytes).collect()) {
            self.hashes.push_back(Asked::Compare(attempt));
            let pages = pages.map(PageNo).collect();
            self.out.push(Action::Hash { key, pages });
        }
    }

    pub(crate) fn copy_hashed(&mut self, attempt: u64, digests: &[Digest]) {
        let trusts = self.canary(Canary::StaleCompare);
        if let Some(stream) = self.stream.as_mut().filter(|s| s.attempt == attempt) {
            if trusts {
                stream.trust();
            }
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
        let key = self.config.hash_key;
        while let Some(stream) = &mut self.stream {
            let Some(pages) = stream.next_comparison(window) else {
                return;
            };
            let (peer, attempt) = (stream.peer, stream.attempt);
            let body = Body::Compare {
                attempt,
                first: pages.start,
                count: pages.len() as u32,
                key,
            };
            self.send_bulk(peer, body);
        }
    }

    /// Reads as many chunks as the window allows; they are sent when they are read.
    pub(crate) fn pump_copy(&mut self, window: usize) {
        while let Some(stream) = &mut self.stream {
            let Some((seq, pages)) = stream.next_chunk(window) else {
                return;
            };
            self.reads.push_back(Asked::Copy(stream.attempt, seq));
            self.out.push(Action::ReadPages(pages));
        }
    }

    pub(crate) fn copy_pages_read(&mut self, attempt: u64, seq: u32, chunk: Vec<u8>) {
        let Some(stream) = self.stream.as_ref().filter(|s| s.attempt == attempt) else {
            return;
        };
        let peer = stream.peer;
        self.copied_bytes += chunk.len() as u64;
        self.warming
            .charge(self.now, chunk.len() as u64, self.config.warm_bytes_per_s);
        self.send_bulk(
            peer,
            Body::Copy {
                attempt,
                seq,
                chunk,
            },
        );
    }
}
