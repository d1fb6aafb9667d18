//! A connection between a client of a log and a replica.
//!
//! Both sides show a key, as replicas do to each other: the client's has to be trusted as a `client` or an `admin`,
//! the replica's as any replica's. Nothing of the log is sent before.

use crate::Keys;
use crate::context::{Loss, No};
use crate::hello::Refusal;
use crate::keys::PublicKey;
use crate::tls::{Expected, Explain, Tls};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{AlertDescription, CertificateError, Error, ServerConfig};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room for what comes on one connection: a record of TLS (16 KiB and a little) always fits. A server has thousands of
/// clients, so this is less than on a link between replicas.
const INCOMING_BYTES: usize = 64 << 10;

/// The side that listens.
#[derive(Debug)]
pub struct ClientDoor {
    keys: Arc<Keys>,
    config: Arc<ServerConfig>,
}

impl ClientDoor {
    /// Lets in the clients that these keys trust.
    pub fn new(keys: Arc<Keys>) -> Self {
        let config = keys.server(Expected::Client);
        Self { keys, config }
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Begins with a connection that has been accepted. It must not block.
    pub fn admit(&self, socket: TcpStream) -> ClientLine {
        ClientLine::new(socket, Tls::server(self.config.clone()), of_a_client)
    }
}

/// The connection, seen from either side.
#[derive(Debug)]
pub struct ClientLine {
    socket: TcpStream,
    tls: Tls,
}

impl AsFd for ClientLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ClientLine {
    fn new(socket: TcpStream, mut tls: Tls, explain: Explain) -> Self {
        tls.incoming_bytes = INCOMING_BYTES;
        tls.explain = explain;
        Self { socket, tls }
    }

    /// Makes a client's connection of one that blocks. It takes `within` at most.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] with the whole reason if one side does not trust the other.
    pub fn to_replica(socket: TcpStream, keys: &Arc<Keys>, within: Duration) -> io::Result<Self> {
        let tls = Tls::client(keys.client(Expected::AnyReplica));
        let mut line = Self::new(socket, tls, of_a_replica);
        let until = Instant::now() + within;
        line.socket.set_nonblocking(true)?;
        while !line.handshake()? {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut wait = [PollFd::new(&line.socket, PollFlags::IN)];
            if poll(&mut wait, Some(&left))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        line.socket.set_nonblocking(false)?;
        Ok(line)
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The key that the other side has shown.
    pub fn peer_key(&self) -> Option<PublicKey> {
        self.tls.peer_key()
    }

    /// Goes on with the handshake; `true` once it is done.
    ///
    /// # Errors
    /// As [`Self::to_replica`].
    pub fn handshake(&mut self) -> io::Result<bool> {
        self.tls.handshake(&self.socket).map_err(to_io)
    }

    /// Reads once, and appends what has come to `into`. `true` if more may wait.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing has come, [`io::ErrorKind::UnexpectedEof`] at the end.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        if !self.tls.plain.is_empty() {
            into.append(&mut self.tls.plain);
            return Ok(true);
        }
        let received = self.tls.receive(&self.socket, &mut |bytes| {
            into.extend_from_slice(bytes);
            Ok(())
        });
        match received.map_err(to_io)? {
            (0, _) => Err(io::ErrorKind::WouldBlock.into()),
            (_, emptied) => Ok(!emptied),
        }
    }

    /// Takes some of `bytes`; `None` if the kernel takes no more. Without bytes it hands over what is held.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.tls.write(&self.socket, bytes).map_err(to_io)
    }

    /// Whether bytes that it has taken wait for the kernel.
    pub fn holds_output(&self) -> bool {
        self.tls.holds_output()
    }
}

fn to_io(loss: Loss) -> io::Error {
    match loss {
        Loss::Closed => io::ErrorKind::UnexpectedEof.into(),
        Loss::Io(error) => error,
        Loss::Refused(why) => io::Error::new(io::ErrorKind::PermissionDenied, why.to_string()),
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

/// An error that a replica sees.
fn of_a_client(error: Error, handshaking: bool) -> Loss {
    let plain = "it does not speak TLS: give the client --key and --trust";
    explain(error, handshaking, plain)
}

/// An error that a client sees.
fn of_a_replica(error: Error, handshaking: bool) -> Loss {
    if matches!(
        error,
        Error::AlertReceived(AlertDescription::CertificateUnknown)
    ) {
        let words = "it does not trust this client's key: on its host, run `plover key trust FILE client KEY` with the key \
                     that `plover key show` prints here";
        return Loss::Refused(No::because(Refusal::Identity, words));
    }
    let plain = "it does not speak TLS with its clients: leave out --key and --trust, or start it with them and without \
                 --client-plaintext";
    explain(error, handshaking, plain)
}

fn explain(error: Error, handshaking: bool, plain: &str) -> Loss {
    let words = match &error {
        Error::InvalidCertificate(CertificateError::Other(other)) => other.to_string(),
        Error::InvalidMessage(_) if handshaking => plain.into(),
        _ if handshaking => format!("no TLS with it: {error}"),
        _ => return Loss::Damage(format!("TLS: {error}")),
    };
    Loss::Refused(No::because(Refusal::Identity, words))
}
