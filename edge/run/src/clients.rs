//! The clients of the leader.

#[cfg(test)]
mod tests;

use plover_log::Error;
use plover_program::{ConnectionId, Entry};
use plover_types::Viewstamp;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::sockopt;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that one turn reads of one client, and which go in one entry.
const READ_BYTES: usize = 32 << 10;

/// A client that leaves more replies unread is cut off. A program must not wait for it, since its next input
/// would wait, too.
const UNSENT_BYTES_MAX: usize = 64 << 20;

/// Descriptors that are left for all else: the links, the log's files, jobs and requests, and clients that go on sending.
const OTHER_DESCRIPTORS: u64 = 192;

/// No client is accepted for so long after the host had no descriptor or no memory for one.
const REST: Duration = Duration::from_millis(100);

/// A client whose connection the program has ended, and that goes on sending, is read for so long: the kernel answers what comes
/// to a closed connection by a reset, and the client loses what it has not read of the reply.
const LINGERS: Duration = Duration::from_secs(2);
/// So many of them at most.
const LINGERING_MAX: usize = 64;
/// Reads of such a client in a turn, and bytes of a read.
const LINGER_READS: usize = 16;
const LINGER_BYTES: usize = 64 << 10;

/// Proposes an entry.
pub(crate) type Propose<'a> = &'a mut dyn FnMut(&Entry<'_>) -> Result<Viewstamp, Error>;

#[derive(Debug)]
struct Client {
    id: ConnectionId,
    stream: TcpStream,
    /// What was read and is not in the log yet, because the log was full.
    unproposed: Vec<u8>,
    /// It sends nothing more; whether the log knows.
    ended: bool,
    end_proposed: bool,
    out: Vec<u8>,
    /// `out`, and the connection's end, wait until no other replica can lead.
    is_held: bool,
    /// Bytes that the program has sent it.
    sent: u64,
    /// The program has ended the connection.
    finishes: bool,
}

/// The listener and all clients.
#[derive(Debug)]
pub(crate) struct Clients {
    epoll: Arc<OwnedFd>,
    kind: u64,
    listener_token: u64,
    listener: Option<TcpListener>,
    next: u64,
    all: BTreeMap<u64, Client>,
    tokens: BTreeMap<ConnectionId, u64>,
    /// Connections whose end is not in the log yet, and what the program had sent on them.
    gone: Vec<(ConnectionId, u64)>,
    /// Connections that the program has ended and the client has not, and when they are closed.
    lingering: Vec<(TcpStream, Instant)>,
    reads: bool,
    /// Replies leave until then.
    leased_until: Instant,
    /// Replies to somebody wait for that.
    is_held: bool,
    entry_bytes_max: usize,
    /// More are turned away, since there would be no descriptors for them.
    clients_max: usize,
    /// The last one was turned away for that.
    is_full: bool,
    /// None is accepted until then.
    rests_until: Option<Instant>,
    /// The log has been told of the present lack of room.
    has_warned: bool,
}

/// The clients for which the limit of open files leaves room, if each takes so many.
fn clients_max(files_each: u64) -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (all.saturating_sub(OTHER_DESCRIPTORS) / files_each).max(1) as usize
}

/// Whether this process or its host has no room for another client now.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
    )
}

impl Clients {
    pub fn new(
        epoll: Arc<OwnedFd>,
        kind: u64,
        listener_token: u64,
        entry_bytes_max: usize,
        files_each: u64,
    ) -> Self {
        Self {
            epoll,
            kind,
            listener_token,
            listener: None,
            next: 0,
            all: BTreeMap::new(),
            tokens: BTreeMap::new(),
            gone: Vec::new(),
            lingering: Vec::new(),
            reads: false,
            leased_until: Instant::now(),
            is_held: false,
            entry_bytes_max: entry_bytes_max.saturating_sub(64).min(READ_BYTES),
            clients_max: clients_max(files_each),
            is_full: false,
            rests_until: None,
            has_warned: false,
        }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// Lets clients in at `address`.
    pub fn listen(&mut self, address: SocketAddrV4) -> io::Result<()> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        self.listener = Some(listener);
        self.reads = true;
        self.rests_until = None;
        self.watch_all();
        let listener = self.listener.as_ref().expect("it was set");
        epoll::add(
            &self.epoll,
            listener,
            EventData::new_u64(self.listener_token),
            EventFlags::IN,
        )?;
        Ok(())
    }

    /// Closes everything, by resets.
    pub fn drop_all(&mut self) {
        self.all.clear();
        self.tokens.clear();
        self.gone.clear();
        self.lingering.clear();
        self.listener = None;
    }

    /// Resets all clients' connections, and lets none in. The log is told that they are over.
    pub fn reset_all(&mut self) {
        self.listener = None;
        let all = std::mem::take(&mut self.all);
        self.gone.extend(all.values().map(|it| (it.id, it.sent)));
        self.tokens.clear();
    }

