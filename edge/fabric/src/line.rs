//! A TCP connection between two replicas: plain, or under TLS. All that is above it sees the same.

use crate::context::Loss;
use crate::keys::PublicKey;
use crate::tls::Tls;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// The connection. It never blocks.
#[derive(Debug)]
pub struct Line {
    pub socket: TcpStream,
    pub tls: Option<Box<Tls>>,
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Line {
    pub fn new(socket: TcpStream, tls: Option<Tls>) -> Self {
        let tls = tls.map(Box::new);
        Self { socket, tls }
    }

    /// The key that the other side has shown; none on a plain connection.
    pub fn peer_key(&self) -> Option<PublicKey> {
        self.tls.as_ref()?.peer_key()
    }

    /// Goes on with TLS's handshake; `true` once something of ours may be sent.
    pub fn handshake(&mut self) -> Result<bool, Loss> {
        match &mut self.tls {
            Some(tls) => tls.handshake(&self.socket),
            None => Ok(true),
        }
    }

    /// Reads; `None` if there is nothing now. The end is an error.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Loss> {
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.socket, into);
        }
        loop {
            match self.socket.read(into) {
                Ok(0) => return Err(Loss::Closed),
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes some of `bytes`; `None` if the kernel takes no more. Without bytes it hands over what is
    /// held.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, Loss> {
        if let Some(tls) = &mut self.tls {
            return tls.write(&self.socket, bytes);
        }
        loop {
            match self.socket.write(bytes) {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether there is something to read that the socket does not show.
    pub fn holds_input(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.holds_input())
    }

    /// Whether bytes that it has taken wait for the kernel.
    pub fn holds_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.holds_output())
    }
}
