//! The guest's NIC: a pair of connected datagram sockets, one frame a datagram.
//!
//! ```text
//!   plover                                           QEMU
//!   ours ◄──── frames the guest sent ──────────── theirs  (-netdev dgram,local.type=fd)
//!        ───── frames fed ──── wait here ───────►
//!   theirs (a duplicate: the same socket) ── FIONREAD, and recv to take frames back
//! ```
//!
//! When the guest is paused, no frame may be lost or fed twice. A paused QEMU still reads *one* frame
//! off the socket, keeps it, and delivers it when the guest runs again, on whatever state was loaded
//! meanwhile. So nothing is left in the socket while the guest is paused:
//!
//! 1. [`Nic::hold`], just before the pause, takes back the frames that QEMU has not read. QEMU may
//!    still read meanwhile; each datagram goes to exactly one reader.
//! 2. Frames fed during the pause are kept on our side.
//! 3. [`Nic::release`] puts all of them back, in order, before the guest runs.
//!
//! Two losses remain, and both happen on any network. While the guest's receive ring is full (256
//! unread frames), QEMU holds one more frame and drops it at a pause, as a NIC with a full ring does.
//! And since QEMU goes on reading during step 1, a few frames may reach the guest before older ones
//! that were taken back: they are reordered.
//!
//! `net.unix.max_dgram_qlen` limits unconnected receivers only. A socket pair is limited by the sender's
//! buffer.

use crate::VmError;
use plover_types::Frame;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};
use std::collections::VecDeque;

/// Bytes of a socket's buffer that the kernel accounts for a full-size Ethernet frame: 1514 bytes in a
/// 2 KiB allocation, and the packet's descriptor.
const FRAME_CHARGE: usize = 2304;

/// Room for what the guest sends in a slot: QEMU would otherwise stop its transmit queue. 8 MiB
/// is over 3,500 full frames, more than a slot of the longest length sends on a 1 Gbit/s link.
const OUTPUT_BYTES: usize = 8 << 20;

/// The largest datagram: 64 KiB and an Ethernet header, with room to spare.
const DATAGRAM_BYTES: usize = 68 << 10;

/// Our side of the guest's NIC.
pub(crate) struct Nic {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Frames kept out of the socket because the guest is paused, oldest first.
    held: VecDeque<Frame>,
    holding: bool,
    limit: usize,
    buffer: Box<[u8]>,
}

impl Nic {
    /// A NIC for a guest that does not run yet, with room for `limit` waiting frames.
    pub(crate) fn new(limit: usize) -> Result<Self, VmError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(VmError::io("making the guest's NIC (a socket pair)"))?;
        // The kernel doubles what it is asked for.
        set_send_buffer(ours.as_fd(), limit * FRAME_CHARGE / 2);
        set_send_buffer(theirs.as_fd(), OUTPUT_BYTES / 2);
        let buffer = vec![0; DATAGRAM_BYTES].into_boxed_slice();
        Ok(Self {
            ours,
            theirs,
            held: VecDeque::new(),
            holding: true,
            limit,
            buffer,
        })
    }

    /// The descriptor that polls readable when the guest has sent something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// QEMU's end.
    pub(crate) fn qemu_fd(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Gives the guest a frame, or keeps it until the guest runs. `false` if there is no room.
    pub(crate) fn feed(&mut self, frame: &Frame) -> bool {
        // Frames that `release` had no room for come first.
        self.refill();
        // The system may allow a buffer for fewer frames than `limit`: the others wait here.
        if self.holding || !self.held.is_empty() || !self.put(frame) {
            let room = self.held.len() < self.limit;
            if room {
                self.held.push_back(frame.clone());
            }
            return room;
        }
        true
    }

    fn put(&self, frame: &Frame) -> bool {
        match send(
            &self.ours,
            &frame.0,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(_) => true,
            Err(Errno::AGAIN | Errno::NOBUFS) => false,
            // Too long for any NIC, or QEMU is gone (which is noticed elsewhere): dropped, as on a
            // wire.
            Err(error) => {
                tracing::debug!(%error, bytes = frame.0.len(), "frame dropped");
                true
            }
        }
    }

    /// Puts frames that `release` had no room for into the socket, as far as there is room now.
    pub(crate) fn refill(&mut self) {
        while let Some(frame) = self.held.front().filter(|_| !self.holding) {
            if !self.put(frame) {
                return;
            }
            self.held.pop_front();
        }
    }

    /// Whether frames wait for room in the socket.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.holding && !self.held.is_empty()
    }

    /// The guest is about to be paused: takes the frames that QEMU has not read out of the socket.
    pub(crate) fn hold(&mut self) {
        if self.holding {
            return;
        }
        self.holding = true;
        // Frames that `release` had no room for are younger than those in the socket.
        let younger = std::mem::take(&mut self.held);
        while let Some(frame) = receive(self.theirs.as_fd(), &mut self.buffer) {
            self.held.push_back(frame);
        }
        self.held.extend(younger);
    }

    /// The guest is about to run: gives it the kept frames.
    pub(crate) fn release(&mut self) {
        self.holding = false;
        self.refill();
    }

    /// Whether QEMU has read every frame fed.
    pub(crate) fn consumed_all(&self) -> bool {
        self.held.is_empty()
            && rustix::io::ioctl_fionread(&self.theirs).is_ok_and(|bytes| bytes == 0)
    }

    /// Takes the kept frames.
    pub(crate) fn take_unconsumed(&mut self, frames: &mut Vec<Frame>) {
        frames.extend(self.held.drain(..));
    }

    /// Takes at most `max` frames that the guest has sent.
    pub(crate) fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>) {
        for _ in 0..max {
            match receive(self.ours.as_fd(), &mut self.buffer) {
                Some(frame) => frames.push(frame),
                None => return,
            }
        }
    }
}

