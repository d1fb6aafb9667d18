//! Proposals that are not committed yet, and who waits for each.

use crate::client::{Slot, Ticket};
use crate::door::ConnectionId;
use plover_types::Viewstamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// Who waits for an entry.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Whoever drives the server's turns.
    Inline(Ticket),
    /// A client in another thread.
    Client(Arc<Slot>, Ticket),
    /// A remote client, and its number for the request.
    Remote(ConnectionId, u64),
    /// Nobody.
    Server,
}

#[derive(Debug)]
struct Pending {
    at: Viewstamp,
    origin: Origin,
}

/// Proposals in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Proposals(VecDeque<Pending>);

impl Proposals {
    /// Notes that `origin` waits for the entry at `at`, the newest of the log.
    pub fn push(&mut self, at: Viewstamp, origin: Origin) {
        if let Some(last) = self.0.back() {
            assert!(last.at < at, "{at} was proposed after {}", last.at);
        }
        self.0.push_back(Pending { at, origin });
    }

    /// Who waits for the committed entry at `at`. Entries of the log before it are settled too,
    /// so nobody can be waiting for them.
    pub fn settle(&mut self, at: Viewstamp) -> Option<Origin> {
        let first = self.0.front()?;
        assert!(
            first.at.index >= at.index,
            "{} was committed and never settled",
            first.at
        );
        (first.at == at).then(|| self.0.pop_front().expect("there is a first").origin)
    }

    /// All who wait, because this replica will not learn what they wait for.
    pub fn give_up(&mut self) -> impl Iterator<Item = Origin> {
        self.0.drain(..).map(|pending| pending.origin)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
