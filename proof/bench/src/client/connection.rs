//! One connection with one batch of requests outstanding.

use super::traffic::Traffic;
use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use plover_types::SplitMix64;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

/// A batch that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub since: Instant,
    pub at: Instant,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub stream: TcpStream,
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
        let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
        let mut connection = Self {
            stream,
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
        if let Some(error) = self.stream.take_error()? {
            return Err(error).context("a connection failed");
        }
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
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
            match self.stream.read(&mut bytes) {
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
