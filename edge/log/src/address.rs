//! Where clients reach a server: over TCP, or through a socket in the file system.

use rustix::net::sockopt;
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// An address of the form `HOST:PORT` or, with a slash in it, the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// A socket in the file system of this host.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let mut found = text.to_socket_addrs().map_err(|error| {
            format!(
                "'{text}' is not an address: give HOST:PORT, or the path of a unix socket with a \
                 '/' in it ({error})"
            )
        })?;
        let first = found.next().map(Self::Tcp);
        first.ok_or_else(|| format!("'{text}' names no host: correct it"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A listening socket. Dropping it removes the file of a unix socket, unless another server has its own there by then.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: OwnedFd,
    pub address: Address,
    /// Names the file of a unix socket.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens. Replaces a socket file that a killed server has left.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let (socket, address, file): (OwnedFd, _, _) = match address {
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                (listener.into(), Address::Tcp(address), None)
            }
            Address::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        remove_dead(path, error)?;
                        UnixListener::bind(path)?
                    }
                    result => result?,
                };
                listener.set_nonblocking(true)?;
                (listener.into(), address.clone(), name_of(path))
            }
        };
        Ok(Self {
            socket,
            address,
            file,
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Address::Unix(path) = &self.address else {
            return;
        };
        if self.file.is_some() && self.file == name_of(path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The device and the inode of the file at `path`.
fn name_of(path: &Path) -> Option<(u64, u64)> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Removes the file at `path` if it is a socket whose server has ended. Else returns `error`, or that it is no socket.
fn remove_dead(path: &Path, error: io::Error) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let why = "there is a file that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match UnixStream::connect(path) {
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(error),
    }
}

/// After so long without a word, a client and its server ask each other whether they are still there, and so often until
/// the other one counts as gone: as the clients of `plover run`.
const IDLE: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// Sets up a TCP connection between a client and a server. Failing costs latency, or the notice that the other side is gone.
pub(crate) fn set_up(socket: &impl AsFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(socket, PROBES);
}

/// A blocking connection to `address`. Over TCP the attempt ends after `patience`.
pub(crate) fn connect(address: &Address, patience: Duration) -> io::Result<OwnedFd> {
    match address {
        Address::Unix(path) => Ok(UnixStream::connect(path)?.into()),
        Address::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, patience)?;
            set_up(&stream);
            Ok(stream.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:7000", "[::1]:80", "/run/plover/log.sock", "./x"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert!("7000".parse::<Address>().unwrap_err().contains("'7000'"));
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("s"));
        let first = Listener::bind(&address).unwrap();
        let error = Listener::bind(&address).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // A killed process closes its socket and removes nothing.
        let killed = std::mem::ManuallyDrop::new(first);
        rustix::net::shutdown(&killed.socket, rustix::net::Shutdown::Both).unwrap();
        let second = Listener::bind(&address).unwrap();
        connect(&address, Duration::ZERO).unwrap();
        drop(second);
        assert!(!dir.path().join("s").exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes");
        fs::write(&path, "notes").unwrap();
        let error = Listener::bind(&Address::Unix(path.clone())).expect_err("it is no socket");
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    }

    #[test]
    fn a_server_leaves_the_socket_of_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&address).unwrap();
        drop(first);
        connect(&address, Duration::ZERO).unwrap();
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn an_end_that_is_gone_is_noticed() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(&Address::Tcp(any)).unwrap();
        let client = connect(&listener.address, Duration::from_secs(9)).unwrap();
        assert!(sockopt::socket_keepalive(&client).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&client).unwrap(), IDLE);
    }
}
