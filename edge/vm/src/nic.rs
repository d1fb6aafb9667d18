//! A NIC of the guest's: a pair of connected datagram sockets, one frame a datagram.
//!
//! ```text
//!   plover                                           QEMU
//!   ours ◄──── frames the guest sent ──────────── theirs  (-netdev tap,fd=, or dgram)
//!        ───── frames fed ──── wait here ───────►
//!   theirs (a duplicate: the same socket) ── FIONREAD, and recv to take frames back
//! ```
//!
//! QEMU takes its end for a TAP device, because the agent answers its questions so (edge/agent/src/nic.c). Then
//! each frame has a virtio-net header, and the guest may leave checksums and the cutting of TCP segments to
//! others ([`plover_types::Offload`]; docs/decisions/0056). Without offloads it is a plain socket.
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

mod agreed;
mod datagrams;

use self::agreed::Agreed;
use self::datagrams::Receiver;
use crate::VmError;
use plover_types::Frame;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Memory that a frame takes in a socket beside its bytes: the kernel accounts 2,304 bytes for a full-size one of 1,514.
const FRAME_WEIGHT: usize = 790;

/// Room for what the guest sends in a slot: QEMU would otherwise stop its transmit queue. 8 MiB
/// is over 3,500 full frames, more than a slot of the longest length sends on a 1 Gbit/s link.
const OUTPUT_BYTES: usize = 8 << 20;

/// How long a NIC that reads nothing is waited for. One that is down in the guest never reads.
const READS_WITHIN: Duration = Duration::from_millis(200);

/// Our side of a NIC of the guest's.
pub(crate) struct Nic {
    ours: OwnedFd,
    theirs: OwnedFd,
    agreed: Agreed,
    /// Frames kept out of the socket because the guest is paused, oldest first, and their weight.
    held: VecDeque<Frame>,
    held_bytes: usize,
    holding: bool,
    bytes_max: usize,
    receiver: Receiver,
    /// Bytes that QEMU had not read when it was last asked, and since when it has read none of them.
    unread: Cell<(u64, Instant)>,
}

