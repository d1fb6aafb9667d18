//! Proposals that are not committed yet, and the proposer of each.
//!
//! A client that hears nothing repeats its request, perhaps while the entry still waits for a majority. Its leader
//! proposes no second entry: the answer to the first one goes to the connection that asked last.
//!
//! ```text
//!   request ─► applied? ── yes ─► its answer, at once (`serve.rs`)
//!                 │ no
//!                 └─► in the log, not committed? ── yes ─► that entry answers this connection
//!                                     │ no
//!                                     └─► a new entry
//! ```
//!
//! The entries that a new leader has from former leaders count, too. A leader that lacks the state that its log continues
//! cannot tell what is in the log before, and takes no request of a session until it has that state.

use crate::append::Ticket;
use crate::clients::ConnectionId;
use crate::envelope::{ENVELOPE_BYTES_MAX, Envelope, SessionRequest};
use crate::{Error, Server, StateMachine};
use apus::{EntryKind, Phase, ProposeError};
use plover_types::{Index, View, Viewstamp};
use std::collections::{BTreeMap, VecDeque};

/// The proposer of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The thread that drives the server's turns.
    Submitted(Ticket),
    /// A remote client, and its number for the request.
    Remote(ConnectionId, u64),
    /// The server itself, or a former leader: nobody waits for it here.
    Server,
}

/// An entry that is not committed yet.
#[derive(Debug)]
struct Proposal {
    at: Viewstamp,
    origin: Origin,
    /// The request of a session that it carries.
    request: Option<SessionRequest>,
}

/// Proposals in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    queue: VecDeque<Proposal>,
    /// The place of each request of a session in `queue`.
    requests: BTreeMap<SessionRequest, Viewstamp>,
    /// The view of this leader, once it has taken up what former leaders have proposed.
    view: View,
}

impl Proposals {
    /// `origin` has proposed the entry at `at`, the newest of the log.
    pub fn push(&mut self, at: Viewstamp, origin: Origin, request: Option<SessionRequest>) {
        if let Some(last) = self.queue.back().map(|it| it.at) {
            assert!(last < at, "{at} was proposed after {last}");
        }
        self.requests.extend(request.map(|request| (request, at)));
        self.queue.push_back(Proposal {
            at,
            origin,
            request,
        });
    }

    /// Takes up, for the leader of `view`, the requests in entries that former leaders have proposed and that are not
    /// committed yet.
    pub fn take_up(
        &mut self,
        view: View,
        former: impl Iterator<Item = (Viewstamp, SessionRequest)>,
    ) {
        self.view = view;
        for (at, request) in former {
            let place = self.queue.partition_point(|it| it.at < at);
            if self.queue.get(place).is_none_or(|it| it.at != at) {
                let proposal = Proposal {
                    at,
                    origin: Origin::Server,
                    request: Some(request),
                };
                self.queue.insert(place, proposal);
                self.requests.insert(request, at);
            }
        }
    }

    /// If an entry with `request` waits to be committed, its answer goes to `origin`: then true.
    pub fn redirect(&mut self, request: SessionRequest, origin: Origin) -> bool {
        let Some(at) = self.requests.get(&request) else {
            return false;
        };
        let place = self.queue.partition_point(|it| it.at < *at);
        let proposal = self.queue.get_mut(place).filter(|it| it.at == *at);
        proposal.expect("each request waits at its place").origin = origin;
        true
    }

    /// The proposer of the committed entry at `at`, if it was proposed here. All entries before it
    /// have been settled.
    pub fn settle(&mut self, at: Viewstamp) -> Option<Origin> {
        let first = self.queue.front()?.at;
        let is_settled = first.index < at.index;
        assert!(!is_settled, "{first} was committed and never settled");
        if first != at {
            return None;
        }
        let Proposal {
            origin, request, ..
        } = self.queue.pop_front()?;
        // A log that an older release has led may hold a request twice. The later place counts then.
        if let Some(request) = request.filter(|it| self.requests.get(it) == Some(&at)) {
            self.requests.remove(&request);
        }
        Some(origin)
    }

