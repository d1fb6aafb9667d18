//! Copying a guest's pages to a replica whose guest stands: the source's end.
//!
//! ```text
//!  source (its guest runs)                        target (its guest has never run)
//!  CopyStart(stream) ───────────────────────────▶ start a hypervisor, if none stands
//!                              ◀───────────────── CopyReady(chunks of this stream that it has)
//!  Compare(pages) ──────────────────────────────▶ hash      ┐ what the target holds of an older
//!                              ◀───────────────── Compared   ┘ copy is looked at first
//!  hash the same pages: equal ones are owed no more
//!  Copy(seq, pages owed) ───────────────────────▶ write
//!                              ◀───────────────── CopyAck(chunks)
//! ```
//!
//! A page is *owed* while the target may hold it otherwise than the source. The rule that makes a
//! stream safe to go on with, after any pause:
//!
//! * A page leaves the ledger when it is read to be sent, or when both sides' hashes of it are equal.
//! * It is back when a scan finds that the source's guest has written it, when the source itself
//!   writes it (what a syncvm brought), and when the chunk that held it was not acknowledged and the
//!   target says that it has not got it.
//! * A page that the source's guest has written and no scan has found is still dirty there; a later scan
//!   finds it.
//! * A scan can come while this side hashes for a comparison. It is not known then whether the hash
//!   saw the page before the write or after it, so the hash of that page is void.
//!
//! The target's hypervisor writes into its guest's memory when it starts. That comes before the first
//! opening, and the target's own scan finds all later writes.
//!
//! A stream is named by a random number, since a source that was started again would count from the
//! beginning. If a target says that it has so many chunks of this stream, the source goes on from there. A
//! target that does not know the stream is compared or copied from the beginning.

use plover_syncvm::Ledger;
use plover_syncvm::chunk::CHUNK_PAGES_MAX;
use plover_types::{Digest, HashKey, Micros, PageNo, PageSet, ReplicaId};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// Pages that are compared at a time, in a row: a quarter of a millisecond of hashing on either side, or
/// 1 MiB to be read from a disk. Neither side's loop is held up for long.
pub(crate) const COMPARE_PAGES: u32 = 256;

/// One copy's source.
#[derive(Debug)]
pub(crate) struct Stream {
    pub peer: ReplicaId,
    /// Its name.
    pub id: u64,
    /// The newest opening; messages of older ones mean nothing.
    pub attempt: u64,
    /// Under which its pages are compared.
    pub key: HashKey,
    /// Whether the target has answered it.
    pub is_open: bool,
    /// The last join over it has failed.
    pub failed: bool,
    pub last_progress: Micros,
    /// Of a warm copy: the first page that is kept.
    pub keep_from: u32,
    ledger: Ledger,
    /// Something is owed that no sweep has looked at.
    is_stale: bool,
    /// Sweeps begun since it was opened.
    pub sweeps: u32,
    /// Pages still to be compared.
    compare: Range<u32>,
    /// Comparisons that the target was asked for: first page and count.
    asked: VecDeque<Range<u32>>,
    /// Comparisons that it has answered, and its digests, while this side hashes.
    hashing: VecDeque<(Range<u32>, Vec<Digest>)>,
    /// Of those, the pages that have changed since this side was asked to hash them.
    stale: BTreeSet<u32>,
    /// The next page of the sweep through the owed pages; `None` when it is over.
    sweep: Option<PageNo>,
    /// Chunks sent, modulo 2^32, and the pages of those that are not acknowledged.
    sent: u32,
    in_flight: VecDeque<Vec<PageNo>>,
}

impl Stream {
    pub fn new(peer: ReplicaId, id: u64, pages: u32) -> Self {
        Self {
            peer,
            id,
            attempt: 0,
            key: HashKey::Xxh3([0; 32]),
            is_open: false,
            failed: false,
            last_progress: Micros::ZERO,
            keep_from: 0,
            ledger: Ledger::all(pages),
            is_stale: true,
            sweeps: 0,
            compare: 0..0,
            asked: VecDeque::new(),
            hashing: VecDeque::new(),
            stale: BTreeSet::new(),
            sweep: None,
            sent: 0,
            in_flight: VecDeque::new(),
        }
    }

    /// The source's pages have changed.
    pub fn owe(&mut self, pages: &PageSet) {
        self.is_stale |= !pages.is_empty();
        self.ledger.owe(pages);
        for (range, _) in &self.hashing {
            let changed = pages.iter_from(PageNo(range.start)).map(|page| page.0);
            self.stale
                .extend(changed.take_while(|page| range.contains(page)));
        }
    }

    /// One of the source's pages has changed.
    pub fn owe_page(&mut self, page: PageNo) {
        self.is_stale = true;
        self.ledger.owe_page(page);
        let is_in = |(range, _): &(Range<u32>, _)| range.contains(&page.0);
        if self.hashing.iter().any(is_in) {
            self.stale.insert(page.0);
        }
    }

    /// Pages that the target may hold otherwise, but for chunks on their way.
    pub fn owed(&self) -> &PageSet {
        self.ledger.owed()
    }

    /// Pages that the target may hold otherwise, of those that are kept.
    pub fn behind(&self) -> u32 {
        let owed = self.ledger.owed().iter_from(PageNo(self.keep_from)).count();
        (owed + self.in_flight.iter().map(Vec::len).sum::<usize>()) as u32
    }

    /// Pages on their way to the target.
    pub fn is_in_flight(&self, page: PageNo) -> bool {
        self.in_flight.iter().flatten().any(|p| *p == page)
    }

    /// The stream is offered to the target anew.
    pub fn reopen(&mut self, attempt: u64, key: HashKey, now: Micros) {
        self.attempt = attempt;
        self.key = key;
        self.is_open = false;
        self.last_progress = now;
    }