impl Nic {
    /// The NIC of this number, for a guest that does not run yet. Frames of `bytes_max` may wait in the socket, and as many beside it.
    pub(crate) fn new(number: u8, bytes_max: usize) -> Result<Self, VmError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(VmError::io("making the guest's NIC (a socket pair)"))?;
        // The kernel doubles what it is asked for.
        set_send_buffer(ours.as_fd(), bytes_max / 2);
        set_send_buffer(theirs.as_fd(), OUTPUT_BYTES / 2);
        Ok(Self {
            ours,
            theirs,
            agreed: Agreed::new()?,
            held: VecDeque::new(),
            held_bytes: 0,
            holding: true,
            bytes_max,
            receiver: Receiver::new(number),
            unread: Cell::new((0, Instant::now())),
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

    /// The page in which the agent says what the guest takes.
    pub(crate) fn agreed_fd(&self) -> BorrowedFd<'_> {
        self.agreed.fd()
    }

    /// The offloads that the guest's driver takes now (`TUN_F_…`).
    pub(crate) fn offloads(&self) -> u32 {
        self.agreed.offloads()
    }

    /// Gives the guest frames, or keeps them until the guest runs. Returns how many of them, the first ones; for the
    /// others there is no room.
    pub(crate) fn feed(&mut self, frames: &[Frame]) -> usize {
        // Frames that `release` had no room for come first.
        self.refill();
        let waits = self.holding || !self.held.is_empty();
        let put = if waits { 0 } else { self.put(frames) };
        // The system may allow a smaller buffer than `bytes_max`: the others wait here.
        let kept = frames[put..].iter().take_while(|frame| self.keep(frame));
        put + kept.count()
    }

    fn keep(&mut self, frame: &Frame) -> bool {
        // A pause takes back the frames in the socket and those beside it, and both are fed again before the guest runs.
        let max = if self.holding {
            2 * self.bytes_max
        } else {
            self.bytes_max
        };
        let has_room = self.held_bytes < max;
        if has_room {
            self.held_bytes += weight(frame);
            self.held.push_back(frame.clone());
        }
        has_room
    }

    fn put(&self, frames: &[Frame]) -> usize {
        datagrams::send(self.ours.as_fd(), frames, self.agreed.header_bytes())
    }

    /// Puts frames that `release` had no room for into the socket, as far as there is room now.
    pub(crate) fn refill(&mut self) {
        if !self.has_backlog() {
            return;
        }
        self.held.make_contiguous();
        let put = self.put(self.held.as_slices().0);
        let freed: usize = self.held.drain(..put).map(|frame| weight(&frame)).sum();
        self.held_bytes -= freed;
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
        let header = self.agreed.header_bytes();
        let mut back = Vec::new();
        self.receiver
            .receive(self.theirs.as_fd(), usize::MAX, header, &mut back);
        self.held_bytes += back.iter().map(weight).sum::<usize>();
        // Frames that `release` had no room for are younger than those in the socket.
        back.extend(std::mem::take(&mut self.held));
        self.held = back.into();
    }

    /// The guest is about to run: gives it the kept frames.
    pub(crate) fn release(&mut self) {
        self.holding = false;
        self.refill();
    }

    /// Whether QEMU has read every frame fed, or has long read none.
    pub(crate) fn consumed_all(&self) -> bool {
        let Ok(unread) = rustix::io::ioctl_fionread(&self.theirs) else {
            return false;
        };
        let (before, since) = self.unread.get();
        if unread == 0 || unread < before || before == 0 {
            self.unread.set((unread, Instant::now()));
            return unread == 0 && self.held.is_empty();
        }
        // More may have come meanwhile.
        self.unread.set((unread, since));
        since.elapsed() >= READS_WITHIN
    }

    /// Takes the kept frames.
    pub(crate) fn take_unconsumed(&mut self, frames: &mut Vec<Frame>) {
        frames.extend(self.held.drain(..));
        self.held_bytes = 0;
    }

    /// Takes at most `max` frames that the guest has sent.
    pub(crate) fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>) {
        let header = self.agreed.header_bytes();
        self.receiver
            .receive(self.ours.as_fd(), max, header, frames);
    }
}

