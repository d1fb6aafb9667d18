//! Whether this host reaches the guest's clients: the TAP is up, and so is the uplink of its bridge.
//!
//! The kernel says when a device changes (rtnetlink); the devices' flags then say how. A notice that is lost
//! costs nothing, since each makes all flags be read.

use crate::tap::request_about;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The flags of a device that carries frames.
const CARRIES: libc::c_int = libc::IFF_UP | libc::IFF_RUNNING;

#[derive(Debug)]
pub(crate) struct Uplink {
    notices: OwnedFd,
    asks: OwnedFd,
    devices: Vec<String>,
    up: bool,
}

impl Uplink {
    /// Watches devices of this network namespace, by their names. They are taken to be up until
    /// [`Uplink::look`] says otherwise.
    pub fn watch(devices: Vec<String>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let notices = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // SAFETY: an all-zero sockaddr_nl is a valid value of this plain C struct.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let bytes = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: bind reads `bytes` of the address, which lives across the call.
        let bound = unsafe { libc::bind(notices.as_raw_fd(), (&raw const address).cast(), bytes) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        let asks = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self {
            notices,
            asks,
            devices,
            up: true,
        })
    }

    /// Watches these devices from now on.
    pub fn set(&mut self, devices: Vec<String>) {
        self.devices = devices;
    }

    /// Whether all devices carried frames when it was last looked.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Takes the kernel's notices and reads the devices' flags; returns what has changed.
    pub fn look(&mut self) -> Option<bool> {
        let mut notice = [0u8; 8192];
        // An overrun is an error too, and means the same: look.
        while let Ok((1.., _)) = recv(&self.notices, &mut notice[..], RecvFlags::DONTWAIT) {}
        let up = self.devices.iter().all(|device| self.carries(device));
        (std::mem::replace(&mut self.up, up) != up).then_some(up)
    }

    fn carries(&self, device: &str) -> bool {
        let Ok(mut request) = request_about(device) else {
            return false;
        };
        // SAFETY: SIOCGIFFLAGS reads and writes one ifreq, which lives across the call.
        let asked = unsafe { libc::ioctl(self.asks.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request) };
        // SAFETY: after SIOCGIFFLAGS the union holds the flags.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        asked == 0 && flags & CARRIES == CARRIES
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}
