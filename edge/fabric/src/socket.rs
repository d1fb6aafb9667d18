//! TCP sockets: dialling without blocking, options, handshake messages, and noticing a silent peer.
//!
//! **Noticing a silent cut.** `TCP_USER_TIMEOUT` is not the right tool: it also ends a connection
//! whose peer has closed its window for that long, so that a replica that is stopped or busy for half
//! a second while bulk data waits for it would lose its link although its host is well. Therefore
//! the fabric asks the kernel a few times a second ([`Silence::check`]) whether the peer owes an
//! answer:
//!
//! * Data was sent after the peer was last heard. Unacknowledged data alone proves nothing: a full
//!   receiver acknowledges none, but it does answer each retransmission.
//! * A keepalive probe is unanswered. It goes out after an idle second, so that the peer of an idle
//!   connection owes something, too.
//! * *Two* probes of a closed window are unanswered. One proves nothing: Linux answers such
//!   probes at most every 500 ms, and the first ones come faster. One is enough after ten seconds in which nothing was heard.

use crate::context::{Context, Loss, No};
use crate::door::{Connection, Listen};
use crate::hello::{Message, NotHello, Refusal};
use crate::line::Line;
use crate::peer::HELLO_WITHIN;
use crate::poll::Interest;
use crate::tls::{Expected, Tls};
use crate::{FabricError, Keys, PeerError};
use plover_types::ReplicaId;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::ServerConfig;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First byte of an alert of TLS.
const TLS_ALERT: u8 = 21;
/// The alert `no_application_protocol` of TLS 1.2 and later (RFC 8446, section 6). No replica that speaks TLS sends it.
const NO_TLS_HERE: [u8; 7] = [TLS_ALERT, 3, 3, 0, 2, 2, 120];
/// Keepalive's finest unit is a second.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// After so many unanswered probes the kernel itself ends an idle connection, should nobody drive
/// this fabric.
const KEEPALIVE_PROBES: u32 = 4;
/// A peer whose host has answered nothing for so long, though an answer was owed, is cut off. A live
/// host acknowledges in well under 50 ms, also when its replica is stopped or busy; a single lost
/// segment is sent again after about 200 ms. So this waits for two losses in a row.
pub const SILENT_AFTER: Duration = Duration::from_millis(500);
/// How often the kernel is asked.
pub const ASK_EVERY: Duration = Duration::from_millis(100);

fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    let socket = TcpStream::from(socket);
    tune(&socket)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Sets the options of a connection.
fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Whether a dialled connection stands; `false` while it is still being made.
fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// The address that a caller names a peer by.
pub fn parse(address: &str) -> Result<SocketAddr, PeerError> {
    let parsed = address.parse();
    parsed.map_err(|_| PeerError(address.into()))
}

/// A connection that this side dials: it connects, greets with `M`, and waits for the answer.
#[derive(Debug)]
pub struct Dial<M, const N: usize> {
    pub connection: Connection<Line>,
    /// The greeting that was sent, and the part of the answer that has come.
    asked: Option<(M, Partial<N>)>,
}

impl<M: Message<N>, const N: usize> Dial<M, N> {
    /// Starts to connect to `peer` at `address`, and watches for the outcome.
    pub fn start(
        context: &mut Context,
        address: SocketAddr,
        keys: Option<&Arc<Keys>>,
        peer: ReplicaId,
    ) -> io::Result<Self> {
        let tls = keys.map(|keys| Tls::client(keys.client(Expected::Replica(peer))));
        let socket = Line::new(dial(address)?, tls);
        let token = context.poll.watch(&socket, Interest::Write)?;
        Ok(Self {
            connection: Connection { socket, token },
            asked: None,
        })
    }

    /// Goes on as far as it can; once it is connected, and the other side has shown that it is the peer,
    /// `greet` makes what this side says. Returns the answer, or why one side refuses the other.
    pub fn advance(
        &mut self,
        context: &mut Context,
        greet: impl FnOnce(&mut Context) -> Result<M, Loss>,
    ) -> Result<Option<Result<M, No>>, Loss> {
        let Connection { socket, token } = &mut self.connection;
        if !context.poll.is_ready(*token) {
            return Ok(None);
        }
        let Some((mine, answer)) = &mut self.asked else {
            if is_connected(&socket.socket)? {
                // From here on this side waits for the other one.
                context.poll.change(&*socket, *token, Interest::Read)?;
                if socket.handshake()? {
                    let mine = greet(context)?;
                    send(socket, &mine.encode())?;
                    self.asked = Some((mine, Partial::default()));
                }
            }
            return Ok(None);
        };
        let Some(bytes) = answer.read(socket)? else {
            return Ok(None);
        };
        Ok(Some(match M::decode(bytes) {
            Err(error) => Err(error.into()),
            Ok(theirs) => match theirs.refusal(mine).or_else(|| context.replaced(&theirs)) {
                Some(no) => Err(no),
                None => {
                    context.met(&theirs);
                    Ok(theirs)
                }
            },
        }))
    }