/// The memory that a frame takes while it waits, about.
fn weight(frame: &Frame) -> usize {
    frame.0.len() + FRAME_WEIGHT
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
    use plover_types::Offload;
    use rustix::net::{RecvFlags, SendFlags, recv, send};

    /// Room for so many full-size frames.
    fn nic(frames: usize) -> Nic {
        Nic::new(0, frames * (1514 + FRAME_WEIGHT)).unwrap()
    }

    fn frame(number: u32) -> Frame {
        Frame(number.to_be_bytes().repeat(20))
    }

    /// Reads frames as QEMU would.
    fn consume(nic: &mut Nic, count: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        let header = nic.agreed.header_bytes();
        Receiver::new(0).receive(nic.qemu_fd(), count, header, &mut frames);
        frames
    }

    fn feed(nic: &mut Nic, frame: Frame) -> bool {
        nic.feed(&[frame]) == 1
    }

    /// The agent's word.
    fn agree(nic: &Nic, offloads: u32, header: u32) {
        let page = [offloads.to_ne_bytes(), header.to_ne_bytes()].concat();
        rustix::io::pwrite(nic.agreed_fd(), &page, 0).unwrap();
    }

    #[test]
    fn a_pause_loses_no_frame_and_feeds_none_twice() {
        let mut nic = nic(1024);
        for n in 0..10 {
            assert!(
                feed(&mut nic, frame(n)),
                "before the first start frames are kept"
            );
        }
        assert!(
            consume(&mut nic, 1).is_empty(),
            "and not shown to a QEMU that stands"
        );
        nic.release();
        for n in 10..500 {
            assert!(feed(&mut nic, frame(n)), "max_dgram_qlen does not count");
        }
        let mut seen = consume(&mut nic, 123);
        nic.hold();
        for n in 500..520 {
            assert!(feed(&mut nic, frame(n)));
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
        let mut nic = nic(16);
        let big = Frame(vec![1; 1514]);
        assert_eq!(
            (0..100).take_while(|_| feed(&mut nic, big.clone())).count(),
            32
        );
        nic.release();
        let mut fed = 32;
        while feed(&mut nic, big.clone()) {
            fed += 1;
            assert!(fed < 100, "a running guest that reads nothing must fill up");
        }
        let all = consume(&mut nic, 1000).len();
        assert!(feed(&mut nic, big.clone()), "there is room again");
        assert!(all <= fed && fed <= 33, "{all} in the socket, {fed} taken");
    }

    #[test]
    fn what_a_pause_takes_back_of_full_queues_fits_again() {
        let mut nic = nic(16);
        nic.release();
        let numbers = 0..100u16;
        let frames: Vec<_> = numbers.map(|n| Frame(vec![n as u8; 1514])).collect();
        let fed = nic.feed(&frames);
        assert!(fed < frames.len());
        nic.hold();
        let mut back = Vec::new();
        nic.take_unconsumed(&mut back);
        assert_eq!(back, frames[..fed]);
        assert_eq!(nic.feed(&back), fed);
        nic.release();
        assert_eq!(consume(&mut nic, 1), frames[..1]);
    }

    #[test]
    fn an_oversized_frame_is_dropped_and_does_not_block() {
        let mut nic = nic(16);
        nic.release();
        assert!(feed(&mut nic, Frame(vec![0; 4 << 20])));
        assert!(nic.consumed_all());
    }

    #[test]
    fn outputs_come_in_order_and_bounded() {
        let mut nic = nic(16);
        for n in 0..5 {
            send(nic.qemu_fd(), &frame(n).0, SendFlags::empty()).unwrap();
        }
        let mut out = Vec::new();
        nic.take_outputs(2, &mut out);
        assert_eq!(out.len(), 2);
        nic.take_outputs(9, &mut out);
        assert_eq!(out, (0..5).map(frame).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_left_to_others_crosses_with_the_frame() {
        // A socket refuses a datagram that is longer than its buffer.
        let mut nic = nic(64);
        nic.release();
        let segment = Frame::new(Offload([1, 1, 66, 0, 168, 5, 34, 0, 16, 0]), &[7; 60_000]);
        let frames = [frame(1), segment.clone(), frame(2)];
        for header in [10, 12] {
            agree(&nic, 7, header);
            assert_eq!(nic.offloads(), 7);
            assert_eq!(nic.feed(&frames), 3);
            let mut first = [1; 100];
            let (_, bytes) = recv(nic.qemu_fd(), &mut first[..], RecvFlags::empty()).unwrap();
            assert_eq!(bytes, 80 + header as usize);
            assert_eq!(first[..header as usize], [0; 12][..header as usize]);
            assert_eq!(consume(&mut nic, 1), std::slice::from_ref(&segment));
            nic.hold();
            let mut rest = Vec::new();
            nic.take_unconsumed(&mut rest);
            assert_eq!(rest, [frame(2)], "taken back as it was fed");
            nic.release();
        }
        // A header without a frame, and a guest that says nonsense.
        send(nic.qemu_fd(), &[0; 12], SendFlags::empty()).unwrap();
        agree(&nic, 0, 11);
        send(nic.qemu_fd(), &frame(3).0, SendFlags::empty()).unwrap();
        let mut out = Vec::new();
        nic.take_outputs(9, &mut out);
        assert_eq!(out.last(), Some(&frame(3)));
    }

    #[test]
    fn more_than_one_call_takes_come_in_order() {
        let mut nic = nic(1024);
        nic.release();
        let many: Vec<_> = (0..100).map(frame).collect();
        assert_eq!(nic.feed(&many), 100);
        nic.hold();
        let mut back = Vec::new();
        nic.take_unconsumed(&mut back);
        assert_eq!(back, many);
    }
}
