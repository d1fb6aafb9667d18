//! Remote clients: connections that are read, answered and written without ever blocking.
//!
//! ```text
//!   socket ─► input ─► frame ─► (server) ─► output ─► socket
//!                ▲                             │
//!                └─ not read while the output is long, or the log refuses ◄┘
//! ```
//!
//! With keys, a TCP connection waits in the lobby (`lobby.rs`) until its client has shown one that is trusted.

use crate::address::{Address, Listener, set_up};
use crate::connection::Connection;
use crate::framed::Way;
use crate::lobby::Lobby;
use crate::wire::Reply;
use plover_fabric::Keys;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// Connections at a time. Further ones are turned away.
const CONNECTIONS_MAX: usize = 4096;
/// A client whose key is trusted no more loses its connection after so long at the latest.
const TRUST_EVERY: Duration = Duration::from_secs(1);
/// While connections wait for their handshake, the server looks after them so often.
const LOBBY_EVERY: Duration = Duration::from_millis(100);
/// If the kernel has no room for another connection, the next one is accepted after so long.
const PAUSE: Duration = Duration::from_millis(100);

/// Names a connection; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(u64);

/// Epoll's name for the listening socket.
const LISTENER: u64 = u64::MAX;
/// Epoll's name for descriptors that only end the server's sleep.
const WAKER: u64 = u64::MAX - 1;

/// All remote clients, and the other descriptors that end the server's sleep.
#[derive(Debug)]
pub(crate) struct Clients {
    pub epoll: OwnedFd,
    listener: Option<Listener>,
    /// Until then the listener is not watched.
    paused_until: Option<Instant>,
    /// The log says that clients wait for want of room. Cleared when none waits.
    has_warned: bool,
    /// With keys: the clients that have not shown theirs.
    lobby: Option<Lobby>,
    /// The time of the last look at the connections' keys.
    trusted_at: Instant,
    connections: BTreeMap<ConnectionId, Connection>,
    next: u64,
    /// The number of connections, including those that are taken out.
    pub count: usize,
    /// Connections that may have frames or want to send.
    pub busy: Vec<ConnectionId>,
    rejected: u64,
}

