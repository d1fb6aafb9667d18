//! The connections to the program, over the loopback of this host.

use crate::unread::Diag;
use plover_program::ConnectionId;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socket_with};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that one turn reads of one connection.
const READ_BYTES: usize = 64 << 10;

/// What comes from the program.
#[derive(Debug)]
pub(crate) enum FromProgram {
    Output(ConnectionId, Vec<u8>),
    Ended(ConnectionId),
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    stream: TcpStream,
    /// Our end.
    own: SocketAddrV4,
    is_up: bool,
    /// What the socket has not taken yet.
    out: Vec<u8>,
    /// Bytes that the socket has taken.
    sent: u64,
    /// No more input follows, and the socket knows.
    ends: bool,
    ended: bool,
    closes: bool,
    /// All that was sent has come to the program's socket.
    arrived: bool,
    output_ended: bool,
    /// The program or the kernel has broken it off.
    is_dead: bool,
    /// What the loop waits for.
    watched: EventFlags,
}

/// All connections to the program.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// Where the program listens.
    program: SocketAddrV4,
    diag: Diag,
    epoll: Arc<OwnedFd>,
    /// Tells these tokens from others.
    kind: u64,
    next: u64,
    all: BTreeMap<u64, Connection>,
    tokens: BTreeMap<ConnectionId, u64>,
    /// Those with input that the program may not have read.
    unread: BTreeSet<u64>,
    /// Ports of this end whose connections are closed.
    gone: Vec<u16>,
    /// The ports that the kernel draws from, and the next one to be used again.
    ports: RangeInclusive<u16>,
    port: u16,
    scratch: Vec<u8>,
}

/// A connection, this end of it, and how its opening went.
type Opened = (TcpStream, SocketAddrV4, rustix::io::Result<()>);

/// Whether another port may do.
fn is_in_use(opened: &io::Result<Opened>) -> bool {
    let kind = opened.as_ref().err().map(io::Error::kind);
    matches!(
        kind,
        Some(ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
    )
}

/// The ports that the kernel draws from, where it does not tell.
const PORTS: RangeInclusive<u16> = 32_768..=60_999;

fn ports_drawn() -> RangeInclusive<u16> {
    let told = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let told = told.unwrap_or_default();
    let mut words = told.split_ascii_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => first..=last,
        _ => PORTS,
    }
}