    /// No other replica leads before `until`: replies that waited for that leave.
    pub fn lease(&mut self, until: Instant) {
        self.leased_until = until;
        if self.is_held && Instant::now() < until {
            self.is_held = false;
            let held = self.all.iter().filter(|it| it.1.is_held);
            for token in Vec::from_iter(held.map(|it| *it.0)) {
                self.send(token);
            }
        }
    }

    /// Sends a client its replies.
    fn send(&mut self, token: u64) {
        let Some(client) = self.all.get_mut(&token) else {
            return;
        };
        self.is_held |= client.write(self.leased_until);
        let lives = client.out.len() <= UNSENT_BYTES_MAX;
        self.settle(token, lives);
    }

    /// Sets whether clients are accepted and read.
    pub fn set_reads(&mut self, reads: bool) {
        self.linger();
        if self
            .rests_until
            .is_some_and(|until| Instant::now() >= until)
        {
            self.rests_until = None;
            self.watch_listener();
        }
        if self.reads != reads {
            self.reads = reads;
            self.watch_all();
        }
    }

    /// Drops what comes from clients whose connections the program has ended.
    fn linger(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        let (now, mut scratch) = (Instant::now(), vec![0; LINGER_BYTES]);
        self.lingering.retain_mut(|(stream, until)| {
            let reads = (0..LINGER_READS).find_map(|_| match stream.read(&mut scratch) {
                Ok(count) if count > 0 => None,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Some(true),
                _ => Some(false),
            });
            reads.unwrap_or(true) && now < *until
        });
    }

    fn watch_all(&self) {
        for (token, client) in &self.all {
            client.watch(&self.epoll, *token, self.reads);
        }
        self.watch_listener();
    }

    fn watch_listener(&self) {
        if let Some(listener) = &self.listener {
            let flags = if self.reads && self.rests_until.is_none() {
                EventFlags::IN
            } else {
                EventFlags::empty()
            };
            let data = EventData::new_u64(self.listener_token);
            let _ = epoll::modify(&self.epoll, listener, data, flags);
        }
    }

    /// The next client that waits, if there are descriptors for it beside those of the clients that are `connected`.
    fn next_client(&mut self, connected: usize) -> Option<(TcpStream, SocketAddr)> {
        loop {
            match self.listener.as_ref()?.accept() {
                Ok(new) if connected < self.clients_max => {
                    self.is_full = false;
                    return Some(new);
                }
                Ok((stream, _)) => {
                    ends_by_reset(&stream);
                    if !std::mem::replace(&mut self.is_full, true) {
                        tracing::warn!(
                            connected,
                            "clients are turned away: the limit of open files leaves room for no more; raise `ulimit -n`"
                        );
                    }
                }
                Err(error) => {
                    if is_exhausted(&error) {
                        self.rest(&error);
                    } else {
                        self.has_warned = false;
                    }
                    return None;
                }
            }
        }
    }

