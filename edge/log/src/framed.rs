//! A stream socket that carries frames, with its unread input and its unsent output.

use crate::wire::{self, FrameError};
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::Serialize;
use std::os::fd::OwnedFd;

/// One read takes in at least this much if it is there.
pub(crate) const READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Framed {
    pub socket: OwnedFd,
    input: Vec<u8>,
    /// How many bytes of `input` have been dealt with.
    taken: usize,
    output: Vec<u8>,
    /// How many bytes of `output` have been sent.
    sent: usize,
}

impl Framed {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
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

    /// Gives back the room of frames that have been dealt with.
    pub fn tidy(&mut self) {
        self.input.drain(..self.taken);
        self.taken = 0;
    }

    /// Reads once. Returns the number of bytes, 0 at the end of the stream. Fewer than [`READ_BYTES`]
    /// mean that nothing more waited.
    pub fn read(&mut self) -> Result<usize, Errno> {
        self.input.reserve(READ_BYTES);
        let input = &mut self.input;
        let (_, count) =
            retry_on_intr(|| recv(&self.socket, spare_capacity(input), RecvFlags::empty()))?;
        Ok(count)
    }

    /// Queues a message.
    pub fn put(&mut self, message: &impl Serialize) {
        wire::put(message, &mut self.output);
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Sends what waits, or what the socket takes of it.
    pub fn write(&mut self) -> Result<(), Errno> {
        while self.unsent() > 0 {
            let rest = &self.output[self.sent..];
            match retry_on_intr(|| send(&self.socket, rest, SendFlags::NOSIGNAL)) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }
}