impl Sockets {
    pub fn new(program: SocketAddrV4, epoll: Arc<OwnedFd>, kind: u64) -> io::Result<Self> {
        let ports = ports_drawn();
        Ok(Self {
            program,
            port: *ports.start(),
            ports,
            diag: Diag::open()?,
            epoll,
            kind,
            next: 0,
            all: BTreeMap::new(),
            tokens: BTreeMap::new(),
            unread: BTreeSet::new(),
            gone: Vec::new(),
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Whether a process listens where the program should.
    pub fn is_served(&self) -> io::Result<bool> {
        self.diag.listens(self.program)
    }

    /// Whether the program may have something to read.
    pub fn waits(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Forgets all connections: the program has ended. They are reset, since the kernel would keep a program's end
    /// that was closed first for a minute, and its port with it.
    pub fn clear(&mut self) {
        for connection in self.all.values() {
            let _ =
                rustix::net::sockopt::set_socket_linger(&connection.stream, Some(Duration::ZERO));
        }
        self.all.clear();
        self.tokens.clear();
        self.unread.clear();
    }

    /// Opens a connection. `bound` learns the port of this end before the program can see it.
    pub fn connect(&mut self, id: ConnectionId, mut bound: impl FnMut(u16)) -> io::Result<()> {
        let (stream, own, result) = self.open(&mut bound)?;
        // An end that is still to be told of this port is that of another connection.
        self.gone.retain(|port| *port != own.port());
        let is_dead = !matches!(result, Ok(()) | Err(Errno::INPROGRESS));
        stream.set_nodelay(true)?;
        let token = self.kind | self.next;
        self.next += 1;
        let data = EventData::new_u64(token);
        let watched = EventFlags::IN | EventFlags::OUT;
        epoll::add(&self.epoll, &stream, data, watched)?;
        let connection = Connection {
            id,
            stream,
            own,
            is_up: result.is_ok(),
            out: Vec::new(),
            sent: 0,
            ends: false,
            ended: false,
            closes: false,
            arrived: false,
            output_ended: false,
            is_dead,
            watched,
        };
        self.all.insert(token, connection);
        self.tokens.insert(id, token);
        self.unread.insert(token);
        Ok(())
    }

    /// A socket that has begun to connect.
    ///
    /// This end ends first where the client does, so the kernel keeps its port for a minute, and clients that come and go
    /// use up all ports within that. The kernel draws none of these, and lets a connection over the loopback have one that is
    /// named. So they are used again one after the other.
    fn open(&mut self, bound: &mut impl FnMut(u16)) -> io::Result<Opened> {
        let drawn = self.open_at(0, bound);
        if !is_in_use(&drawn) {
            return drawn;
        }
        let used: HashSet<u16> = self.all.values().map(|it| it.own.port()).collect();
        for _ in self.ports.clone() {
            let port = self.port;
            self.port = match port < *self.ports.end() {
                true => port + 1,
                false => *self.ports.start(),
            };
            if !used.contains(&port) {
                let opened = self.open_at(port, bound);
                if !is_in_use(&opened) {
                    return opened;
                }
            }
        }
        drawn
    }

    /// The same from this port; 0 is any.
    fn open_at(&mut self, port: u16, bound: &mut impl FnMut(u16)) -> io::Result<Opened> {
        let stream = self.bind_to(port)?;
        let SocketAddr::V4(own) = stream.local_addr()? else {
            unreachable!("it was made as an IPv4 socket");
        };
        bound(own.port());
        let result = rustix::net::connect(&stream, &self.program);
        if result == Err(Errno::ADDRNOTAVAIL) {
            self.gone.push(own.port());
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        Ok((stream, own, result))
    }

    fn bind_to(&self, port: u16) -> io::Result<TcpStream> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(*self.program.ip(), port))?;
        Ok(TcpStream::from(socket))
    }

    pub fn has(&self, id: ConnectionId) -> bool {
        self.tokens.contains_key(&id)
    }

    /// The ports of connections that were closed since the last call.
    pub fn take_gone(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.gone)
    }

    pub fn feed(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.give(id, |connection| connection.out.extend_from_slice(bytes));
    }

    /// The program gets no more input on this connection.
    pub fn end(&mut self, id: ConnectionId) {
        self.give(id, |connection| connection.ends = true);
    }

    /// The same, and its output is dropped. The socket goes when the program has noticed.
    pub fn close(&mut self, id: ConnectionId) {
        self.give(id, |connection| {
            (connection.ends, connection.closes) = (true, true);
        });
        self.tokens.remove(&id);
    }

    fn give(&mut self, id: ConnectionId, what: impl FnOnce(&mut Connection)) {
        let Some(token) = self.tokens.get(&id) else {
            return;
        };
        if let Some(connection) = self.all.get_mut(token) {
            what(connection);
            connection.arrived = false;
            connection.write();
            self.unread.insert(*token);
            let _ = connection.watch(&self.epoll, *token);
        }
    }

    /// A connection is ready.
    pub fn ready(&mut self, token: u64, flags: EventFlags, out: &mut Vec<FromProgram>) {
        let Some(connection) = self.all.get_mut(&token) else {
            return;
        };
        if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            match connection.stream.take_error() {
                Ok(None) => connection.is_up |= flags.contains(EventFlags::OUT),
                _ => connection.is_dead = true,
            }
            connection.write();
        }
        if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
            connection.read(&mut self.scratch, out);
        }
        let _ = connection.watch(&self.epoll, token);
    }

    /// The connections on which the program has read everything by now.
    pub fn take_read(&mut self) -> Vec<ConnectionId> {
        let mut read = Vec::new();
        let (all, gone, diag, program) = (&mut self.all, &mut self.gone, &self.diag, self.program);
        self.unread.retain(|token| {
            let Some(connection) = all.get_mut(token) else {
                return false;
            };
            if !connection.is_read(diag, program) {
                return true;
            }
            read.push(connection.id);
            if connection.closes {
                gone.push(connection.own.port());
                all.remove(token);
            }
            false
        });
        read
    }
}

