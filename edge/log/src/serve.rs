//! Serving remote clients.

use crate::door::{Connection, ConnectionId, OUTPUT_BYTES_MAX, Tail};
use crate::envelope::{self, Envelope, SessionRequest};
use crate::pending::Origin;
use crate::wire::{self, FrameError, Refusal, Reply, Request, StatusReport};
use crate::{Error, Server, StateMachine};
use apus::EntryKind;
use plover_types::Index;

/// Entries that one turn sends to one client that follows the log.
const TAIL_ENTRIES_PER_TURN: usize = 1024;

/// What became of a frame.
enum Handled {
    Done,
    Refused(Reply<'static>),
    /// It waits, because the log is full.
    Later,
}

impl<M: StateMachine> Server<M> {
    /// Takes on the requests of remote clients.
    pub(crate) fn take_remote(&mut self) {
        let Some(door) = &mut self.door else {
            return;
        };
        let mut places = std::mem::take(&mut door.busy);
        places.append(&mut self.stalled);
        for place in places.drain(..) {
            let taken = self.door.as_mut().and_then(|door| door.take_out(place));
            let Some((id, mut connection)) = taken else {
                continue;
            };
            if let Err(error) = self.take_frames(id, &mut connection) {
                self.rejected += 1;
                connection.reply(&Reply::Failed(error.to_string()));
                connection.close();
            }
            if let Some(door) = &mut self.door {
                door.put_back(id, connection);
            }
        }
        // The buffer goes back, with what replies have made busy meanwhile.
        if let Some(door) = &mut self.door {
            places.append(&mut door.busy);
            door.busy = places;
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
            let replies = match request {
                Request::Append {
                    number,
                    session,
                    bytes,
                } => match self.append_remote(id, number, session, bytes) {
                    Handled::Done => None,
                    Handled::Refused(reply) => Some(reply),
                    Handled::Later => {
                        self.stalled.push(id.place());
                        return Ok(());
                    }
                },
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
            if let Some(reply) = replies {
                connection.reply(&reply);
            }
            connection.done(bytes);
        }
    }

    fn append_remote(
        &mut self,
        id: ConnectionId,
        number: u64,
        session: Option<u64>,
        bytes: &[u8],
    ) -> Handled {
        let session = session.map(|session| SessionRequest { session, number });
        match self.propose(session, bytes, Origin::Remote(id, number)) {
            Ok(()) => Handled::Done,
            Err(Error::Full) => Handled::Later,
            Err(error) => Handled::Refused(self.refusal(number, error)),
        }
    }

    /// What a remote client is told whose request `number` was not appended, or not known to be.
    pub(crate) fn refusal(&self, number: u64, error: Error) -> Reply<'static> {
        match error {
            Error::TooLarge { max, .. } => {
                let max = max as u64;
                let why = Refusal::TooLarge { max };
                Reply::Refused { number, why }
            }
            Error::Stale => {
                let why = Refusal::Stale;
                Reply::Refused { number, why }
            }
            _ => self.elsewhere(number),
        }
    }

    /// Says who leads, for the request `number`.
    pub(crate) fn elsewhere(&self, number: u64) -> Reply<'static> {
        let leader = self.core.status().leader;
        let leader = leader.filter(|leader| *leader != self.config.me);
        let address = leader.and_then(|leader| self.book.get(&leader).cloned());
        Reply::Elsewhere {
            number,
            leader,
            address,
        }
    }

    fn begin_anew(&mut self) -> Reply<'static> {
        let first = self.config.first_leader();
        if self.begin() {
            Reply::Done("a new log has begun".into())
        } else if self.lost {
            Reply::Failed(format!("ask replica {}: it begins", first.0))
        } else {
            Reply::Failed("some replica still holds the log: start those that are down".into())
        }
    }

    /// Where this replica stands.
    pub fn report(&self) -> StatusReport {
        let status = self.core.status();
        let me = self.config.me;
        let door = self.door.as_ref();
        let address = match status.leader {
            Some(leader) if leader == me => door.map(|door| door.address().to_string()),
            Some(leader) => self.book.get(&leader).cloned(),
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
            clients: door.map_or(0, |door| door.count() as u64),
            rejected: status.rejected + self.rejected + door.map_or(0, |door| door.rejected),
            lost: self.lost,
            outputs: self.state.verdicts(),
        }
    }

    /// Sends on to all clients that follow the log.
    pub(crate) fn feed_tails(&mut self) {
        let Some(door) = &mut self.door else {
            return;
        };
        let mut places = Vec::new();
        door.tails(&mut places);
        self.tails_wait = false;
        for place in places {
            let taken = self.door.as_mut().and_then(|door| door.take_out(place));
            let Some((id, mut connection)) = taken else {
                continue;
            };
            self.feed(&mut connection);
            let more = |tail: Tail| tail.next <= self.commit.index;
            connection.write();
            // Otherwise a new entry, or room in its socket, begins the turn that goes on.
            self.tails_wait |=
                connection.tail.is_some_and(more) && connection.unsent() <= OUTPUT_BYTES_MAX;
            if let Some(door) = &mut self.door {
                door.put_back(id, connection);
            }
        }
    }

    /// Sends committed entries to a client that follows the log, as far as it reads them.
    fn feed(&self, connection: &mut Connection) {
        let Some(mut tail) = connection.tail else {
            return;
        };
        let base = self.core.status().base;
        if tail.next <= base {
            connection.reply(&Reply::Trimmed { base });
            tail.next = base.next();
        }
        for _ in 0..TAIL_ENTRIES_PER_TURN {
            if tail.next > self.commit.index || connection.unsent() > OUTPUT_BYTES_MAX {
                break;
            }
            let Some(entry) = self.core.entry(tail.next) else {
                break;
            };
            tail.next = tail.next.next();
            if entry.kind != EntryKind::App {
                continue;
            }
            let (session, bytes) = match envelope::take(&entry.payload) {
                Some(Envelope::Plain(bytes)) => (None, bytes),
                Some(Envelope::Session(it, bytes)) => (Some((it.session, it.number)), bytes),
                _ => continue,
            };
            connection.reply(&Reply::Entry {
                at: entry.viewstamp,
                session,
                bytes,
            });
        }
        let at_end = tail.next > self.commit.index;
        connection.tail = Some(tail);
        if at_end && !tail.follow {
            let commit = Index(tail.next.0 - 1);
            connection.reply(&Reply::End { commit });
            connection.tail = None;
        }
    }
}
