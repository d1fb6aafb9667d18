//! TLS 1.3 under a connection between replicas: both sides show a raw public key (RFC 7250).
//!
//! ```text
//!   lower id (dials)                           higher id (listens)
//!     │ ── ClientHello ─────────────────────────► │
//!     │ ◄─ ServerHello, its key, signature ────── │
//!     │  is it a key of the replica dialled?      │
//!     │ ── its key, signature, greeting ────────► │  is it a key of any peer? then: of the one that greets?
//!     │ ◄───────────────────────────── greeting ─ │
//! ```
//!
//! Nothing of ours is sent before the other side has shown that it holds a trusted key. A session is never
//! resumed, and there is no early data, so nothing can be replayed.
//!
//! [`Tls`] stands between a socket and the bytes of the fabric. Its memory is bounded: one buffer for what
//! has come, which is small until the handshake is done, and one for what is sealed and not sent.

pub mod client;
mod sealed;
pub mod stream;
mod verify;

use crate::context::{Loss, No};
use crate::hello::Refusal;
use crate::keys::PublicKey;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, ServerConfig};
use sealed::{Failure, Sealed, Step};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
pub(crate) use verify::Expected;

/// The most that a handshake's message may be: those of a replica have some 300 bytes.
const GREETING_BYTES_MAX: usize = 4 << 10;
/// Afterwards: one read takes in many records, and a record (16 KiB and a little) always fits.
const INCOMING_BYTES: usize = 256 << 10;
/// So much is sealed at a time, for one call of the kernel.
const SEAL_BYTES: usize = 256 << 10;

/// TLS on one connection.
pub struct Tls {
    side: Side,
    /// The bytes that have come; rustls has not taken those of `unread` yet.
    incoming: Vec<u8>,
    unread: Range<usize>,
    /// Whether `unread` may hold a whole record.
    is_fresh: bool,
    /// Bytes that were unsealed before anybody asked for them, at most those of `incoming`.
    plain: Vec<u8>,
    /// Sealed bytes; the kernel has not taken those of `unsent` yet.
    sealed: Vec<u8>,
    unsent: Range<usize>,
    /// The size of `incoming` after the handshake.
    incoming_bytes: usize,
    /// The words for an error.
    explain: Explain,
}

/// The consequence of an error of TLS, before the end of the handshake (`true`) or after it.
type Explain = fn(Error, bool) -> Loss;

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("unread", &self.unread)
            .field("unsent", &self.unsent)
            .finish()
    }
}

impl Tls {
    /// The side that dials.
    pub fn client(config: Arc<ClientConfig>) -> Self {
        // No name is sent or compared; rustls wants one.
        let name = ServerName::try_from("replica").expect("a name");
        let connection = UnbufferedClientConnection::new(config, name);
        Self::new(Side::Client(
            connection.expect("the configuration is whole"),
        ))
    }