impl Clients {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener: None,
            paused_until: None,
            has_warned: false,
            lobby: None,
            trusted_at: Instant::now(),
            connections: BTreeMap::new(),
            next: 0,
            count: 0,
            busy: Vec::new(),
            rejected: 0,
        })
    }

    /// Makes `epoll` readable while `waker` is. The caller checks the waker's own source itself.
    pub fn watch(&self, waker: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            waker,
            EventData::new_u64(WAKER),
            EventFlags::IN,
        )
    }

    /// Lets clients in. With `keys`, clients over TCP need keys that these trust.
    pub fn listen(&mut self, listener: Listener, keys: Option<Arc<Keys>>) -> Result<(), Errno> {
        let is_tcp = matches!(listener.address, Address::Tcp(_));
        self.lobby = keys.filter(|_| is_tcp).map(Lobby::new);
        let data = EventData::new_u64(LISTENER);
        epoll::add(&self.epoll, &listener.socket, data, EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Where clients are let in, if they are.
    pub fn address(&self) -> Option<&Address> {
        self.listener.as_ref().map(|it| &it.address)
    }

    /// Reads what has come in; connections with something to do are `busy` afterwards.
    pub fn progress(&mut self) {
        let mut events = [MaybeUninit::uninit(); 64];
        let none = rustix::time::Timespec::default();
        let now = Instant::now();
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&none)) else {
            return;
        };
        for event in events {
            let (name, flags) = (event.data.u64(), event.flags);
            if name == LISTENER {
                self.accept();
            } else if let Some(line) = self.lobby.as_mut().and_then(|it| it.advance(name, now)) {
                let key = line.peer_key();
                // Epoll does not show again what came with the end of the handshake.
                let mut connection = Connection::new(Way::Tls(Box::new(line)), key);
                connection.read();
                self.connections.insert(ConnectionId(name), connection);
                self.count += 1;
                self.busy.push(ConnectionId(name));
            } else if let Some(connection) = self.connections.get_mut(&ConnectionId(name)) {
                if flags.contains(EventFlags::IN) {
                    connection.read();
                } else if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
                    connection.broken = true;
                }
                self.busy.push(ConnectionId(name));
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Some(listener) = &self.listener else {
            return;
        };
        for _ in 0..64 {
            let (socket, from) = match acceptfrom_with(&listener.socket, flags) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => {
                    self.has_warned = false;
                    return;
                }
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.pause(error);
                }
                Err(error) => return debug!(%error, "accept failed"),
            };
            if self.count >= CONNECTIONS_MAX {
                self.rejected += 1;
                continue;
            }
            if matches!(listener.address, Address::Tcp(_)) {
                set_up(&socket);
            }
            let data = EventData::new_u64(self.next);
            if let Err(error) = epoll::add(&self.epoll, &socket, data, EventFlags::IN) {
                debug!(%error, "a connection failed at once");
                continue;
            }
            match &mut self.lobby {
                Some(lobby) => {
                    let socket = TcpStream::from(socket);
                    lobby.enter(self.next, socket, host_of(from), Instant::now());
                }
                None => {
                    let connection = Connection::new(Way::Plain(socket), None);
                    self.connections.insert(ConnectionId(self.next), connection);
                    self.count += 1;
                }
            }
            self.next += 1;
        }
    }

    /// The kernel has no room for another connection. Epoll would show those that wait again and again, so the listener
    /// is not watched for a while.
    fn pause(&mut self, error: Errno) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!(
                "no further client is let in ({error}): raise the limit of open files (LimitNOFILE= of the service), or \
                 end some of the {} connections",
                self.count
            );
        }
        self.watch_listener(EventFlags::empty());
        self.paused_until = Some(Instant::now() + PAUSE);
    }

    fn watch_listener(&self, wanted: EventFlags) {
        let Some(listener) = &self.listener else {
            return;
        };
        let data = EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &listener.socket, data, wanted) {
            debug!(%error, "the clients' socket cannot be watched otherwise");
        }
    }

    /// Ends handshakes that take too long, connections whose keys are trusted no more, and a pause of the listener.
    pub fn expire(&mut self) {
        let now = Instant::now();
        if self.paused_until.take_if(|until| *until <= now).is_some() {
            self.watch_listener(EventFlags::IN);
        }
        let Some(lobby) = &mut self.lobby else {
            return;
        };
        lobby.expire(now);
        if now.saturating_duration_since(self.trusted_at) < TRUST_EVERY {
            return;
        }
        self.trusted_at = now;
        let keys = lobby.keys();
        let is_trusted = |it: &Connection| it.key.is_some_and(|key| keys.may_use(key));
        self.connections.retain(|_, it| is_trusted(it));
        self.count = self.connections.len();
    }

    /// How long the server may sleep before [`Self::expire`].
    pub fn patience(&self) -> Option<Duration> {
        let pause = self.paused_until.map(|_| PAUSE);
        let lobby = self.lobby.as_ref();
        let lobby = lobby.and_then(|lobby| match (lobby.is_empty(), self.count) {
            (false, _) => Some(LOBBY_EVERY),
            (true, 0) => None,
            (true, _) => Some(TRUST_EVERY),
        });
        pause.into_iter().chain(lobby).min()
    }

    /// Whether the client of `connection` may change the group.
    pub fn may_administer(&self, connection: &Connection) -> bool {
        let trusts = |lobby: &Lobby| {
            connection
                .key
                .is_some_and(|key| lobby.keys().may_administer(key))
        };
        self.lobby.as_ref().is_none_or(trusts)
    }

    /// Connections that were turned away.
    pub fn rejected(&self) -> u64 {
        self.rejected + self.lobby.as_ref().map_or(0, |it| it.rejected)
    }

    /// Takes a connection out, so that the server can work on it and on itself;
    /// [`Self::put_back`] follows.
    pub fn take_out(&mut self, id: ConnectionId) -> Option<Connection> {
        self.connections.remove(&id)
    }

    /// Puts a connection back, and sends what it has to send.
    pub fn put_back(&mut self, id: ConnectionId, mut connection: Connection) {
        connection.framed.tidy();
        connection.write();
        if connection.is_over() {
            self.count -= 1;
            // Closing the socket takes it out of the epoll set.
            return;
        }
        let wanted = connection.wanted();
        if wanted != connection.interest {
            let data = EventData::new_u64(id.0);
            match epoll::modify(&self.epoll, &connection.framed, data, wanted) {
                Ok(()) => connection.interest = wanted,
                Err(error) => debug!(%error, "a connection cannot be watched"),
            }
        }
        self.connections.insert(id, connection);
    }

    /// Queues a reply on a connection, if it is still there. The end of the turn sends it.
    pub fn reply(&mut self, id: ConnectionId, reply: &Reply<'_>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.reply(reply);
            self.busy.push(id);
        }
    }

    /// Whether the client is there.
    pub fn has(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    /// The connections that read the log.
    pub fn tails(&self) -> Vec<ConnectionId> {
        let tails = self.connections.iter().filter(|(_, it)| it.tail.is_some());
        tails.map(|(id, _)| *id).collect()
    }

    /// Sends the output of all busy connections, as far as their sockets take it.
    pub fn flush(&mut self) {
        while let Some(id) = self.busy.pop() {
            if let Some(connection) = self.take_out(id) {
                self.put_back(id, connection);
            }
        }
    }
}

/// The host of a connection over TCP.
fn host_of(from: Option<SocketAddrAny>) -> String {
    let from = from.and_then(|it| SocketAddr::try_from(it).ok());
    from.map_or_else(|| "an unknown host".into(), |it| it.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_listener_without_room_rests_and_is_watched_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut clients = Clients::new().unwrap();
        let listener = Listener::bind(&Address::Unix(path.clone())).unwrap();
        clients.listen(listener, None).unwrap();
        clients.pause(Errno::MFILE);
        let _client = UnixStream::connect(&path).unwrap();
        clients.progress();
        assert_eq!(clients.count, 0);
        assert_eq!(clients.patience(), Some(PAUSE));
        std::thread::sleep(PAUSE);
        clients.expire();
        clients.progress();
        assert_eq!((clients.count, clients.patience()), (1, None));
    }
}
