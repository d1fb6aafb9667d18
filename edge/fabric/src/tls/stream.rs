//! A connection between two replicas that is used by a thread of its own, which may wait.

use crate::Keys;
use crate::keys::PublicKey;
use crate::tls::Expected;
use plover_types::ReplicaId;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData, StreamOwned};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A handshake that takes longer is given up.
const SHAKE_WITHIN: Duration = Duration::from_secs(5);

/// The connection: plain, or under TLS, like those of a fabric.
pub struct Stream(Box<dyn Both>);

trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

impl Stream {
    /// Goes on with a connection to `peer`, which this side has made.
    ///
    /// # Errors
    /// The peer does not show one of its keys in time.
    pub fn to(peer: ReplicaId, socket: TcpStream, keys: Option<&Arc<Keys>>) -> io::Result<Self> {
        let Some(keys) = keys else {
            return Ok(Self(Box::new(socket)));
        };
        let name = ServerName::try_from("replica").expect("a name");
        let mut tls = ClientConnection::new(keys.client(Expected::Replica(peer)), name)
            .map_err(io::Error::other)?;
        shake(&mut tls, &socket)?;
        Ok(Self(Box::new(StreamOwned::new(tls, socket))))
    }

    /// Goes on with a connection that a peer has made.
    ///
    /// # Errors
    /// It does not show a key of any peer in time.
    pub fn from_peer(socket: TcpStream, keys: Option<&Arc<Keys>>) -> io::Result<Self> {
        let Some(keys) = keys else {
            return Ok(Self(Box::new(socket)));
        };
        let mut tls =
            ServerConnection::new(keys.server(Expected::AnyReplica)).map_err(io::Error::other)?;
        shake(&mut tls, &socket)?;
        Ok(Self(Box::new(StreamOwned::new(tls, socket))))
    }
}

fn shake<C, D: SideData>(tls: &mut C, socket: &TcpStream) -> io::Result<()>
where
    C: DerefMut<Target = ConnectionCommon<D>>,
{
    let timeout = socket.read_timeout()?;
    let until = Instant::now() + SHAKE_WITHIN;
    let mut hurried = Hurried { socket, until };
    while tls.is_handshaking() {
        if let Err(error) = tls.complete_io(&mut hurried) {
            let shown = tls
                .peer_certificates()
                .and_then(|it| PublicKey::from_spki(it.first()?));
            let shown = shown.map_or(String::new(), |key| format!(" (its key is {key})"));
            return Err(io::Error::other(format!("no TLS with it: {error}{shown}")));
        }
    }
    socket.set_read_timeout(timeout)
}

/// A socket whose reads all end at one time, however little comes.
struct Hurried<'a> {
    socket: &'a TcpStream,
    until: Instant,
}

impl Read for Hurried<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(into)
    }
}

impl Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}
