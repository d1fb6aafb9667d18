//! The TAP device: the guest's way to its clients.

use plover_types::Frame;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const IFNAMSIZ: usize = 16;
const FRAME_BYTES_MAX: usize = 65536;

/// More frames than wait in a TAP (the kernel's default is 1,000). The network may send as fast as they are read.
const DRAINED_MAX: usize = 4096;

/// A request to the kernel about the device of this name.
pub(crate) fn request_about(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::other(format!("'{name}' is no device name")));
    }
    // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// An attached TAP device. Frames are plain Ethernet: no packet information, no offloads.
#[derive(Debug)]
pub(crate) struct Tap {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Tap {
    /// Attaches to the existing device `name` of this network namespace.
    pub fn attach(name: &str) -> io::Result<Self> {
        let mut request = request_about(name)?;
        // For root, the kernel would make one, which leads nowhere.
        let asks = socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::netdevice::name_to_index(&asks, name)?;
        let fd = rustix::fs::open(
            "/dev/net/tun",
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which lives across the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // No offloads: the kernel completes checksums and cuts segments before we read them.
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            fd,
            buffer: vec![0; FRAME_BYTES_MAX],
        })
    }

    /// Whether the device still exists.
    pub fn is_attached(&self) -> bool {
        // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: TUNGETIFF writes one ifreq, which lives across the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNGETIFF, &mut request) == 0 }
    }

    /// Reads waiting frames, at most `max`.
    pub fn read(&mut self, max: usize, frames: &mut Vec<Frame>) {
        for _ in 0..max {
            match rustix::io::read(&self.fd, &mut self.buffer[..]) {
                Ok(n) if n > 0 => frames.push(Frame(self.buffer[..n].to_vec())),
                _ => break,
            }
        }
    }

    /// Drops waiting frames: they were for the replica that was the face before.
    pub fn drain(&mut self) {
        for _ in 0..DRAINED_MAX {
            if !rustix::io::read(&self.fd, &mut self.buffer[..]).is_ok_and(|bytes| bytes > 0) {
                break;
            }
        }
    }

    /// Sends one frame; `false` if the device did not take it.
    pub fn write(&self, frame: &Frame) -> bool {
        rustix::io::write(&self.fd, &frame.0).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