    /// How long the next step may take from the start, given that another dialling starts after
    /// `every`, and what is waited for.
    pub fn patience(&self, every: Duration) -> (Duration, &'static str) {
        match self.asked {
            None => (every, "connection"),
            Some(_) => (HELLO_WITHIN, "handshake"),
        }
    }
}

/// A handshake message of `N` bytes that has arrived in part. It never reads past its end: what
/// follows on the connection is no part of the handshake.
#[derive(Debug)]
pub struct Partial<const N: usize> {
    bytes: Box<[u8; N]>,
    have: usize,
}

impl<const N: usize> Default for Partial<N> {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; N]),
            have: 0,
        }
    }
}

impl<const N: usize> Partial<N> {
    /// Reads on; the message once it is whole.
    pub fn read(&mut self, socket: &mut Line) -> Result<Option<&[u8; N]>, Loss> {
        while self.have < N {
            match socket.read(&mut self.bytes[self.have..]) {
                Ok(Some(count)) => self.have += count,
                Ok(None) => return Ok(None),
                // What TLS says to a greeting is seven bytes.
                Err(Loss::Closed) if self.bytes[..self.have.min(1)] == [TLS_ALERT] => {
                    return Err(Loss::Refused(NotHello::Tls.into()));
                }
                Err(loss) => return Err(loss),
            }
        }
        Ok(Some(&self.bytes))
    }
}

fn send(socket: &mut Line, message: &[u8]) -> Result<(), Loss> {
    match socket.write(message)? {
        Some(count) if count == message.len() && !socket.holds_output() => Ok(()),
        _ => Err(Loss::Io(io::ErrorKind::WriteZero.into())),
    }
}

/// Answers the beginning of a handshake of TLS, so that the other side reads why its connection ends.
fn say_no_tls(mut socket: &TcpStream) {
    // If bytes were left unread, the kernel would reset the connection, maybe before the other side has read the answer.
    // The rest of a greeting is some 200 bytes, and neither step waits.
    let _ = socket.read(&mut [0; 4 << 10]);
    let _ = socket.write(&NO_TLS_HERE);
}

/// Listens for greetings `M` of `N` bytes.
#[derive(Debug)]
pub struct TcpDoor<M, const N: usize> {
    listener: TcpListener,
    tls: Option<(Arc<Keys>, Arc<ServerConfig>)>,
    greeting: std::marker::PhantomData<fn() -> M>,
}

impl<M, const N: usize> TcpDoor<M, N> {
    pub fn open(address: SocketAddr, keys: Option<&Arc<Keys>>) -> Result<Self, FabricError> {
        // On Unix the standard library sets SO_REUSEADDR: a restarted replica need not wait until
        // the kernel forgets the connections of its last run.
        let listener =
            TcpListener::bind(address).map_err(|source| FabricError::bind(address, source))?;
        listener
            .set_nonblocking(true)
            .map_err(FabricError::system("make the listener non-blocking"))?;
        Ok(Self {
            listener,
            tls: keys.map(|keys| (keys.clone(), keys.server(Expected::AnyReplica))),
            greeting: std::marker::PhantomData,
        })
    }

    /// Where it listens (the port, if the configuration left it to the kernel).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl<M, const N: usize> AsFd for TcpDoor<M, N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl<M: Message<N>, const N: usize> Listen for TcpDoor<M, N> {
    type Socket = Line;
    type Partial = Partial<N>;
    type Greeting = M;

    fn accept(&self) -> io::Result<(Line, String)> {
        let (socket, address) = self.listener.accept()?;
        tune(&socket)?;
        let tls = self
            .tls
            .as_ref()
            .map(|(_, config)| Tls::server(config.clone()));
        Ok((Line::new(socket, tls), address.to_string()))
    }

    fn read(&self, socket: &mut Line, partial: &mut Partial<N>) -> Result<Option<M>, Loss> {
        let Some(bytes) = partial.read(socket)? else {
            return Ok(None);
        };
        let greeting = M::decode(bytes).map_err(|error| {
            if error == NotHello::Tls {
                say_no_tls(&socket.socket);
            }
            Loss::Refused(error.into())
        })?;
        Ok(Some(greeting))
    }

    fn objection(&self, socket: &Line, greeting: &M) -> Option<No> {
        let (keys, _) = self.tls.as_ref()?;
        let (from, key) = (greeting.sender(), socket.peer_key());
        if key.is_some_and(|key| keys.trusts(from, key)) {
            return None;
        }
        let key = key.map_or("none".into(), |key| key.to_string());
        let words = format!(
            "it says that it is {from}, and its key is another one's: {key}; compare group.me and the key on its host"
        );
        Some(No::because(Refusal::Key, words))
    }