    /// Clients stay in the kernel's queue for a moment. Otherwise the loop would be told of them without a pause.
    fn rest(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(%error, "no client is accepted for now: raise `ulimit -n`, or give the host more memory");
        }
        self.rests_until = Some(Instant::now() + REST);
        self.watch_listener();
    }

    /// Accepts clients that wait.
    pub fn accept(&mut self, propose: Propose<'_>) {
        while let Some((stream, from)) = self.next_client(self.all.len()) {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            set_up(&stream);
            // Without a place in the log the client is turned away, and tries again.
            let Ok(at) = propose(&Entry::Accept(client_at(from))) else {
                return;
            };
            let (id, token) = (ConnectionId(at), self.kind | self.next);
            self.next += 1;
            let client = Client {
                id,
                stream,
                unproposed: Vec::new(),
                ended: false,
                end_proposed: false,
                out: Vec::new(),
                is_held: false,
                sent: 0,
                finishes: false,
            };
            let data = EventData::new_u64(token);
            if epoll::add(&self.epoll, &client.stream, data, EventFlags::IN).is_err() {
                self.gone.push((id, 0));
                continue;
            }
            self.all.insert(token, client);
            self.tokens.insert(id, token);
        }
    }

    /// Accepts clients that wait, for another owner that has so many `connected`.
    pub fn take_new(&mut self, connected: usize) -> Vec<(TcpStream, plover_program::Client)> {
        let mut new = Vec::new();
        while let Some((stream, from)) = self.next_client(connected + new.len()) {
            set_up(&stream);
            new.push((stream, client_at(from)));
        }
        new
    }

    /// A client is ready.
    pub fn ready(&mut self, token: u64, flags: EventFlags, propose: Propose<'_>) {
        let Some(client) = self.all.get_mut(&token) else {
            return;
        };
        let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if flags.contains(EventFlags::OUT) || is_over {
            self.is_held |= client.write(self.leased_until);
        }
        let mut lives = true;
        if self.reads && flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
            // Where it has sent its end, nothing is read that would show that it is over.
            lives = client.read() && !(is_over && client.ended);
            lives &= client.propose(self.entry_bytes_max, propose);
        } else if is_over {
            lives = false;
        }
        self.settle(token, lives);
    }

    /// Sends a client a reply.
    pub fn reply(&mut self, id: ConnectionId, bytes: &[u8]) {
        let Some(&token) = self.tokens.get(&id) else {
            return;
        };
        if let Some(client) = self.all.get_mut(&token) {
            client.out.extend_from_slice(bytes);
            client.sent += bytes.len() as u64;
            self.send(token);
        }
    }

    /// The program has ended the connection: it is closed when all replies are sent.
    pub fn finish(&mut self, id: ConnectionId) {
        let Some(&token) = self.tokens.get(&id) else {
            return;
        };
        if let Some(client) = self.all.get_mut(&token) {
            client.finishes = true;
            self.send(token);
        }
    }

    /// The connection is over in the log.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(token) = self.tokens.remove(&id) {
            self.all.remove(&token);
        }
    }

    /// Proposes what could not be proposed before.
    pub fn retry(&mut self, propose: Propose<'_>) {
        self.gone
            .retain(|(id, sent)| propose(&Entry::Close(*id, *sent)).is_err());
        let waiting: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, it)| it.waits())
            .map(|it| *it.0)
            .collect();
        for token in waiting {
            if let Some(client) = self.all.get_mut(&token) {
                let lives = client.propose(self.entry_bytes_max, propose);
                self.settle(token, lives);
            }
        }
    }

    fn settle(&mut self, token: u64, lives: bool) {
        let Some(client) = self.all.get(&token) else {
            return;
        };
        let is_done = client.finishes && client.out.is_empty() && !client.is_held;
        if lives && !is_done {
            return client.watch(&self.epoll, token, self.reads);
        }
        self.gone.push((client.id, client.sent));
        self.tokens.remove(&client.id);
        let Some(client) = self.all.remove(&token).filter(|_| lives) else {
            return;
        };
        ends_in_order(&client.stream);
        let is_open = !client.ended && client.stream.shutdown(Shutdown::Write).is_ok();
        if is_open && epoll::delete(&self.epoll, &client.stream).is_ok() {
            if self.lingering.len() == LINGERING_MAX {
                self.lingering.remove(0);
            }
            self.lingering
                .push((client.stream, Instant::now() + LINGERS));
        }
    }
}

/// A client that says nothing is asked after this time whether it is still there, and so often before it counts as gone.
const IDLE: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// A client's connection ends by a reset, however this process and the program end: some clients take an orderly end for success.
fn set_up(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    ends_by_reset(stream);
    // The program's own probes only ask this process, which is always there.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
}

pub(crate) fn ends_by_reset(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// The program has ended the connection, and that is committed.
pub(crate) fn ends_in_order(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, None);
}

/// A client's address, as the log has it.
fn client_at(from: SocketAddr) -> plover_program::Client {
    let (ip, port) = match from {
        SocketAddr::V4(from) => (from.ip().octets(), from.port()),
        SocketAddr::V6(from) => ([0; 4], from.port()),
    };
    plover_program::Client { ip, port }
}

impl Client {
    fn waits(&self) -> bool {
        !self.unproposed.is_empty() || (self.ended && !self.end_proposed)
    }

    fn watch(&self, epoll: &OwnedFd, token: u64, reads: bool) {
        let mut flags = EventFlags::empty();
        flags.set(
            EventFlags::IN,
            reads && !self.ended && self.unproposed.is_empty(),
        );
        flags.set(EventFlags::OUT, !self.out.is_empty() && !self.is_held);
        let _ = epoll::modify(epoll, &self.stream, EventData::new_u64(token), flags);
    }

    /// Reads what has come. False if the connection is broken.
    fn read(&mut self) -> bool {
        if self.ended || !self.unproposed.is_empty() {
            return true;
        }
        let mut bytes = vec![0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(count) => self.unproposed.extend_from_slice(&bytes[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
        true
    }

    /// Puts what was read into the log. False if this replica does not lead any more.
    fn propose(&mut self, bytes_max: usize, propose: Propose<'_>) -> bool {
        while !self.unproposed.is_empty() {
            let count = self.unproposed.len().min(bytes_max);
            match propose(&Entry::Bytes(self.id, self.sent, &self.unproposed[..count])) {
                Ok(_) => drop(self.unproposed.drain(..count)),
                Err(Error::Full) => return true,
                Err(_) => return false,
            }
        }
        if self.ended && !self.end_proposed {
            match propose(&Entry::End(self.id, self.sent)) {
                Ok(_) => self.end_proposed = true,
                Err(Error::Full) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends replies as long as no other replica can lead: it may have answered others since. Returns whether they, or the
    /// connection's end, wait for that.
    fn write(&mut self, leased_until: Instant) -> bool {
        let has_words = self.finishes || !self.out.is_empty();
        self.is_held = has_words && Instant::now() >= leased_until;
        while !self.out.is_empty() && !self.is_held {
            match self.stream.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The next read finds it broken.
                Err(_) => self.out.clear(),
            }
        }
        self.is_held
    }
}