    /// The target has so many chunks of this stream, or none of it and perhaps an older copy of the
    /// pages from `compare_from` on.
    pub fn opened(&mut self, written: Option<u32>, compare_from: u32) {
        self.is_open = true;
        self.sweeps = 0;
        self.hashing.clear();
        self.stale.clear();
        let pages = self.ledger.owed().capacity();
        match written.filter(|chunks| self.news_of(*chunks).is_some()) {
            Some(chunks) => {
                self.acked(chunks);
                for pages in std::mem::take(&mut self.in_flight) {
                    pages.iter().for_each(|page| self.owe_page(*page));
                }
                self.sent = chunks;
                if let Some(first) = self.asked.drain(..).next() {
                    self.compare.start = first.start;
                }
                // The next sweep finds the pages that this one has not come to.
                self.is_stale |= self.sweep.take().is_some();
            }
            None => {
                self.ledger = Ledger::all(pages);
                self.is_stale = true;
                self.compare = compare_from.min(pages)..pages;
                self.asked.clear();
                self.sweep = None;
                self.sent = 0;
                self.in_flight.clear();
            }
        }
    }

    /// Whether there is anything left to compare.
    pub fn is_comparing(&self) -> bool {
        !self.compare.is_empty() || !self.asked.is_empty() || !self.hashing.is_empty()
    }

    /// Whether an answer of the target is awaited.
    pub fn awaits(&self) -> bool {
        !self.is_open || !self.asked.is_empty() || !self.in_flight.is_empty()
    }

    pub fn can_compare(&self, window: usize) -> bool {
        self.is_open && !self.compare.is_empty() && self.asked.len() < window
    }

    pub fn can_copy(&self, window: usize) -> bool {
        self.is_open && !self.is_swept() && self.in_flight.len() < window
    }

    /// The next pages to ask the target to hash, with at most `window` questions open.
    pub fn next_comparison(&mut self, window: usize) -> Option<Range<u32>> {
        if !self.can_compare(window) {
            return None;
        }
        let end = (self.compare.start + COMPARE_PAGES).min(self.compare.end);
        let pages = self.compare.start..end;
        self.compare.start = end;
        self.asked.push_back(pages.clone());
        Some(pages)
    }

    /// The target's digests of pages from `first` on; returns the pages to hash here, or `None` if
    /// nobody asked for them.
    pub fn compared(&mut self, first: u32, digests: Vec<Digest>) -> Option<Range<u32>> {
        let pages = self.asked.front().filter(|pages| pages.start == first)?;
        if digests.len() != pages.len() && digests.len() != 1 {
            return None;
        }
        let pages = self.asked.pop_front()?;
        self.hashing.push_back((pages.clone(), digests));
        Some(pages)
    }

    /// This side's digests of the same pages.
    pub fn hashed(&mut self, ours: &[Digest]) {
        let Some((pages, theirs)) = self.hashing.pop_front() else {
            return;
        };
        let theirs = theirs.iter().cycle();
        for ((page, ours), theirs) in pages.zip(ours).zip(theirs) {
            if ours == theirs && !self.stale.contains(&page) {
                self.ledger.copied(PageNo(page));
            }
        }
        if self.hashing.is_empty() {
            self.stale.clear();
        }
    }

    /// Whether a new sweep would find anything.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Begins to copy the owed pages from `from` on, once through; returns how many there are by now.
    pub fn begin_sweep(&mut self, from: PageNo) -> u32 {
        self.is_stale = false;
        self.sweeps += 1;
        let owed = self.ledger.owed().iter_from(from).count() as u32;
        self.sweep = (owed > 0).then_some(from);
        owed
    }

    /// Whether the sweep is over.
    pub fn is_swept(&self) -> bool {
        self.sweep.is_none()
    }

    /// Whether all of it was acknowledged, too.
    pub fn is_settled(&self) -> bool {
        self.is_swept() && self.in_flight.is_empty()
    }

    /// Whether all of it has been copied. A stream that was opened anew goes on where it was, and may have nothing to sweep.
    pub fn was_swept(&self) -> bool {
        self.is_settled() && (self.sweeps > 0 || !self.is_stale)
    }

    /// The next pages to read and send, and their chunk's number, with at most `window` chunks on
    /// their way.
    pub fn next_chunk(&mut self, window: usize) -> Option<(u32, Vec<PageNo>)> {
        if !self.can_copy(window) {
            return None;
        }
        let from = self.sweep?;
        let owed = self.ledger.owed().iter_from(from);
        let pages: Vec<PageNo> = owed.take(CHUNK_PAGES_MAX).collect();
        let is_last = pages.len() < CHUNK_PAGES_MAX;
        self.sweep = pages.last().filter(|_| !is_last).map(|p| PageNo(p.0 + 1));
        if pages.is_empty() {
            return None;
        }
        for page in &pages {
            // It is read before the guest's next turn; a later scan finds a later write.
            self.ledger.copied(*page);
        }
        let seq = self.sent;
        self.sent = self.sent.wrapping_add(1);
        self.in_flight.push_back(pages.clone());
        Some((seq, pages))
    }

    /// The target has written so many chunks of the stream.
    pub fn acked(&mut self, chunks: u32) {
        if let Some(new) = self.news_of(chunks) {
            self.in_flight.drain(..new);
        }
    }

    /// How many chunks a target that has written so many has written since it last said so; `None` if it cannot be.
    fn news_of(&self, chunks: u32) -> Option<usize> {
        let acked = self.sent.wrapping_sub(self.in_flight.len() as u32);
        let new = chunks.wrapping_sub(acked) as usize;
        (new <= self.in_flight.len()).then_some(new)
    }
}

#[cfg(test)]
mod tests;