impl Connection {
    fn write(&mut self) {
        while self.is_up && !self.out.is_empty() && !self.is_dead {
            match self.stream.write(&self.out) {
                Ok(count) => {
                    self.out.drain(..count);
                    self.sent += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_dead = true,
            }
        }
        if self.is_up && self.ends && !self.ended && self.out.is_empty() {
            self.ended = true;
            let _ = rustix::net::shutdown(self.stream.as_fd(), Shutdown::Write);
        }
    }

    fn read(&mut self, scratch: &mut [u8], out: &mut Vec<FromProgram>) {
        match self.stream.read(scratch) {
            Ok(count) if count > 0 => {
                // A program that sends an answer in two parts may wait with the second until the first is acknowledged (Nagle), which
                // the kernel does 40 ms later. It forgets this word by itself.
                let _ = rustix::net::sockopt::set_tcp_quickack(&self.stream, true);
                if !self.closes {
                    out.push(FromProgram::Output(self.id, scratch[..count].to_vec()));
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            result => {
                self.is_dead |= result.is_err();
                if !std::mem::replace(&mut self.output_ended, true) && !self.closes {
                    out.push(FromProgram::Ended(self.id));
                }
            }
        }
    }

    /// Waits for what is missing still.
    fn watch(&mut self, epoll: &OwnedFd, token: u64) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.output_ended);
        flags.set(
            EventFlags::OUT,
            !self.is_dead && (!self.is_up || !self.out.is_empty()),
        );
        if (self.is_dead || self.ended) && self.output_ended {
            // Both ends are over, which the kernel would report for ever.
            epoll::delete(epoll, &self.stream)?;
            return Ok(());
        }
        if std::mem::replace(&mut self.watched, flags) == flags {
            return Ok(());
        }
        Ok(epoll::modify(
            epoll,
            &self.stream,
            EventData::new_u64(token),
            flags,
        )?)
    }

    fn is_read(&mut self, diag: &Diag, program: SocketAddrV4) -> bool {
        if self.is_dead {
            return true;
        }
        if !self.is_up || !self.out.is_empty() || (self.ends && !self.ended) {
            return false;
        }
        let ask = || diag.socket(program, self.own);
        match ask() {
            Ok(Some(socket)) => {
                if !self.arrived && socket.has(self.sent, self.ended) {
                    // Only a later answer surely counts what has come as waiting.
                    self.arrived = true;
                    return match ask() {
                        Ok(Some(socket)) => socket.is_read(),
                        Ok(None) => true,
                        Err(_) => false,
                    };
                }
                self.arrived && socket.is_read()
            }
            Ok(None) => true,
            // The program is taken to stand still in the end.
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::{Index, View, Viewstamp};
    use rustix::event::epoll::CreateFlags;
    use std::net::Ipv4Addr;
    use std::process::Command;
    use std::time::Instant;

    /// A program that does not ask for `SO_REUSEADDR`, as libupnp does not.
    fn listen(at: SocketAddrV4) -> io::Result<OwnedFd> {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&socket, &at)?;
        rustix::net::listen(&socket, 8)?;
        Ok(socket)
    }

    #[test]
    fn a_program_that_died_can_listen_again_at_once() {
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let listener = listen(any).unwrap();
        let at = rustix::net::getsockname(&listener).unwrap();
        let at = SocketAddrV4::try_from(at).unwrap();
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
        let mut sockets = Sockets::new(at, epoll, 1 << 60).unwrap();
        let id = ConnectionId(Viewstamp {
            view: View(1),
            index: Index(1),
        });
        sockets.connect(id, |_| {}).unwrap();
        let accepted = rustix::net::accept(&listener).unwrap();
        drop((accepted, listener));
        sockets.clear();
        // A reset is handled at once on the loopback, but by another part of the kernel than the caller's.
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = listen(at) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Each connection is ended by this end first, so that the kernel keeps its port for a minute.
    #[test]
    fn ports_are_used_again() {
        let script = "ip link set lo up && echo 40000 40007 > /proc/sys/net/ipv4/ip_local_port_range && \
                      exec \"$0\" --ignored --exact sockets::tests::with_eight_ports";
        let ran = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{ran:?}");
    }

    #[test]
    #[ignore = "another test runs it, in a network of its own"]
    fn with_eight_ports() {
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 5000);
        let listener = listen(at).unwrap();
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
        let mut sockets = Sockets::new(at, epoll, 1 << 60).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        for index in 1..=20 {
            let id = ConnectionId(Viewstamp {
                view: View(1),
                index: Index(index),
            });
            while let Err(error) = sockets.connect(id, |_| {}) {
                assert!(Instant::now() < deadline, "connection {index}: {error}");
                std::thread::sleep(Duration::from_millis(50));
            }
            let accepted = rustix::net::accept(&listener).unwrap();
            let (_, connection) = sockets.all.pop_first().unwrap();
            let port = connection.own.port();
            assert!(!sockets.gone.contains(&port), "it is in use again: {port}");
            connection
                .stream
                .shutdown(std::net::Shutdown::Write)
                .unwrap();
            drop(accepted);
            connection.stream.set_nonblocking(false).unwrap();
            assert_eq!((&connection.stream).read(&mut [0]).unwrap(), 0);
        }
    }
}
