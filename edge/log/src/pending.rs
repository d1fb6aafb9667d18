//! Proposals that are not committed yet, and the proposer of each.

use crate::append::Ticket;
use crate::clients::ConnectionId;
use plover_types::Viewstamp;
use std::collections::VecDeque;

/// The proposer of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// The thread that drives the server's turns.
    Submitted(Ticket),
    /// A remote client, and its number for the request.
    Remote(ConnectionId, u64),
    /// The server itself, which does not wait for it.
    Server,
}

/// Proposals in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Proposals(VecDeque<(Viewstamp, Origin)>);

impl Proposals {
    /// `origin` has proposed the entry at `at`, the newest of the log.
    pub fn push(&mut self, at: Viewstamp, origin: Origin) {
        if let Some((last, _)) = self.0.back() {
            assert!(*last < at, "{at} was proposed after {last}");
        }
        self.0.push_back((at, origin));
    }

    /// The proposer of the committed entry at `at`, if it was proposed here. All entries before it
    /// have been settled.
    pub fn settle(&mut self, at: Viewstamp) -> Option<Origin> {
        let (first, _) = self.0.front()?;
        let is_settled = first.index < at.index;
        assert!(!is_settled, "{first} was committed and never settled");
        let is_ours = *first == at;
        is_ours.then(|| self.0.pop_front()).flatten().map(|it| it.1)
    }

    /// All proposers, because this replica will not learn what became of their entries.
    pub fn give_up(&mut self) -> VecDeque<(Viewstamp, Origin)> {
        std::mem::take(&mut self.0)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
