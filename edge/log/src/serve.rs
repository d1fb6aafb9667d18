//! Serving remote clients.

use crate::clients::{Connection, ConnectionId, Tail};
use crate::envelope::{Envelope, SessionRequest};
use crate::pending::Origin;
use crate::wire::{self, FrameError, Refusal, Reply, Request, StatusReport};
use crate::{Error, Server, StateMachine};
use apus::EntryKind;

/// Entries that one turn sends to one client that reads the log.
const TAIL_ENTRIES_PER_TURN: usize = 1024;

/// The answer to a client that may only append and read.
const NO_ADMIN: &str = "this client's key may append and read, and not change the group: use a key that is trusted as \
                        `admin`, or run `plover key trust FILE admin KEY` on all hosts";

impl<M: StateMachine> Server<M> {
    /// Takes on the requests of remote clients.
    pub(crate) fn take_remote(&mut self) {
        let mut busy = std::mem::take(&mut self.clients.busy);
        busy.append(&mut self.stalled);
        for id in busy {
            let Some(mut connection) = self.clients.take_out(id) else {
                continue;
            };
            if let Err(error) = self.take_frames(id, &mut connection) {
                self.rejected += 1;
                connection.reply(&Reply::Failed(error.to_string()));
                connection.close();
            }
            self.clients.put_back(id, connection);
        }
    }

    fn take_frames(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
    ) -> Result<(), FrameError> {
        loop {
            let Some(frame) = connection.frame()? else {
                return Ok(());
            };
            let bytes = frame.len();
            let request = wire::take(frame)?;
            let is_administration = matches!(request, Request::Begin | Request::Member(_));
            let reply = match request {
                _ if is_administration && !self.clients.may_administer(connection) => {
                    Some(Reply::Failed(NO_ADMIN.into()))
                }
                Request::Append {
                    number,
                    session,
                    bytes,
                } => {
                    let session = session.map(|session| SessionRequest { session, number });
                    match self.propose(session, bytes, Origin::Remote(id, number)) {
                        Ok(()) => None,
                        Err(Error::Full) => {
                            // The frame stays, and is taken again in the next turn.
                            self.stalled.push(id);
                            return Ok(());
                        }
                        Err(error) => Some(self.refusal(number, error)),
                    }
                }
                Request::Tail { since, follow } => {
                    let next = since.next();
                    connection.tail = Some(Tail { next, follow });
                    self.feed(connection);
                    None
                }
                Request::Status => Some(Reply::Status(Box::new(self.report()))),
                Request::Begin => Some(self.begin_anew()),
                Request::Member(change) => self.begin_change(id, change),
            };
            if let Some(reply) = reply {
                connection.reply(&reply);
            }
            connection.done(bytes);
        }
    }

    /// The reply to the request `number`, which was not appended, or is not known to be.
    pub(crate) fn refusal(&self, number: u64, error: Error) -> Reply<'static> {
        match error {
            Error::TooLarge { max, .. } => {
                let why = Refusal::TooLarge { max: max as u64 };
                Reply::Refused { number, why }
            }
            Error::Stale => Reply::Refused {
                number,
                why: Refusal::Stale,
            },
            _ => self.elsewhere(number),
        }
    }

    /// The reply to the request `number` that names the leader.
    pub(crate) fn elsewhere(&self, number: u64) -> Reply<'static> {
        let leader = self.core.status().leader;
        let leader = leader.filter(|leader| *leader != self.config.me);
        let address = leader.and_then(|leader| self.client_addresses.get(&leader).cloned());
        Reply::Elsewhere {
            number,
            leader,
            address,
        }
    }

    fn begin_anew(&mut self) -> Reply<'static> {
        let first = self.config.first_leader().0;
        if self.begin() {
            Reply::Done("a new log has begun".into())
        } else if self.lost {
            Reply::Failed(format!(
                "no new log was begun here: replica {first} has to begin it; send the command there"
            ))
        } else {
            let why = "no new log was begun: some replica still holds the old one, or has not \
                       answered; start the replicas that are down";
            Reply::Failed(why.into())
        }
    }

    /// Where this replica stands.
    pub fn report(&self) -> StatusReport {
        let status = self.core.status();
        let me = self.config.me;
        let address = match status.leader {
            Some(leader) if leader == me => self.clients.address().map(ToString::to_string),
            Some(leader) => self.client_addresses.get(&leader).cloned(),
            None => None,
        };
        StatusReport {
            id: me,
            phase: status.phase,
            view: status.view,
            leader: status.leader,
            leader_address: address,
            voters: status.members.voters,
            learners: status.members.learners,
            linked: self.linked,
            durability: self.config.durability,
            last: status.last,
            commit: status.commit,
            applied: self.state.applied.index,
            base: status.base,
            log_bytes: status.log_bytes as u64,
            pending: self.proposals.len() as u64,
            clients: self.clients.count as u64,
            rejected: status.rejected + self.rejected + self.clients.rejected(),
            lost: self.lost,
            outputs: self.state.verdicts(),
        }
    }

    /// Sends entries to all clients that read the log.
    pub(crate) fn feed_tails(&mut self) {
        self.tails_wait = false;
        for id in self.clients.tails() {
            let Some(mut connection) = self.clients.take_out(id) else {
                continue;
            };
            self.feed(&mut connection);
            let more = |tail: Tail| tail.next <= self.commit.index;
            connection.write();
            // In the other cases a new entry, or room in the client's socket, begins the turn that
            // continues.
            self.tails_wait |= connection.tail.is_some_and(more) && !connection.is_full();
            self.clients.put_back(id, connection);
        }
    }

    /// Sends committed entries to a client that reads the log, as far as it takes them.
    fn feed(&self, connection: &mut Connection) {
        let Some(mut tail) = connection.tail else {
            return;
        };
        let base = self.core.base();
        if tail.next <= base {
            connection.reply(&Reply::Trimmed { base });
            tail.next = base.next();
        }
        for _ in 0..TAIL_ENTRIES_PER_TURN {
            if tail.next > self.commit.index || connection.is_full() {
                break;
            }
            let Some(entry) = self.core.entry(tail.next) else {
                break;
            };
            tail.next = tail.next.next();
            if entry.kind != EntryKind::App {
                continue;
            }
            let envelope = Envelope::take(&entry.payload);
            if let Some(Envelope::Plain(bytes) | Envelope::Session(_, bytes)) = envelope {
                let at = entry.viewstamp;
                connection.reply(&Reply::Entry { at, bytes });
            }
        }
        let at_end = tail.next > self.commit.index;
        connection.tail = Some(tail);
        if at_end && !tail.follow {
            connection.reply(&Reply::End);
            connection.tail = None;
        }
    }
}
