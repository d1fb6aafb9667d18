//! Frames as datagrams, many in one system call.

use plover_types::{Frame, Offload};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// Frames in one system call, at most.
const BATCH: usize = 32;

/// The largest Ethernet frame: 64 KiB and a header, with room to spare.
const ETHERNET_BYTES_MAX: usize = 68 << 10;

/// A frame's place in the buffer, with room before it for its offload and the mark of that.
const PLACE_BYTES: usize = Frame::PREFIX_BYTES + ETHERNET_BYTES_MAX;
const OFFLOAD_AT: usize = Frame::PREFIX_BYTES - Offload::BYTES;

/// The longest header before a frame: the offload, and the number of buffers, which nobody reads here.
pub(super) const HEADER_BYTES_MAX: usize = Offload::BYTES + 2;

/// A datagram is read from and written to three places: the offload, the rest of the header, the Ethernet frame.
const PARTS: usize = 3;

const NO_PART: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// The room for what is received. Memory is taken for it as frames need it.
pub(super) struct Receiver {
    places: Box<[u8]>,
    /// The number of the NIC.
    nic: u8,
}

impl Receiver {
    pub(super) fn new(nic: u8) -> Self {
        let places = vec![0; BATCH * PLACE_BYTES].into_boxed_slice();
        Self { places, nic }
    }

    /// Receives at most `max` datagrams, each a frame behind a header of `header` bytes.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        max: usize,
        header: usize,
        frames: &mut Vec<Frame>,
    ) {
        let mut left = max;
        while left > 0 {
            let asked = left.min(BATCH);
            let got = self.receive_batch(socket, asked, header, frames);
            left -= got;
            if got < asked {
                // No more wait: to ask again would be a call in vain.
                return;
            }
        }
    }

    fn receive_batch(
        &mut self,
        socket: BorrowedFd<'_>,
        asked: usize,
        header: usize,
        frames: &mut Vec<Frame>,
    ) -> usize {
        let mut rest = [0u8; HEADER_BYTES_MAX];
        let offload = header.min(Offload::BYTES);
        let mut parts = [[NO_PART; PARTS]; BATCH];
        let places = self.places.chunks_exact_mut(PLACE_BYTES);
        for (parts, place) in parts.iter_mut().zip(places) {
            let (before, ethernet) = place.split_at_mut(Frame::PREFIX_BYTES);
            *parts = [
                part(&mut before[OFFLOAD_AT..OFFLOAD_AT + offload]),
                part(&mut rest[..header - offload]),
                part(ethernet),
            ];
        }
        let mut messages = messages(&mut parts);
        // SAFETY: the kernel writes to the parts of the first `asked` messages, which are within `self.places` and `rest`.
        // Both outlive the call, and nothing refers to them meanwhile. No timeout is given.
        let got = retried(|| unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                asked as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        });
        let got = got.unwrap_or(0);
        let places = self.places.chunks_exact_mut(PLACE_BYTES);
        for (message, place) in messages[..got].iter().zip(places) {
            // A datagram without an Ethernet frame is none.
            let ethernet = (message.msg_len as usize).saturating_sub(header);
            if ethernet > 0 {
                let end = Frame::PREFIX_BYTES + ethernet;
                frames.push(Frame::received(&mut place[..end], self.nic));
            }
        }
        got
    }
}

/// Sends frames in order, each behind a header of `header` bytes, as far as there is room. Returns how many of them are
/// dealt with: they were sent, or nobody could take them.
pub(super) fn send(socket: BorrowedFd<'_>, frames: &[Frame], header: usize) -> usize {
    let mut done = 0;
    while done < frames.len() {
        let asked = (frames.len() - done).min(BATCH);
        match send_batch(socket, &frames[done..done + asked], header) {
            Ok(0) | Err(Errno::AGAIN | Errno::NOBUFS) => return done,
            // The call ends at the first frame that fails. The next one says why.
            Ok(sent) => done += sent,
            // Too long for any NIC, or QEMU is gone (which is noticed elsewhere): dropped, as on a wire.
            Err(error) => {
                let bytes = frames[done].0.len();
                tracing::debug!(%error, bytes, "frame dropped");
                done += 1;
            }
        }
    }
    done
}

fn send_batch(socket: BorrowedFd<'_>, frames: &[Frame], header: usize) -> Result<usize, Errno> {
    let offload = header.min(Offload::BYTES);
    let mut headers = [[0; HEADER_BYTES_MAX]; BATCH];
    let mut parts = [[NO_PART; PARTS]; BATCH];
    for ((parts, head), frame) in parts.iter_mut().zip(&mut headers).zip(frames) {
        head[..offload].copy_from_slice(&frame.offload().0[..offload]);
        let ethernet = frame.ethernet();
        let ethernet = libc::iovec {
            iov_base: ethernet.as_ptr().cast_mut().cast(),
            iov_len: ethernet.len(),
        };
        *parts = [part(&mut head[..header]), NO_PART, ethernet];
    }
    let mut messages = messages(&mut parts);
    // SAFETY: the kernel reads the parts of the first `frames.len()` messages: `headers` and the frames, which outlive the
    // call. It writes to the messages only.
    retried(|| unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            frames.len() as u32,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    })
}

fn part(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

fn messages(parts: &mut [[libc::iovec; PARTS]; BATCH]) -> [libc::mmsghdr; BATCH] {
    // SAFETY: an all-zero mmsghdr is a valid value of this plain C struct: no address, no control data.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for (message, parts) in messages.iter_mut().zip(parts) {
        message.msg_hdr.msg_iov = parts.as_mut_ptr();
        message.msg_hdr.msg_iovlen = PARTS;
    }
    messages
}

/// The count that a call returns, made again after a signal.
fn retried(mut call: impl FnMut() -> libc::c_int) -> Result<usize, Errno> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        match Errno::from_raw_os_error(errno) {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
}