    fn send(socket: &mut Line, greeting: &M) -> Result<(), Loss> {
        send(socket, &greeting.encode())
    }
}

/// The kernel's view of the peer's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Acknowledged {
    /// Something, data or a probe, was sent after the peer was last heard.
    owed: bool,
    /// How long ago the peer was last heard.
    heard_ago: Duration,
}

/// A peer whose window is closed and whose kernel has said nothing for so long owes an answer to the first probe.
const UNHEARD_MAX: Duration = Duration::from_secs(10);

/// Asks the kernel.
fn acknowledged(socket: &TcpStream) -> io::Result<Acknowledged> {
    // SAFETY: `tcp_info` is a C struct of integers; all zeros is a value of it.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the whole call because `socket` is borrowed; `info`
    // is writable for the `length` bytes named, and the kernel writes at most these (an older
    // kernel writes fewer, the rest stays zero).
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // Data sent in the same millisecond as the peer was heard counts as answered; if it was
    // not, the retransmission will tell.
    let data = info.tcpi_unacked > 0 && info.tcpi_last_data_sent < info.tcpi_last_ack_recv;
    let heard_ago = Duration::from_millis(u64::from(info.tcpi_last_ack_recv));
    // Only probes of a closed window back off. They come minutes apart in the end, too rarely to wait for a second one.
    let probes_missed_max = match info.tcpi_backoff > 0 && heard_ago < UNHEARD_MAX {
        true => 1,
        false => 0,
    };
    Ok(Acknowledged {
        owed: data || info.tcpi_probes > probes_missed_max,
        heard_ago,
    })
}

/// An acknowledgement counts as an answer to a challenge that was not acknowledged itself if it came so much later: the kernel
/// counts in steps of up to 4 ms, and what was under way has come by then.
const ANSWER_AFTER: Duration = Duration::from_millis(20);

/// Whether the peer's kernel has acknowledged, since a challenge, what was sent to its process, so that the socket there is
/// open. `is_sent` says whether the kernel here has the whole challenge.
pub fn has_answered(
    socket: &TcpStream,
    is_sent: bool,
    challenged: Instant,
    now: Instant,
) -> io::Result<bool> {
    let mut unacknowledged: libc::c_int = 0;
    // SAFETY: the descriptor is open for the whole call because `socket` is borrowed, and the kernel writes one `int`, for
    // which `unacknowledged` is valid.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unacknowledged) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let later = now.saturating_duration_since(challenged + ANSWER_AFTER);
    // The second holds on a busy connection, on which something is always under way.
    Ok(is_sent && unacknowledged == 0 || acknowledged(socket)?.heard_ago < later)
}

/// For how long a peer owes an answer.
#[derive(Debug, Default)]
pub struct Silence {
    /// Since then an answer was owed each time the kernel was asked, and nothing was heard.
    since: Option<Instant>,
}

impl Silence {
    /// Asks the kernel about the peer's host. Fails if it has been silent for too long.
    pub fn check(&mut self, socket: &TcpStream, now: Instant) -> Result<(), Loss> {
        let silent = self.observe(now, acknowledged(socket)?);
        if silent < SILENT_AFTER {
            Ok(())
        } else {
            Err(Loss::Silent(silent))
        }
    }

    /// Takes in one observation; returns how long the peer has been silent.
    fn observe(&mut self, now: Instant, seen: Acknowledged) -> Duration {
        if !seen.owed {
            self.since = None;
            return Duration::ZERO;
        }
        let heard = now.checked_sub(seen.heard_ago).unwrap_or(now);
        // Data sent after a long idle time is no silence yet: the time counts from when we first
        // saw the debt.
        let since = self.since.map_or(now, |since| since.max(heard));
        self.since = Some(since);
        now.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(owed: bool, heard_ms: u64) -> Acknowledged {
        Acknowledged {
            owed,
            heard_ago: Duration::from_millis(heard_ms),
        }
    }

    #[test]
    fn silence_is_an_answer_owed_and_nothing_heard() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut silence = Silence::default();
        let mut observe = |ms, seen| silence.observe(at(ms), seen).as_millis();
        assert_eq!(observe(0, seen(false, 9000)), 0, "idle for long");
        assert_eq!(
            observe(100, seen(true, 9100)),
            0,
            "just sent after being idle"
        );
        assert_eq!(observe(400, seen(true, 9400)), 300);
        assert_eq!(
            observe(500, seen(true, 10)),
            10,
            "heard meanwhile, busy link"
        );
        assert_eq!(observe(900, seen(true, 410)), 410);
        assert_eq!(observe(950, seen(false, 20)), 0, "answered");
        assert_eq!(observe(5000, seen(true, 4070)), 0, "starts anew");
    }
}
