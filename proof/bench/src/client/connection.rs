//! One connection with one batch of requests outstanding.

use super::datagrams::Datagrams;
use super::traffic::Traffic;
use anyhow::{Context, Result, bail};
use mio::event::Source;
use mio::net::TcpStream;
use plover_types::SplitMix64;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

/// A batch that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub since: Instant,
    pub at: Instant,
}

/// The bytes' way to the server.
#[derive(Debug)]
enum Link {
    Stream(TcpStream),
    Datagrams(Datagrams),
}

impl Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.write(bytes),
            Self::Datagrams(socket) => socket.ask(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.read(bytes),
            Self::Datagrams(socket) => socket.hear(bytes),
        }
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Stream(stream) => stream.take_error(),
            Self::Datagrams(_) => Ok(None),
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    link: Link,
    traffic: Traffic,
    batch: u32,
    random: SplitMix64,
    out: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    awaited: u32,
    since: Instant,
}

impl Connection {
    /// Begins to connect; the first batch goes out as soon as that is done.
    pub fn open(to: SocketAddr, traffic: Traffic, batch: u32, seed: u64) -> Result<Self> {
        let link = match traffic.is_datagrams() {
            true => Datagrams::open(to).map(Link::Datagrams),
            false => TcpStream::connect(to).map(Link::Stream),
        };
        let mut connection = Self {
            link: link.with_context(|| format!("cannot connect to {to}"))?,
            traffic,
            batch,
            random: SplitMix64::new(seed),
            out: Vec::new(),
            written: 0,
            input: Vec::new(),
            awaited: 0,
            since: Instant::now(),
        };
        connection.compose();
        Ok(connection)
    }

    /// The socket, to poll.
    pub fn source(&mut self) -> &mut dyn Source {
        match &mut self.link {
            Link::Stream(stream) => stream,
            Link::Datagrams(socket) => socket.source(),
        }
    }

    /// Asks again where a datagram may be lost.
    pub fn repeat(&mut self, now: Instant) -> Result<()> {
        match &mut self.link {
            Link::Datagrams(socket) if socket.is_late(now) => {
                self.written = 0;
                self.write()
            }
            _ => Ok(()),
        }
    }

    fn compose(&mut self) {
        self.out.clear();
        self.written = 0;
        for _ in 0..self.batch {
            self.traffic.request(&mut self.random, &mut self.out);
        }
        self.awaited = self.batch;
        self.since = Instant::now();
    }

    /// Writes what is left of the batch, as far as the socket takes it.
    pub fn write(&mut self) -> Result<()> {
        if let Some(error) = self.link.take_error()? {
            return Err(error).context("a connection failed");
        }
        while self.written < self.out.len() {
            match self.link.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error).context("a connection failed"),
                },
            }
        }
        Ok(())
    }

    /// Reads what has come. When the batch is answered, the next one goes out.
    pub fn read(&mut self, answered: &mut Vec<Answered>) -> Result<()> {
        let mut bytes = [0; 64 << 10];
        loop {
            match self.link.read(&mut bytes) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    ErrorKind::Interrupted => continue,
                    _ => return Err(error).context("a connection failed"),
                },
            }
            let mut at = 0;
            while self.awaited > 0 {
                let Some(length) = self.traffic.answer(&self.input[at..])? else {
                    break;
                };
                at += length;
                self.awaited -= 1;
            }
            self.input.drain(..at);
            if self.awaited == 0 {
                if !self.input.is_empty() {
                    bail!("the server says more than it was asked");
                }
                answered.push(Answered {
                    since: self.since,
                    at: Instant::now(),
                });
                self.compose();
                self.write()?;
            }
        }
    }
}
