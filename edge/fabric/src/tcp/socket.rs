//! Sockets: dialling without blocking, the options, and noticing a silent peer.
//!
//! **Noticing a silent cut.** `TCP_USER_TIMEOUT` looks made for it, but it also ends a
//! connection whose peer has closed its window for that long: a replica that is stopped or busy
//! for half a second while bulk data waits for it would lose its link though its host is well.
//! So we ask the kernel ourselves, a few times a second ([`acknowledged`], [`Silence`]), whether
//! an answer is *owed*:
//!
//! * Data was sent after the peer was last heard. That data is merely unacknowledged proves
//!   nothing: a full receiver acknowledges none for as long as it likes, but it does answer each
//!   of the ever rarer retransmissions.
//! * A keepalive probe is unanswered. It goes out after an idle second, so that something is
//!   owed on an idle connection, too.
//! * *Two* probes of a closed window are unanswered. One proves nothing: Linux answers such
//!   probes at most every 500 ms and the first come faster.

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Keepalive's finest unit is a second.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// The kernel's own end of an idle connection, should nobody drive this fabric.
const KEEPALIVE_PROBES: u32 = 4;

/// Starts to connect to `address`.
pub(crate) fn dial(address: SocketAddr, send_buffer: Option<usize>) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    let socket = TcpStream::from(socket);
    tune(&socket, send_buffer)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Sets the options of a lane's connection.
pub(crate) fn tune(socket: &TcpStream, send_buffer: Option<usize>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    if let Some(bytes) = send_buffer {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    Ok(())
}

/// Whether a dialled connection stands; `false` while it is still being made.
pub(crate) fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// What the kernel knows of the peer's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Something, data or a probe, was sent after the peer was last heard.
    pub owed: bool,
    /// How long ago the peer was last heard.
    pub heard_ago: Duration,
}

/// Asks the kernel.
pub(crate) fn acknowledged(socket: &TcpStream) -> io::Result<Acknowledged> {
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
    // Only probes of a closed window back off.
    let probes_missed_max = if info.tcpi_backoff > 0 { 1 } else { 0 };
    Ok(Acknowledged {
        owed: data || info.tcpi_probes > probes_missed_max,
        heard_ago: Duration::from_millis(u64::from(info.tcpi_last_ack_recv)),
    })
}

/// For how long a peer owes an answer.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Since then an answer was owed each time we asked, and nothing was heard.
    since: Option<Instant>,
}

impl Silence {
    /// Takes in one observation; returns how long the peer has been silent.
    pub fn observe(&mut self, now: Instant, seen: Acknowledged) -> Duration {
        if !seen.owed {
            self.since = None;
            return Duration::ZERO;
        }
        let heard = now.checked_sub(seen.heard_ago).unwrap_or(now);
        // What was sent after a long idle time is no silence yet: it counts from when we first
        // saw it.
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

    #[test]
    fn the_kernel_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = dial(listener.local_addr().unwrap(), None).unwrap();
        let _accepted = listener.accept().unwrap();
        assert!(is_connected(&socket).unwrap());
        let state = acknowledged(&socket).unwrap();
        assert!(state.heard_ago < Duration::from_secs(60), "{state:?}");
    }
}
