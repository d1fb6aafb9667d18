//! A client's connection to one server.

use crate::address::{self, Address};
use crate::framed::{Framed, Took, Way};
use crate::remote::RemoteError;
use crate::wire::{self, FrameError, Reply, Request};
use plover_fabric::{ClientLine, Keys};
use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one connection attempt may take, and one reply, before another replica is tried.
/// Longer than an election takes, so that the client does not leave a replica that is being elected.
pub(crate) const TRY_FOR: Duration = Duration::from_millis(700);

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    framed: Framed,
    /// Bytes of the last reply.
    last: usize,
}

impl Link {
    /// Connects.
    pub fn open(address: &Address, keys: Option<&Arc<Keys>>) -> Result<Self, RemoteError> {
        let unreachable = |source| RemoteError::Unreachable {
            address: address.clone(),
            source,
        };
        let socket = address::connect(address, TRY_FOR).map_err(unreachable)?;
        let way = match (address, keys) {
            (Address::Tcp(_), Some(keys)) => {
                let line = ClientLine::to_replica(TcpStream::from(socket), keys, TRY_FOR);
                Way::Tls(Box::new(line.map_err(|error| lost(address, error))?))
            }
            _ => Way::Plain(socket),
        };
        Ok(Self {
            address: address.clone(),
            framed: Framed::new(way),
            last: 0,
        })
    }

    /// Connects, and sends `request`.
    pub fn ask(
        address: &Address,
        keys: Option<&Arc<Keys>>,
        request: &Request<'_>,
    ) -> Result<Self, RemoteError> {
        let mut link = Self::open(address, keys)?;
        link.send(request)?;
        Ok(link)
    }

    pub fn send(&mut self, request: &Request<'_>) -> Result<(), RemoteError> {
        self.framed.put(request);
        // One that stands still takes nothing once the buffers are full.
        let limit =
            sockopt::set_socket_timeout(&self.framed, sockopt::Timeout::Send, Some(TRY_FOR));
        let written = limit
            .map_err(io::Error::from)
            .and_then(|()| self.framed.write());
        written.map_err(|error| lost(&self.address, error))
    }

    /// Waits for the next reply, until `until` if that is given.
    pub fn receive(&mut self, until: Option<Instant>) -> Result<Reply<'_>, RemoteError> {
        self.receive_by(|| until)
    }

    /// Waits for the next reply, as long as a part of it comes within each `patience`.
    pub fn receive_slowly(&mut self, patience: Duration) -> Result<Reply<'_>, RemoteError> {
        self.receive_by(|| Some(Instant::now() + patience))
    }

    fn receive_by(
        &mut self,
        until: impl Fn() -> Option<Instant>,
    ) -> Result<Reply<'_>, RemoteError> {
        self.framed.done(std::mem::take(&mut self.last));
        self.framed.tidy();
        while self.frame()?.is_none() {
            self.read(until())?;
        }
        self.last = self.frame()?.map_or(0, <[u8]>::len);
        let frame = &self.framed.unread()[..self.last];
        wire::take(frame).map_err(|source| self.damaged(source))
    }

    fn frame(&self) -> Result<Option<&[u8]>, RemoteError> {
        self.framed.frame().map_err(|source| self.damaged(source))
    }

    fn read(&mut self, until: Option<Instant>) -> Result<(), RemoteError> {
        let read = self.wait_at_most(until).and_then(|()| self.framed.read());
        let error = match read {
            Ok(Took::End) if wire::is_alert(self.framed.unread()) => {
                let why = "it speaks TLS with its clients: give --key and --trust";
                io::Error::new(io::ErrorKind::PermissionDenied, why)
            }
            Ok(Took::End) => io::ErrorKind::ConnectionReset.into(),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                io::ErrorKind::TimedOut.into()
            }
            Err(error) => error,
        };
        Err(lost(&self.address, error))
    }

    /// Lets the next read take until `until` at most.
    fn wait_at_most(&self, until: Option<Instant>) -> io::Result<()> {
        let Some(until) = until else {
            return Ok(());
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // A timeout of zero would mean none.
        let left = Some(left.max(Duration::from_millis(1)));
        Ok(sockopt::set_socket_timeout(
            &self.framed,
            sockopt::Timeout::Recv,
            left,
        )?)
    }

    fn damaged(&self, source: FrameError) -> RemoteError {
        RemoteError::Protocol {
            address: self.address.clone(),
            source,
        }
    }
}

/// A connection to `address` could not be made, or has ended.
fn lost(address: &Address, error: io::Error) -> RemoteError {
    let address = address.clone();
    match error.kind() {
        io::ErrorKind::PermissionDenied => RemoteError::Untrusted {
            address,
            why: error.to_string(),
        },
        _ => RemoteError::Unreachable {
            address,
            source: error,
        },
    }
}

/// `reply` of the server at `address` does not grant the request.
pub(crate) fn refused(address: &Address, reply: &Reply<'_>) -> RemoteError {
    let address = address.clone();
    let why = match reply {
        Reply::Failed(why) => why.clone(),
        Reply::Elsewhere {
            leader: Some(leader),
            address: at,
            ..
        } => {
            return RemoteError::Elsewhere {
                address,
                leader: *leader,
                at: at.clone(),
            };
        }
        Reply::Elsewhere { .. } => "no replica leads".into(),
        other => format!("unexpected {other:?}"),
    };
    RemoteError::Refused { address, why }
}