    /// All proposers, because this replica will not learn what became of their entries.
    pub fn give_up(&mut self) -> Vec<Origin> {
        let all = std::mem::take(self).queue;
        all.into_iter().map(|it| it.origin).collect()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

impl<M: StateMachine> Server<M> {
    /// Proposes an entry of the application for `origin`, which is told when it is committed. A request of a session that
    /// waits to be committed is not proposed again.
    pub(crate) fn propose(
        &mut self,
        session: Option<SessionRequest>,
        bytes: &[u8],
        origin: Origin,
    ) -> Result<(), Error> {
        if bytes.len() > self.entry_bytes_max {
            return Err(Error::TooLarge {
                bytes: bytes.len(),
                max: self.entry_bytes_max,
            });
        }
        let entry = match session {
            None => Envelope::Plain(bytes),
            Some(request) => {
                self.take_up_requests()?;
                if self.proposals.redirect(request, origin) {
                    return Ok(());
                }
                Envelope::Session(request, bytes)
            }
        };
        let buffer = self.core.buffer(bytes.len() + ENVELOPE_BYTES_MAX);
        self.propose_payload(entry.put(buffer), origin, session)
    }

    /// Takes up, once in each view that this replica leads, the requests that former leaders have proposed.
    fn take_up_requests(&mut self) -> Result<(), Error> {
        let status = self.core.status();
        if status.phase != Phase::Leading {
            let leader = status.leader;
            return Err(Error::NotLeader { leader });
        }
        let committed = self.commit.index.max(status.base);
        if self.state.applied.index < committed {
            return Err(Error::NotLeader { leader: None });
        }
        if self.proposals.view != status.view {
            let rest = committed.0 + 1..=status.last.index.0;
            let entries = rest.filter_map(|index| self.core.entry(Index(index)));
            let entries = entries.filter(|entry| entry.kind == EntryKind::App);
            let former = entries.filter_map(|entry| match Envelope::take(&entry.payload) {
                Some(Envelope::Session(request, _)) => Some((entry.viewstamp, request)),
                _ => None,
            });
            self.proposals.take_up(status.view, former);
        }
        Ok(())
    }

    pub(crate) fn propose_payload(
        &mut self,
        payload: Vec<u8>,
        origin: Origin,
        request: Option<SessionRequest>,
    ) -> Result<(), Error> {
        let now = self.now();
        let proposed = self.core.propose(now, EntryKind::App, payload);
        match proposed {
            Ok(at) => {
                self.proposals.push(at, origin, request);
                Ok(())
            }
            Err(ProposeError::LogFull) => Err(Error::Full),
            Err(ProposeError::NotLeader) => Err(Error::NotLeader {
                leader: self.core.status().leader,
            }),
            Err(ProposeError::TooLarge(bytes)) => Err(Error::TooLarge {
                bytes,
                max: self.entry_bytes_max,
            }),
            Err(ProposeError::Members(error)) => unreachable!("no group was proposed: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(view: u64, index: u64) -> Viewstamp {
        let (view, index) = (View(view), Index(index));
        Viewstamp { view, index }
    }

    fn request(session: u64, number: u64) -> SessionRequest {
        SessionRequest { session, number }
    }

    #[test]
    fn a_repeated_request_moves_the_answer_until_it_is_settled() {
        let [first, second] = [1, 2].map(|it| Origin::Submitted(Ticket(it)));
        let mut proposals = Proposals::default();
        proposals.push(at(16, 4), Origin::Server, None);
        proposals.push(at(16, 6), first, Some(request(7, 1)));
        assert!(!proposals.redirect(request(7, 2), second));
        assert!(proposals.redirect(request(7, 1), second));
        assert_eq!(proposals.len(), 2);
        assert_eq!(proposals.settle(at(16, 4)), Some(Origin::Server));
        assert_eq!(proposals.settle(at(16, 5)), None);
        assert_eq!(proposals.settle(at(16, 6)), Some(second));
        assert!(!proposals.redirect(request(7, 1), second));
    }

    #[test]
    fn requests_of_former_leaders_are_taken_up_in_their_places() {
        let origin = Origin::Submitted(Ticket(1));
        let former = [(at(16, 5), request(7, 1)), (at(32, 6), request(8, 1))];
        let mut proposals = Proposals::default();
        proposals.push(at(48, 8), Origin::Server, None);
        proposals.take_up(View(48), former.into_iter());
        assert!(proposals.redirect(request(8, 1), origin));
        assert_eq!(proposals.settle(at(16, 5)), Some(Origin::Server));
        assert_eq!(proposals.settle(at(32, 6)), Some(origin));
        assert_eq!(proposals.settle(at(48, 8)), Some(Origin::Server));
        assert_eq!(proposals.len(), 0);
    }

    /// Leaders of an older release did not look before they proposed.
    #[test]
    fn a_request_that_is_in_the_log_twice_is_settled_twice() {
        let origin = Origin::Submitted(Ticket(1));
        let former = [(at(16, 5), request(7, 1)), (at(16, 6), request(7, 1))];
        let mut proposals = Proposals::default();
        proposals.take_up(View(32), former.into_iter());
        assert_eq!(proposals.settle(at(16, 5)), Some(Origin::Server));
        assert!(proposals.redirect(request(7, 1), origin));
        assert_eq!(proposals.settle(at(16, 6)), Some(origin));
        assert!(!proposals.redirect(request(7, 1), origin));
    }

    #[test]
    fn nothing_is_left_of_what_was_given_up() {
        let mut proposals = Proposals::default();
        proposals.push(at(16, 4), Origin::Server, Some(request(7, 1)));
        assert_eq!(proposals.give_up(), [Origin::Server]);
        assert!(!proposals.redirect(request(7, 1), Origin::Server));
        proposals.take_up(View(16), std::iter::empty());
        assert_eq!(proposals.len(), 0);
    }
}
