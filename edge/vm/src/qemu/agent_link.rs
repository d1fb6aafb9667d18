//! The conversation with the agent inside QEMU (see `plover-agent`).

use crate::VmError;
use plover_agent::{Op, Reply, request};
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
use std::time::Duration;

/// An answer, and the request that it answers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) op: Op,
    pub(crate) reply: Reply,
    pub(crate) fd: Option<OwnedFd>,
}

/// Our end of the agent's socket. Packets keep their boundaries, so there are no half replies.
pub(crate) struct AgentLink {
    socket: OwnedFd,
    open: VecDeque<Op>,
}

impl AgentLink {
    /// A link, and the end that QEMU inherits.
    pub(crate) fn new() -> Result<(Self, OwnedFd), VmError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(VmError::io("making the agent's socket"))?;
        Ok((
            Self {
                socket: ours,
                open: VecDeque::new(),
            },
            theirs,
        ))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a request. At most two are ever open; the socket's buffer always has room for them.
    pub(crate) fn ask(&mut self, op: Op, addr: u64, len: u64) -> std::io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.socket, &request(op, addr, len), flags)?;
        self.open.push_back(op);
        Ok(())
    }

    /// The next answer, without blocking.
    pub(crate) fn receive(&mut self) -> std::io::Result<Option<Answer>> {
        let mut bytes = [0; Reply::BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        ) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match self.open.pop_front() {
            Some(op) if got == Reply::BYTES => Ok(Some(Answer {
                op,
                reply: Reply::decode(bytes),
                fd,
            })),
            _ if got == 0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Err(std::io::Error::other("a reply of the agent to no request")),
        }
    }

    /// Asks for the agent's hello and waits for it. Returns its value.
    pub(crate) fn hello(&mut self, deadline: Duration) -> std::io::Result<u32> {
        self.ask(Op::Hello, 0, 0)?;
        let timeout = Timespec {
            tv_sec: deadline.as_secs() as i64,
            tv_nsec: deadline.subsec_nanos().into(),
        };
        if poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            Some(&timeout),
        )? == 0
        {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let answer = self.receive()?.ok_or(std::io::ErrorKind::Interrupted)?;
        Ok(answer.reply.value)
    }
}
