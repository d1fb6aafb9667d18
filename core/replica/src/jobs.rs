//! Work on pages that this replica has asked for and that is not answered yet.
//!
//! Each piece of work has an id; its answer carries it ([`crate::Event`]). An answer for a guest that was
//! given up meanwhile finds its job gone and means nothing.

use plover_types::SyncNo;
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

    /// The guest is given up: answers about its memory mean nothing from here on.
    pub fn forget_all(&mut self) {
        self.open.clear();
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
