//! Work on pages that this replica has asked for, and its answers.
//!
//! Each piece of work has an id; its answer carries it ([`crate::Event`]). An answer for a guest that was
//! given up meanwhile finds its job gone and means nothing.

use crate::replica::Replica;
use plover_types::{Digest, PageSet, SyncNo};
use std::collections::BTreeMap;

/// Names a piece of work that an [`crate::Action`] asks for; the answering [`crate::Event`] carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// The purpose of a piece of work on pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// The leader's part of this syncvm.
    LeadSync(SyncNo),
    /// The leader's answer to a fetch; whether it is the last part.
    LeadFetch(SyncNo, bool),
    /// The secondary's part of this syncvm.
    FollowSync(SyncNo),
    /// The scan that ends a round of this attempt to join.
    JoinRound(u64),
    /// The source of a copy reads a chunk: of this opening, this chunk.
    CopyRead(u64, u32),
    /// The source of a copy hashes pages of this opening, to compare them.
    CompareSource(u64),
    /// The target of a copy hashes pages: of this opening, from this page on.
    CompareTarget(u64, u32),
    /// The target of a copy writes: of this opening, so many chunks in all.
    CopyWritten(u64, u32),
    /// Pages that a syncvm brought are written; nobody waits for it.
    Applied,
}

/// The jobs that are not answered.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    last: u64,
    open: BTreeMap<JobId, Job>,
}

impl Jobs {
    pub fn begin(&mut self, job: Job) -> JobId {
        self.last += 1;
        let id = JobId(self.last);
        self.open.insert(id, job);
        id
    }

    /// The answer is there. `None` if the guest that it was about was given up.
    pub fn end(&mut self, id: JobId) -> Option<Job> {
        assert!(
            id.0 <= self.last,
            "an answer to {id:?}, which was never asked"
        );
        self.open.remove(&id)
    }

    /// Whether a part of a syncvm that this replica leads is not answered.
    pub fn are_open_to_lead(&self) -> bool {
        let leads = |job: &Job| matches!(job, Job::LeadSync(_) | Job::LeadFetch(..));
        self.open.values().any(leads)
    }

    /// The guest is given up: answers about its memory mean nothing from here on.
    pub fn forget_all(&mut self) {
        self.open.clear();
    }
}

impl Replica {
    pub(crate) fn on_hashed(&mut self, job: JobId, digests: Vec<Digest>) {
        match self.cx.jobs.end(job) {
            Some(Job::LeadSync(sync)) => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_hashed(cx, sync, digests);
                }
            }
            Some(Job::FollowSync(sync)) => self.follow_hashed(sync, &digests),
            Some(Job::CompareSource(attempt)) => self.cx.copy_hashed(attempt, &digests),
            Some(Job::CompareTarget(attempt, first)) => {
                self.target_hashed(attempt, first, &digests);
            }
            Some(other) => panic!("hashes as the answer to {other:?}"),
            None => {}
        }
    }

    pub(crate) fn on_subpages_hashed(&mut self, job: JobId, hashes: Vec<u64>) {
        match self.cx.jobs.end(job) {
            Some(Job::LeadSync(sync)) => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_subpages_hashed(cx, sync, hashes);
                }
            }
            Some(Job::FollowSync(sync)) => self.follow_subpages_hashed(sync, &hashes),
            Some(other) => panic!("subpage hashes as the answer to {other:?}"),
            None => {}
        }
    }

    pub(crate) fn on_pages_read(&mut self, job: JobId, chunk: Vec<u8>) {
        match self.cx.jobs.end(job) {
            Some(Job::LeadSync(sync)) => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_pages_read(cx, sync, chunk);
                }
            }
            Some(Job::LeadFetch(sync, last)) => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_fetch_read(cx, sync, chunk, last);
                }
            }
            Some(Job::FollowSync(sync)) => self.follow_restore_read(sync, chunk),
            Some(Job::CopyRead(attempt, seq)) => {
                let bytes = self.cx.copy_pages_read(attempt, seq, chunk);
                if let Some((secondary, cx)) = self.following() {
                    let rate = cx.config.warm_bytes_per_s;
                    secondary.warm.charge(cx.now, bytes, rate);
                }
            }
            Some(other) => panic!("pages as the answer to {other:?}"),
            None => {}
        }
    }

    /// Adds the pages that this side's guest has written to those that the target of a copy still lacks. This
    /// holds for every scan, also for one that was made for a sync.
    pub(crate) fn on_scanned(&mut self, job: JobId, set: &PageSet) {
        if let Some(stream) = self.cx.peers.copy_mut() {
            stream.owe(set);
        }
        match self.cx.jobs.end(job) {
            Some(Job::LeadSync(sync)) => match self.leading() {
                Some((leader, cx)) => leader.on_scanned(cx, sync, set),
                None => self.cx.memory.ledger.owe(set),
            },
            Some(Job::FollowSync(sync)) => self.follow_scanned(sync, set),
            Some(Job::JoinRound(attempt)) => match self.leading() {
                Some((leader, cx)) => {
                    leader.owe_secondary(cx, set);
                    leader.join_scanned(cx, attempt);
                }
                // The lead was handed over meanwhile, and this guest stays in step. No later scan has these pages.
                None => self.cx.memory.ledger.owe(set),
            },
            Some(other) => panic!("a scan as the answer to {other:?}"),
            None => {}
        }
    }

    pub(crate) fn on_chunks_written(&mut self, job: JobId) {
        match self.cx.jobs.end(job) {
            Some(Job::CopyWritten(attempt, chunks)) => self.target_written(attempt, chunks),
            Some(Job::Applied) => self.follow_chunks_written(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_find_their_job_in_any_order_and_once() {
        let mut jobs = Jobs::default();
        let first = jobs.begin(Job::LeadSync(SyncNo(1)));
        let second = jobs.begin(Job::CopyRead(7, 0));
        assert_eq!(jobs.end(second), Some(Job::CopyRead(7, 0)));
        assert_eq!(jobs.end(second), None, "it comes twice");
        assert_eq!(jobs.end(first), Some(Job::LeadSync(SyncNo(1))));
    }

    #[test]
    fn answers_for_a_guest_that_was_given_up_mean_nothing() {
        let mut jobs = Jobs::default();
        let old = jobs.begin(Job::Applied);
        jobs.forget_all();
        let new = jobs.begin(Job::Applied);
        assert_eq!(jobs.end(old), None);
        assert_eq!(jobs.end(new), Some(Job::Applied));
    }

    #[test]
    #[should_panic(expected = "never asked")]
    fn an_answer_to_no_request_panics() {
        Jobs::default().end(JobId(1));
    }
}
