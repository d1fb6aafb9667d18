//! memcached's datagrams: a number that the answer repeats, then the request.

use mio::event::Source;
use mio::net::UdpSocket;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Number of the request, of the datagram, of datagrams, and two bytes of zeros.
const HEAD: usize = 8;

/// A request that was not answered within this time is asked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// A socket with one request outstanding.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    request: u16,
    asked: Instant,
    is_answered: bool,
}

impl Datagrams {
    pub fn open(to: SocketAddr) -> io::Result<Self> {
        let any = match to {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(any.parse().expect("an address"))?;
        socket.connect(to)?;
        Ok(Self {
            socket,
            request: 0,
            asked: Instant::now(),
            is_answered: true,
        })
    }

    pub fn source(&mut self) -> &mut dyn Source {
        &mut self.socket
    }

    /// Whether the request waits for so long that it is to be asked again.
    pub fn is_late(&self, now: Instant) -> bool {
        !self.is_answered && now.saturating_duration_since(self.asked) > PATIENCE
    }

    /// Sends a request, whole.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<usize> {
        if self.is_answered {
            self.request = self.request.wrapping_add(1);
        }
        (self.asked, self.is_answered) = (Instant::now(), false);
        let mut datagram = self.request.to_be_bytes().to_vec();
        datagram.extend([0, 0, 0, 1, 0, 0]);
        datagram.extend(request);
        self.socket.send(&datagram)?;
        Ok(request.len())
    }

    /// The answer to the request, whole; `answer` has room for a datagram. Others, of requests that were asked twice, are passed over.
    pub fn hear(&mut self, answer: &mut [u8]) -> io::Result<usize> {
        loop {
            let bytes = self.socket.recv(answer)?;
            if bytes < HEAD || answer[..2] != self.request.to_be_bytes() || self.is_answered {
                continue;
            }
            if answer[2..6] != [0, 0, 0, 1] {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "an answer of several datagrams",
                ));
            }
            self.is_answered = true;
            answer.copy_within(HEAD..bytes, 0);
            return Ok(bytes - HEAD);
        }
    }
}
