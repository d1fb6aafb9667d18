//! Where clients reach a server: over TCP, or through a socket in the file system.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
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

/// A listening socket. Dropping it removes the file of a unix socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: OwnedFd,
    pub address: Address,
}

impl Listener {
    /// Listens. Replaces a socket file that a killed server has left.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let (socket, address): (OwnedFd, _) = match address {
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                (listener.into(), Address::Tcp(address))
            }
            Address::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error)
                        if error.kind() == io::ErrorKind::AddrInUse
                            && UnixStream::connect(path).is_err() =>
                    {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    result => result?,
                };
                listener.set_nonblocking(true)?;
                (listener.into(), address.clone())
            }
        };
        Ok(Self { socket, address })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A blocking connection to `address`. Over TCP the attempt ends after `patience`.
pub(crate) fn connect(address: &Address, patience: Duration) -> io::Result<OwnedFd> {
    match address {
        Address::Unix(path) => Ok(UnixStream::connect(path)?.into()),
        Address::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, patience)?;
            stream.set_nodelay(true)?;
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
}
