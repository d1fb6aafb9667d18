//! The guest's serial console, or the channel to its agent: a pair of connected stream sockets.
//!
//! Typed bytes are an input. Like a frame, they must not reach a paused guest: QEMU would move them into
//! the UART after its state was saved. They are kept back as [`crate::nic`] keeps frames, and bytes that
//! QEMU has not read can be taken back: a syncvm carries the leader's to the secondary. The secondary's
//! own belong to a state that is gone.

use crate::VmError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Typed bytes that may wait; more are lost, as in any UART. A paste of a screenful fits.
const INPUT_BYTES: usize = 64 << 10;

/// The most that one [`Console::read`] takes, so that a guest that prints without end does not
/// keep the loop from its other work.
const OUTPUT_BYTES: usize = 64 << 10;

/// Our side of the serial console.
pub(crate) struct Console {
    ours: OwnedFd,
    theirs: OwnedFd,
    held: Vec<u8>,
    holding: bool,
}

impl Console {
    /// A console for a guest that does not run yet.
    pub(crate) fn new() -> Result<Self, VmError> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(VmError::io("making the guest's console (a socket pair)"))?;
        Ok(Self {
            ours,
            theirs,
            held: Vec::new(),
            holding: true,
        })
    }

    /// The descriptor that polls readable when the guest has printed something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// QEMU's end.
    pub(crate) fn qemu_fd(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Types `bytes`, now or when the guest runs. Returns how many of them are lost.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        // A pause takes back what is in the socket, and it is typed again before the guest runs.
        let unread = rustix::io::ioctl_fionread(&self.theirs).unwrap_or(0);
        let room = INPUT_BYTES.saturating_sub(self.held.len() + unread as usize);
        self.held.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let lost = bytes.len().saturating_sub(room);
        if lost > 0 {
            tracing::warn!(
                event = "console_input_lost",
                lost,
                "console input lost: the guest reads none"
            );
        }
        if !self.holding {
            self.flush();
        }
        lost
    }

    /// Moves kept bytes into the socket, as far as there is room.
    pub(crate) fn flush(&mut self) {
        while !self.holding && !self.held.is_empty() {
            match send(
                &self.ours,
                &self.held,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => drop(self.held.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Whether typed bytes wait for room in the socket.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.holding && !self.held.is_empty()
    }

    /// The guest is about to be paused: takes back the bytes that QEMU has not read.
    pub(crate) fn hold(&mut self) {
        if self.holding {
            return;
        }
        self.holding = true;
        let mut older = Vec::new();
        drain(self.theirs.as_fd(), usize::MAX, &mut older);
        older.append(&mut self.held);
        self.held = older;
    }

    /// The guest is about to run.
    pub(crate) fn release(&mut self) {
        self.holding = false;
        self.flush();
    }

    /// Takes back all bytes that QEMU has not read, whether the guest runs or not.
    pub(crate) fn take_back(&mut self) -> Vec<u8> {
        let holding = self.holding;
        self.hold();
        self.holding = holding;
        self.take_unconsumed()
    }

    /// While the guest is paused: the typed bytes that QEMU has not read.
    pub(crate) fn take_unconsumed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Whether QEMU has read every byte typed.
    pub(crate) fn consumed_all(&self) -> bool {
        self.held.is_empty()
            && rustix::io::ioctl_fionread(&self.theirs).is_ok_and(|bytes| bytes == 0)
    }

    /// Takes what the guest printed. `false` when QEMU has closed its end.
    pub(crate) fn read(&self, bytes: &mut Vec<u8>) -> bool {
        drain(self.ours.as_fd(), OUTPUT_BYTES, bytes)
    }
}

/// Takes at most `max` bytes out of `socket`; `false` at its end.
fn drain(socket: BorrowedFd<'_>, max: usize, bytes: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    let mut taken = 0;
    while taken < max {
        match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((got, _)) => {
                bytes.extend_from_slice(&buffer[..got]);
                taken += got;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(console: &Console, max: usize) -> Vec<u8> {
        let mut bytes = vec![0; max];
        let got = recv(console.qemu_fd(), &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(n, _)| n);
        bytes.truncate(got);
        bytes
    }

    #[test]
    fn input_waits_for_the_guest_to_run_and_is_taken_back() {
        let mut console = Console::new().unwrap();
        assert_eq!(console.write(b"abc"), 0);
        assert_eq!(typed(&console, 9), b"");
        console.release();
        assert_eq!(typed(&console, 1), b"a");
        assert_eq!(console.write(b"def"), 0);
        assert!(!console.consumed_all());
        console.hold();
        assert_eq!(typed(&console, 9), b"");
        assert_eq!(console.write(b"g"), 0);
        console.release();
        assert_eq!(typed(&console, 9), b"bcdefg");
        assert!(console.consumed_all());
        assert_eq!(console.write(b"hij"), 0);
        assert_eq!(typed(&console, 1), b"h");
        console.hold();
        assert_eq!(console.take_unconsumed(), b"ij");
        console.release();
        assert_eq!(typed(&console, 9), b"");
    }

    #[test]
    fn what_a_pause_takes_back_of_a_full_console_fits_again() {
        let mut console = Console::new().unwrap();
        console.release();
        assert_eq!(console.write(&vec![b'x'; 2 * INPUT_BYTES]), INPUT_BYTES);
        assert_eq!(console.write(b"y"), 1, "the guest has read nothing");
        console.hold();
        let back = console.take_unconsumed();
        assert_eq!((back.len(), console.write(&back)), (INPUT_BYTES, 0));
    }

    #[test]
    fn input_is_bounded_and_output_read() {
        let mut console = Console::new().unwrap();
        assert_eq!(console.write(&vec![b'x'; 2 * INPUT_BYTES]), INPUT_BYTES);
        assert_eq!(console.held.len(), INPUT_BYTES);
        send(console.qemu_fd(), b"login: ", SendFlags::empty()).unwrap();
        let mut out = b"> ".to_vec();
        assert!(console.read(&mut out));
        assert_eq!(out, b"> login: ");
    }
}
