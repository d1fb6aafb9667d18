//! Orders to QEMU that bypass its monitor (see `plover-agent`).
//!
//! QEMU reads a QMP command byte by byte, with a round of its event loop for each, on a thread that then
//! hands it to the main loop. Every sync takes four commands, three of them while a guest is paused. If
//! QEMU exports the functions of these commands, they go over this socket to its main loop.

use super::orders::Purpose;
use crate::VmError;
use plover_agent::{Order, Reply, load_order, order};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::collections::VecDeque;
use std::ops::Range;

/// More bytes than any reply of the agent has.
const REPLY_BYTES_MAX: usize = 1024;

/// Our end of the orders' socket. Packets keep their boundaries, so there are no half replies.
pub(super) struct OrderLink {
    socket: OwnedFd,
    open: VecDeque<Purpose>,
}

/// An order that was carried out, or QEMU's error.
pub(super) type Outcome = (Purpose, Result<(), String>);

impl OrderLink {
    /// A link, and the end that QEMU inherits.
    pub(super) fn new() -> Result<(Self, OwnedFd), VmError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(VmError::io("making the orders' socket"))?;
        let open = VecDeque::new();
        Ok((Self { socket: ours, open }, theirs))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Gives an order without arguments.
    pub(super) fn give(&mut self, purpose: Purpose, what: Order) -> std::io::Result<()> {
        self.send(purpose, &order(what))
    }

    /// Orders QEMU to load the state file; for the arguments see [`load_order`].
    pub(super) fn load(
        &mut self,
        written: Option<&[(u32, u32)]>,
        serial: Range<u32>,
    ) -> std::io::Result<()> {
        self.send(Purpose::Load, &load_order(written, serial))
    }

    /// At most two orders are ever open; the socket's buffer always has room for them.
    fn send(&mut self, purpose: Purpose, bytes: &[u8]) -> std::io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.socket, bytes, flags)?;
        self.open.push_back(purpose);
        Ok(())
    }

    /// The next outcome, without blocking.
    pub(super) fn receive(&mut self) -> std::io::Result<Option<Outcome>> {
        let mut bytes = [0; REPLY_BYTES_MAX];
        let got = match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (Some(purpose), Some((head, words))) = (
            self.open.pop_front(),
            bytes[..got].split_first_chunk::<{ Reply::BYTES }>(),
        ) else {
            return Err(std::io::Error::other("a reply of the agent to no order"));
        };
        let reply = Reply::decode(*head);
        let result = if reply.status == 0 {
            Ok(())
        } else if words.is_empty() {
            Err(std::io::Error::from_raw_os_error(reply.status).to_string())
        } else {
            Err(String::from_utf8_lossy(words).into_owned())
        };
        Ok(Some((purpose, result)))
    }
}
