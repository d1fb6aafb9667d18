//! Work on the guest's pages that the core asks for, in bounded pieces.
//!
//! A turn works on pages for [`WORK_A_TURN`] and leaves the rest to the next one. Else a guest that has
//! written a million pages would silence its replica for seconds, and the others would take it for dead.
//! What is left keeps its order, and orders to the hypervisor wait behind it: a guest must not go on before
//! all its pages are written. Only what a copy reads comes after everything else.

use super::{Body, BoxError, WORK_A_TURN};
use crate::clock;
use plover_replica::JobId;
use plover_syncvm::subpages::{Divergent, SubpageMask};
use plover_types::{Digest, HashKey, Micros, PageNo};
use plover_vm::VmCommand;

/// Pages that are hashed before the clock is looked at: half a millisecond of work.
const PAGES_A_STEP: usize = 2048;
/// The same for the hashes of subpages, which one core makes.
const NARROWED_A_STEP: usize = 512;

/// One job, or what is left of it.
#[derive(Debug)]
pub(super) enum Work {
    /// With the digests of its first pages.
    Hash(JobId, HashKey, Vec<PageNo>, Vec<Digest>),
    /// With the hashes of its first pages, and how many these are.
    HashSubpages(JobId, HashKey, Vec<PageNo>, (Vec<u64>, usize)),
    Read(JobId, Vec<Divergent>),
    /// With the number of chunks that are written.
    Write(JobId, Vec<Vec<u8>>, usize),
    Scan(JobId),
    /// For tests: of all pages, after this syncvm.
    Checksum(u64),
    Order(VmCommand),
}

impl Body {
    /// Begins a job, and finishes it if nothing waits, it is small and the turn has time for it: the answer to one job may
    /// ask for the next one, again and again.
    pub(super) fn begin(&mut self, work: Work) {
        if !self.work.is_empty() || clock::now() >= self.work_until {
            return self.work.push_back(work);
        }
        let rest = self.go_on(work, self.work_until);
        self.work.extend(rest);
    }

    pub(super) fn has_work(&self) -> bool {
        !self.work.is_empty() || !self.copy_reads.is_empty()
    }

    /// Goes on with what waits.
    pub(super) fn take_work(&mut self) -> Result<(), BoxError> {
        let until = clock::now() + WORK_A_TURN;
        loop {
            let copied = |(job, pages)| Work::Read(job, whole(pages));
            let next = self.work.pop_front();
            let next = next.or_else(|| self.copy_reads.pop_front().map(copied));
            let Some(work) = next else { break };
            if let Some(rest) = self.go_on(work, until) {
                self.work.push_front(rest);
            }
            if let Some(event) = self.events.pop_front() {
                self.apply(event)?;
            }
            if clock::now() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Finishes at once what was asked of a guest that is gone: nothing of it may touch the next one.
    pub(super) fn drop_work(&mut self) {
        debug_assert!(self.vm.is_none(), "its pages are gone");
        for job in std::mem::take(&mut self.scans).into_iter().flatten() {
            self.scan_now(job);
        }
        for work in std::mem::take(&mut self.work) {
            self.go_on(work, Micros::NEVER);
        }
        for (job, pages) in std::mem::take(&mut self.copy_reads) {
            self.go_on(Work::Read(job, whole(pages)), Micros::NEVER);
        }
    }

    /// Works until it is done or it is `until`. Returns what is left.
    fn go_on(&mut self, mut work: Work, until: Micros) -> Option<Work> {
        loop {
            work = self.step(work)?;
            if clock::now() >= until {
                return Some(work);
            }
        }
    }

    fn step(&mut self, work: Work) -> Option<Work> {
        match work {
            Work::Hash(job, key, pages, mut digests) => {
                let (part, is_last) = part_of(&pages, digests.len(), PAGES_A_STEP);
                let part = &pages[part];
                let memory = &part[..self.first_block(part.iter())];
                self.hash(&key, memory, &mut digests);
                if !is_last && memory.len() == part.len() {
                    return Some(Work::Hash(job, key, pages, digests));
                }
                let blocks = pages[digests.len()..].to_vec();
                self.hash_blocks(job, key, blocks, digests);
            }
            Work::HashSubpages(job, key, pages, (mut hashes, done)) => {
                let (part, is_last) = part_of(&pages, done, NARROWED_A_STEP);
                let part = &pages[part];
                let memory = &part[..self.first_block(part.iter())];
                self.hash_subpages(&key, memory, &mut hashes);
                let done = done + memory.len();
                if !is_last && memory.len() == part.len() {
                    return Some(Work::HashSubpages(job, key, pages, (hashes, done)));
                }
                let blocks = pages[done..].to_vec();
                self.hash_subpages_of_blocks(job, key, blocks, hashes);
            }
            Work::Read(job, pages) => self.read(job, pages),
            Work::Write(job, chunks, done) => {
                if let Some(chunk) = chunks.get(done) {
                    self.write_memory(chunk);
                    return Some(Work::Write(job, chunks, done + 1));
                }
                self.write_blocks(job, chunks);
            }
            Work::Scan(job) => self.scan(job),
            Work::Checksum(sync) => self.checksum_now(sync),
            Work::Order(command) => self.order_now(command),
        }
        None
    }
}

/// The next pages of a list, from `first` on, and whether they are the last ones.
fn part_of(pages: &[PageNo], first: usize, length: usize) -> (std::ops::Range<usize>, bool) {
    let end = (first + length).min(pages.len());
    (first..end, end == pages.len())
}

/// All subpages of these pages.
pub(super) fn whole(pages: Vec<PageNo>) -> Vec<Divergent> {
    let all = |page| (page, SubpageMask::ALL);
    pages.into_iter().map(all).collect()
}
