//! A stream socket that carries frames, with its unread input and its unsent output.

use crate::wire::{self, FrameError};
use plover_fabric::ClientLine;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One read takes in at least this much if it is there.
const READ_BYTES: usize = 64 << 10;

/// The way of a connection's bytes.
#[derive(Debug)]
pub(crate) enum Way {
    /// As they are.
    Plain(OwnedFd),
    /// Under TLS.
    Tls(Box<ClientLine>),
}

impl AsFd for Way {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Tls(line) => line.as_fd(),
        }
    }
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// The end of the stream.
    End,
    /// All that waited.
    All,
    /// Some; more may wait.
    Some,
}

#[derive(Debug)]
pub(crate) struct Framed {
    way: Way,
    input: Vec<u8>,
    /// How many bytes of `input` have been dealt with.
    taken: usize,
    output: Vec<u8>,
    /// How many bytes of `output` have been sent.
    sent: usize,
}

impl AsFd for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.way.as_fd()
    }
}

impl Framed {
    pub fn new(way: Way) -> Self {
        Self {
            way,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Bytes that were read and not dealt with.
    pub fn unread(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    /// The next frame, once all of it is there; [`Self::done`] says that it has been dealt with.
    pub fn frame(&self) -> Result<Option<&[u8]>, FrameError> {
        let rest = self.unread();
        Ok(wire::whole_frame(rest)?.map(|bytes| &rest[..bytes]))
    }

    /// The frame of `bytes` has been dealt with.
    pub fn done(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Gives back the room of frames that have been dealt with, and of output that is sent. Less of the output waits then
    /// than was sent since it was last moved, so moving it costs little.
    pub fn tidy(&mut self) {
        self.input.drain(..self.taken);
        self.taken = 0;
        if self.sent > self.unsent() {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Reads once.
    pub fn read(&mut self) -> io::Result<Took> {
        let input = &mut self.input;
        match &mut self.way {
            Way::Plain(socket) => {
                input.reserve(READ_BYTES);
                let (_, count) =
                    retry_on_intr(|| recv(&*socket, spare_capacity(input), RecvFlags::empty()))?;
                Ok(match count {
                    0 => Took::End,
                    count if count < READ_BYTES => Took::All,
                    _ => Took::Some,
                })
            }
            Way::Tls(line) => match line.receive(input) {
                Ok(true) => Ok(Took::Some),
                Ok(false) => Ok(Took::All),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Took::End),
                Err(error) => Err(error),
            },
        }
    }

    /// Queues a message.
    pub fn put(&mut self, message: &impl Serialize) {
        wire::put(message, &mut self.output);
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Whether all of it is sent.
    pub fn is_sent(&self) -> bool {
        self.unsent() == 0 && !self.holds_output()
    }

    fn holds_output(&self) -> bool {
        matches!(&self.way, Way::Tls(line) if line.holds_output())
    }

    /// Sends what waits, or what the socket takes of it.
    pub fn write(&mut self) -> io::Result<()> {
        while !self.is_sent() {
            let rest = &self.output[self.sent..];
            let taken = match &mut self.way {
                Way::Plain(socket) => {
                    match retry_on_intr(|| send(&*socket, rest, SendFlags::NOSIGNAL)) {
                        Err(Errno::AGAIN) => None,
                        taken => Some(taken?),
                    }
                }
                Way::Tls(line) => line.write(rest)?,
            };
            match taken {
                Some(count) => self.sent += count,
                None => return Ok(()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn output_that_is_sent_takes_no_room_while_more_waits() {
        const WAITING: usize = 1 << 20;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut framed = Framed::new(Way::Plain(ours.into()));
        let mut part = vec![0; 64 << 10];
        // The other side reads, and never so much that nothing waits.
        for _ in 0..200 {
            while framed.unsent() < WAITING {
                framed.put(&[7u8; 32]);
            }
            framed.write().unwrap();
            theirs.read_exact(&mut part).unwrap();
            framed.tidy();
            assert!(framed.output.len() <= 2 * WAITING + 64);
        }
    }
}
