//! The two conversations with the agent inside QEMU (see `plover-agent`): its own, and orders to QEMU's main
//! loop that bypass the monitor.
//!
//! QEMU reads a QMP command byte by byte, with a round of its event loop for each, on a thread that then
//! hands it to the main loop. Every sync takes four commands, three of them while a guest is paused. If
//! QEMU exports the functions of these commands, they go over a socket to its main loop.

use super::orders::Purpose;
use crate::VmError;
use plover_agent::{Op, Order, Reply, load_order, log_request, order, place_request, request};
use plover_types::Micros;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType, recvmsg, send, socketpair,
};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

/// More bytes than any reply of the agent has.
const REPLY_BYTES_MAX: usize = 1024;

/// Our end of a socket. Packets keep their boundaries, so there are no half replies. `T` says what a
/// request was for.
pub(crate) struct Link<T> {
    socket: OwnedFd,
    open: VecDeque<T>,
}

/// The conversation with the agent.
pub(crate) type AgentLink = Link<Op>;

/// Orders to QEMU's main loop.
pub(super) type OrderLink = Link<Purpose>;

/// An answer, and the request that it answers.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) to: T,
    pub(crate) reply: Reply,
    /// QEMU's error in words, if it gives one.
    words: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
}

impl<T> Link<T> {
    /// A link, and the end that QEMU inherits.
    pub(crate) fn new() -> Result<(Self, OwnedFd), VmError> {
        let (family, cloexec) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let (socket, theirs) = socketpair(family, SocketType::SEQPACKET, cloexec, None)
            .map_err(VmError::io("making a socket for the agent"))?;
        let open = VecDeque::new();
        Ok((Self { socket, open }, theirs))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// At most two requests are ever open; the socket's buffer always has room for them.
    fn send(&mut self, what_for: T, bytes: &[u8]) -> std::io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.socket, bytes, flags)?;
        self.open.push_back(what_for);
        Ok(())
    }

    /// The next answer, without blocking.
    pub(crate) fn receive(&mut self) -> std::io::Result<Option<Answer<T>>> {
        let mut bytes = [0; REPLY_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = match recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match (self.open.pop_front(), bytes[..got].split_first_chunk()) {
            (Some(to), Some((head, words))) => Ok(Some(Answer {
                to,
                reply: Reply::decode(*head),
                words: words.to_vec(),
                fd,
            })),
            _ => Err(std::io::Error::other("a reply of the agent to no request")),
        }
    }
}

impl AgentLink {
    /// Sends a request.
    pub(crate) fn ask(&mut self, op: Op, addr: u64, len: u64) -> std::io::Result<()> {
        self.send(op, &request(op, addr, len))
    }

    /// Asks for QEMU's log of what is written; see [`log_request`].
    pub(crate) fn ask_to_log(&mut self, addr: u64, bytes: u64, file: u32) -> std::io::Result<()> {
        self.send(Op::Log, &log_request(addr, bytes, file))
    }

    /// Asks for other memory in the place of a device's; see [`place_request`].
    pub(crate) fn ask_to_place(
        &mut self,
        op: Op,
        file: u32,
        at: u64,
        bytes: u32,
    ) -> std::io::Result<()> {
        self.send(op, &place_request(op, file, at, bytes))
    }

    /// Asks for the agent's hello and waits for it. Returns its value.
    pub(crate) fn hello(&mut self, deadline: Duration) -> std::io::Result<u32> {
        self.ask(Op::Hello, 0, 0)?;
        let timeout = Timespec {
            tv_sec: deadline.as_secs() as i64,
            tv_nsec: deadline.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let answer = self.receive()?.ok_or(std::io::ErrorKind::Interrupted)?;
        Ok(answer.reply.value)
    }
}

impl OrderLink {
    /// Gives an order without arguments.
    pub(super) fn give(&mut self, purpose: Purpose, what: Order) -> std::io::Result<()> {
        self.send(purpose, &order(what))
    }

    /// Orders QEMU to load the state file; for the arguments see [`load_order`].
    pub(super) fn load(
        &mut self,
        written: Option<&[(u32, u32)]>,
        serial: Range<u32>,
        stopped_at: Micros,
    ) -> std::io::Result<()> {
        self.send(Purpose::Load, &load_order(written, serial, stopped_at.0))
    }
}

impl<T> Answer<T> {
    /// Whether the request was carried out; if not, QEMU's error.
    pub(crate) fn result(&self) -> Result<(), String> {
        match self.reply.status {
            0 => Ok(()),
            status if self.words.is_empty() => {
                Err(std::io::Error::from_raw_os_error(status).to_string())
            }
            _ => Err(String::from_utf8_lossy(&self.words).into_owned()),
        }
    }
}
