//! Serving remote clients.

use crate::clients::ConnectionId;
use crate::connection::{Connection, Tail};
use crate::envelope::{Envelope, SessionRequest};
use crate::pending::Origin;
use crate::wire::{self, FrameError, Refusal, Reply, Request, StatusReport};
use crate::{Error, Server, StateMachine};
use apus::EntryKind;
use plover_types::Index;

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
                    match session.and_then(|it| self.state.answered(it)) {
                        // The client repeats a request whose answer it has not got.
                        Some(Ok((at, answer))) => Some(Reply::Appended { number, at, answer }),
                        Some(Err(error)) => Some(self.refusal(number, error)),
                        None => match self.propose(session, bytes, Origin::Remote(id, number)) {
                            Ok(()) => None,
                            Err(Error::Full) => {
                                // The frame stays, and is taken again in the next turn.
                                self.stalled.push(id);
                                return Ok(());
                            }
                            Err(error) => Some(self.refusal(number, error)),
                        },
                    }
                }
                Request::Tail { since, follow } => {
                    // The client may have named any number.
                    let next = Index(since.0.saturating_add(1));
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
            Some(leader) if leader == me => self.announced(),
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
            // The log lacks committed entries while it is behind a state that was taken over.
            let more =
                |tail: Tail| tail.next <= self.commit.index && self.core.entry(tail.next).is_some();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framed::{Framed, Way};
    use crate::{Address, Config, LogOnly};
    use plover_fabric::{ShmConfig, ShmFabric};
    use plover_types::{ReplicaId, ReplicaSet};
    use std::io::{ErrorKind, Write};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};
    use tempfile::TempDir;

    /// Longer than anything here takes, on the busiest machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A replica that is a group by itself and leads, with its clients' socket in a folder.
    struct Alone {
        server: Server<LogOnly>,
        dir: TempDir,
    }

    impl Alone {
        fn new(name: &str) -> Self {
            let me = ReplicaId(0);
            let group = format!("serve-{name}-{}", std::process::id());
            let fabric = ShmFabric::new(ShmConfig::new(group, me, Vec::new())).unwrap();
            let config = Config::new(me, ReplicaSet::of([me]));
            let mut server = Server::in_memory(config, Box::new(fabric), LogOnly).unwrap();
            let dir = tempfile::tempdir().unwrap();
            server.listen(&Address::Unix(dir.path().join("s"))).unwrap();
            assert!(server.wait_until_leading(PATIENCE).unwrap());
            Self { server, dir }
        }

        fn socket(&self) -> UnixStream {
            let socket = UnixStream::connect(self.dir.path().join("s")).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        }

        /// A client that has sent `request`.
        fn client(&self, request: &Request<'_>) -> Framed {
            let mut client = Framed::new(Way::Plain(self.socket().into()));
            client.put(request);
            client.write().unwrap();
            client
        }

        /// Takes turns until `client` has a frame, and returns it.
        fn answer(&mut self, client: &mut Framed) -> Vec<u8> {
            let until = Instant::now() + PATIENCE;
            loop {
                let frame = client.frame().unwrap().map(<[u8]>::to_vec);
                if let Some(frame) = frame {
                    client.done(frame.len());
                    return frame;
                }
                assert!(Instant::now() < until, "no answer comes");
                self.server.turn(Some(Duration::from_millis(1))).unwrap();
                // Nothing may be there yet.
                let _ = client.read();
            }
        }

        /// The entries of the application in the log.
        fn entries(&self) -> usize {
            let last = self.server.status().last.index.0;
            let entries = (1..=last).filter_map(|it| self.server.entry(Index(it)));
            entries.filter(|(_, bytes)| bytes.is_some()).count()
        }
    }

    #[test]
    fn a_reader_may_name_any_number() {
        let mut alone = Alone::new("any-number");
        for since in [Index(0), Index(u64::MAX - 1), Index(u64::MAX)] {
            let follow = false;
            let mut client = alone.client(&Request::Tail { since, follow });
            let frame = alone.answer(&mut client);
            assert_eq!(wire::take(&frame), Ok(Reply::End), "{since}");
        }
    }

    #[test]
    fn a_repeated_request_is_in_the_log_once() {
        let mut alone = Alone::new("repeated");
        let request = |number| Request::Append {
            number,
            session: Some(7),
            bytes: b"entry",
        };
        // The second one comes before the entry of the first one is committed.
        let _first = alone.client(&request(1));
        let mut second = alone.client(&request(1));
        let answered = alone.answer(&mut second);
        let reply: Reply<'_> = wire::take(&answered).unwrap();
        assert!(matches!(reply, Reply::Appended { .. }), "{reply:?}");
        // The third one comes after that.
        let mut third = alone.client(&request(1));
        assert_eq!(alone.answer(&mut third), answered);
        assert_eq!(alone.entries(), 1);
        let mut next = alone.client(&request(2));
        assert_ne!(alone.answer(&mut next), answered);
        assert_eq!(alone.entries(), 2);
    }

    #[test]
    fn a_client_that_does_not_read_is_not_read() {
        let mut alone = Alone::new("unread");
        let appended = alone.server.append(&vec![1; 300_000], PATIENCE).unwrap();
        appended.unwrap();
        let (since, follow) = (Index(0), false);
        let mut requests = Vec::new();
        for _ in 0..1000 {
            wire::put(&Request::Tail { since, follow }, &mut requests);
        }
        // Each request asks for 300 kB, of which nothing is read.
        let mut socket = alone.socket();
        let (mut written, mut refused) = (0, 0);
        while refused < 100 {
            match socket.write(&requests[written % requests.len()..]) {
                Ok(count) => (written, refused) = (written + count, 0),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    refused += 1;
                }
            }
            assert!(written < 8 << 20, "the requests of this client are read");
            alone.server.turn(Some(Duration::from_millis(1))).unwrap();
        }
    }
}