    /// The side that listens.
    pub fn server(config: Arc<ServerConfig>) -> Self {
        let connection = UnbufferedServerConnection::new(config);
        Self::new(Side::Server(
            connection.expect("the configuration is whole"),
        ))
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            incoming: vec![0; GREETING_BYTES_MAX],
            unread: 0..0,
            // A client has something to say before anything has come.
            is_fresh: true,
            plain: Vec::new(),
            sealed: Vec::new(),
            unsent: 0..0,
            incoming_bytes: INCOMING_BYTES,
            explain,
        }
    }

    /// The key that the other side has shown.
    pub fn peer_key(&self) -> Option<PublicKey> {
        let shown = match &self.side {
            Side::Client(it) => it.peer_certificates(),
            Side::Server(it) => it.peer_certificates(),
        };
        PublicKey::from_spki(shown?.first()?)
    }

    /// Whether rustls has something to say that is not sealed yet.
    fn wants_write(&self) -> bool {
        match &self.side {
            Side::Client(it) => it.wants_write(),
            Side::Server(it) => it.wants_write(),
        }
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(it) => it.is_handshaking(),
            Side::Server(it) => it.is_handshaking(),
        }
    }

    /// Whether there is something to read that the socket does not show.
    pub fn holds_input(&self) -> bool {
        !self.plain.is_empty() || (self.is_fresh && !self.unread.is_empty())
    }

    /// Whether sealed bytes wait for the kernel.
    pub fn holds_output(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Goes on with the handshake; `true` once it is done.
    pub fn handshake(&mut self, socket: &TcpStream) -> Result<bool, Loss> {
        loop {
            let step = self.unseal_into_plain(socket)?;
            if step == Step::Idle {
                return Ok(true);
            }
            if self.fill(socket)?.is_none() {
                return Ok(false);
            }
        }
    }

    /// Reads into `into`; `None` if there is nothing now.
    pub fn read(&mut self, socket: &TcpStream, into: &mut [u8]) -> Result<Option<usize>, Loss> {
        loop {
            if !self.plain.is_empty() {
                let count = self.plain.len().min(into.len());
                into[..count].copy_from_slice(&self.plain[..count]);
                self.plain.drain(..count);
                return Ok(Some(count));
            }
            if !self.is_fresh && self.fill(socket)?.is_none() {
                return Ok(None);
            }
            self.unseal_into_plain(socket)?;
        }
    }

    /// Gives all that has come to `take`, with one read of the socket. Returns how many bytes that read
    /// has brought, and whether it has emptied the socket.
    pub fn receive(
        &mut self,
        socket: &TcpStream,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Loss>,
    ) -> Result<(usize, bool), Loss> {
        if self.incoming.len() < self.incoming_bytes {
            self.incoming.resize(self.incoming_bytes, 0);
        }
        take(&std::mem::take(&mut self.plain))?;
        if self.is_fresh {
            self.unseal(socket, take)?;
        }
        let (asked, read) = (self.incoming.len() - self.room(), self.fill(socket)?);
        self.unseal(socket, take)?;
        let count = read.unwrap_or(0);
        Ok((count, count < asked))
    }

    /// Seals some of `bytes` and hands them to the kernel; `None` if that takes no more.
    pub fn write(&mut self, socket: &TcpStream, bytes: &[u8]) -> Result<Option<usize>, Loss> {
        self.push(socket)?;
        if self.holds_output() {
            return Ok(None);
        }
        let bytes = &bytes[..bytes.len().min(SEAL_BYTES)];
        if !bytes.is_empty() {
            let mut plain = std::mem::take(&mut self.plain);
            let sealed = self.run(Some(bytes), &mut |more| {
                plain.extend_from_slice(more);
                Ok(())
            });
            self.plain = plain;
            sealed?;
            self.push(socket)?;
        }
        Ok(Some(bytes.len()))
    }

    fn unseal_into_plain(&mut self, socket: &TcpStream) -> Result<Step, Loss> {
        let mut plain = std::mem::take(&mut self.plain);
        let step = self.unseal(socket, &mut |more| {
            plain.extend_from_slice(more);
            Ok(())
        });
        self.plain = plain;
        step
    }

    /// Lets rustls go on with what has come, and sends what it answers.
    fn unseal(
        &mut self,
        socket: &TcpStream,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Loss>,
    ) -> Result<Step, Loss> {
        let step = self.run(None, take);
        // Also after an error: the other side is told why.
        self.push(socket)?;
        step
    }

    fn run(
        &mut self,
        seal: Option<&[u8]>,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Loss>,
    ) -> Result<Step, Loss> {
        let handshaking = self.is_handshaking();
        loop {
            let bytes = &mut self.incoming[self.unread.clone()];
            let mut out = Sealed {
                bytes: &mut self.sealed,
                unsent: &mut self.unsent,
            };
            let (discard, step) = match &mut self.side {
                Side::Client(it) => out.step(it.process_tls_records(bytes), seal, take),
                Side::Server(it) => out.step(it.process_tls_records(bytes), seal, take),
            };
            self.unread.start += discard;
            if self.unread.is_empty() {
                self.unread = 0..0;
            }
            match step {
                Ok(Step::Again) => {}
                Ok(step) => {
                    self.is_fresh = false;
                    return Ok(step);
                }
                Err(Failure::Loss(loss)) => return Err(loss),
                Err(Failure::Tls(error)) => {
                    self.seal_alert();
                    return Err((self.explain)(error, handshaking));
                }
            }
        }
    }

    /// After an error: seals what rustls says of it to the other side, and reads no further.
    fn seal_alert(&mut self) {
        while self.wants_write() {
            let bytes = &mut self.incoming[self.unread.clone()];
            let mut out = Sealed {
                bytes: &mut self.sealed,
                unsent: &mut self.unsent,
            };
            let is_sealed = match &mut self.side {
                Side::Client(it) => out.alert(it.process_tls_records(bytes)),
                Side::Server(it) => out.alert(it.process_tls_records(bytes)),
            };
            if !is_sealed {
                return;
            }
        }
    }

    /// How much of `incoming` is taken, after making as much room as there can be.
    fn room(&mut self) -> usize {
        if self.unread.start > 0 {
            self.incoming.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        self.unread.end
    }

    /// One read from the socket; `None` if there is nothing now.
    fn fill(&mut self, mut socket: &TcpStream) -> Result<Option<usize>, Loss> {
        let end = self.room();
        let room = &mut self.incoming[end..];
        if room.is_empty() {
            return Err(Loss::Damage(
                "a TLS message longer than any of a replica".into(),
            ));
        }
        loop {
            match socket.read(room) {
                Ok(0) => return Err(Loss::Closed),
                Ok(count) => {
                    self.unread.end += count;
                    self.is_fresh = true;
                    return Ok(Some(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Hands sealed bytes to the kernel until it takes no more.
    fn push(&mut self, mut socket: &TcpStream) -> Result<(), Loss> {
        while !self.unsent.is_empty() {
            match socket.write(&self.sealed[self.unsent.clone()]) {
                Ok(count) => self.unsent.start += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.unsent = 0..0;
        Ok(())
    }
}

/// The consequence of an error of TLS for the link.
fn explain(error: Error, handshaking: bool) -> Loss {
    let words = match &error {
        Error::InvalidCertificate(CertificateError::Other(other)) => other.to_string(),
        Error::AlertReceived(AlertDescription::CertificateUnknown) => {
            "it does not trust this replica's key: run `plover key trust` on its host with the key that \
             `plover key show` prints here"
                .into()
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "it has no keys, and this replica speaks TLS: give all replicas keys, or all of them `plaintext = true`".into()
        }
        Error::InvalidMessage(_) if handshaking => {
            "it does not speak TLS: is it a replica with `plaintext = true`?".into()
        }
        _ if handshaking => format!("no TLS with it: {error}"),
        _ => return Loss::Damage(format!("TLS: {error}")),
    };
    Loss::Refused(No::because(Refusal::Identity, words))
}