/// The next datagram, if there is one.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<Frame> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return None,
            Ok((bytes, _)) => return Some(Frame(buffer[..bytes].to_vec())),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Sets a send buffer beyond the system's limit (`net.core.wmem_max`), or up to it without the privilege.
fn set_send_buffer(socket: BorrowedFd<'_>, bytes: usize) {
    let set = sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes));
    if let Err(error) = set {
        tracing::warn!(event = "nic_buffer_small", %error, bytes, "the guest's NIC keeps the system's default buffer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u32) -> Frame {
        Frame(number.to_be_bytes().repeat(20))
    }

    /// Reads frames as QEMU would.
    fn consume(nic: &mut Nic, count: usize) -> Vec<Frame> {
        let mut buffer = vec![0; DATAGRAM_BYTES];
        (0..count)
            .map_while(|_| receive(nic.qemu_fd(), &mut buffer))
            .collect()
    }

    #[test]
    fn a_pause_loses_no_frame_and_feeds_none_twice() {
        let mut nic = Nic::new(1024).unwrap();
        for n in 0..10 {
            assert!(
                nic.feed(&frame(n)),
                "before the first start frames are kept"
            );
        }
        assert!(
            consume(&mut nic, 1).is_empty(),
            "and not shown to a QEMU that stands"
        );
        nic.release();
        for n in 10..500 {
            assert!(nic.feed(&frame(n)), "max_dgram_qlen does not count");
        }
        let mut seen = consume(&mut nic, 123);
        nic.hold();
        for n in 500..520 {
            assert!(nic.feed(&frame(n)));
        }
        assert!(!nic.consumed_all());
        assert!(consume(&mut nic, 1).is_empty());
        nic.release();
        seen.extend(consume(&mut nic, 77));
        nic.hold();
        nic.take_unconsumed(&mut seen);
        assert!(nic.consumed_all());
        assert_eq!(seen, (0..520).map(frame).collect::<Vec<_>>());
    }

    #[test]
    fn the_queue_is_bounded_standing_and_running() {
        let mut nic = Nic::new(16).unwrap();
        let big = Frame(vec![1; 1514]);
        assert_eq!((0..100).take_while(|_| nic.feed(&big)).count(), 16);
        nic.release();
        let mut fed = 16;
        while nic.feed(&big) {
            fed += 1;
            assert!(fed < 100, "a running guest that reads nothing must fill up");
        }
        let all = consume(&mut nic, 1000).len();
        assert!(nic.feed(&big), "there is room again");
        assert!(all <= fed && fed <= 33, "{all} in the socket, {fed} taken");
    }

    #[test]
    fn an_oversized_frame_is_dropped_and_does_not_block() {
        let mut nic = Nic::new(16).unwrap();
        nic.release();
        assert!(nic.feed(&Frame(vec![0; 4 << 20])));
        assert!(nic.consumed_all());
    }

    #[test]
    fn outputs_come_in_order_and_bounded() {
        let mut nic = Nic::new(16).unwrap();
        for n in 0..5 {
            send(nic.qemu_fd(), &frame(n).0, SendFlags::empty()).unwrap();
        }
        let mut out = Vec::new();
        nic.take_outputs(2, &mut out);
        assert_eq!(out.len(), 2);
        nic.take_outputs(9, &mut out);
        assert_eq!(out, (0..5).map(frame).collect::<Vec<_>>());
    }
}
