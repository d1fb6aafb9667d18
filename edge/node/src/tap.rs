//! The TAP devices: the guest's way to its clients, one for each of its NICs.

use plover_types::{Frame, Offload};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const IFNAMSIZ: usize = 16;
/// The largest Ethernet frame: 64 KiB and a header, with room to spare.
const FRAME_BYTES_MAX: usize = 68 << 10;

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

/// An attached TAP device. Its frames have virtio-net's header: a checksum, or the cutting of a long TCP segment, may be
/// left to the other side. The device leaves no more than [`Tap::allow`] says.
#[derive(Debug)]
pub(crate) struct Tap {
    fd: OwnedFd,
    /// Room for the mark of an offload, the offload and the frame.
    buffer: Vec<u8>,
    offloads: u32,
    /// The number by which the kernel knows the device.
    index: u32,
    /// The number of the guest's NIC, which its frames carry.
    nic: u8,
}

/// Where the kernel writes the offload: right before the Ethernet frame.
const OFFLOAD_AT: usize = Frame::PREFIX_BYTES - Offload::BYTES;

impl Tap {
    /// Attaches to the existing device `name` of this network namespace, for this NIC.
    pub fn attach(name: &str, nic: u8) -> io::Result<Self> {
        let mut request = request_about(name)?;
        // For root, the kernel would make one, which leads nowhere.
        let index = index_of(name)?;
        let fd = rustix::fs::open(
            "/dev/net/tun",
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which lives across the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // The device may have been another program's, with a longer header.
        let bytes = Offload::BYTES as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int, which lives across the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &bytes) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut tap = Self {
            fd,
            buffer: vec![0; Frame::PREFIX_BYTES + FRAME_BYTES_MAX],
            offloads: 0,
            index,
            nic,
        };
        tap.set_offloads(0)?;
        Ok(tap)
    }

    /// From now on the device leaves so much to whoever reads its frames (`TUN_F_…`).
    pub fn allow(&mut self, offloads: u32) {
        if offloads == self.offloads {
            return;
        }
        if let Err(error) = self.set_offloads(offloads) {
            tracing::debug!(%error, offloads, "the TAP keeps its offloads");
        }
    }

    /// The kernel completes checksums and cuts segments before frames are read, whatever another process that has this device
    /// open has allowed.
    pub fn allow_nothing(&mut self) {
        if let Err(error) = self.set_offloads(0) {
            tracing::debug!(%error, "the TAP keeps its offloads");
        }
    }

    fn set_offloads(&mut self, offloads: u32) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        let set = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        self.offloads = offloads;
        Ok(())
    }

    /// Whether the device of this name is still the one that it was. (The device itself would tell, too, but it waits for the lock of
    /// the kernel's whole network, which another driver may hold for long.)
    fn is_still(&self, name: &str) -> bool {
        index_of(name).is_ok_and(|index| index == self.index)
    }

    /// Reads waiting frames, at most `max`, and no more once they have `bytes_max`.
    pub fn read(&mut self, max: usize, bytes_max: usize, frames: &mut Vec<Frame>) {
        let mut bytes = 0;
        for _ in 0..max {
            match rustix::io::read(&self.fd, &mut self.buffer[OFFLOAD_AT..]) {
                Ok(n) if n > Offload::BYTES => {
                    frames.push(Frame::received(
                        &mut self.buffer[..OFFLOAD_AT + n],
                        self.nic,
                    ));
                    bytes += n;
                }
                _ => break,
            }
            if bytes >= bytes_max {
                break;
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
        let offload = frame.offload();
        let parts = [IoSlice::new(&offload.0), IoSlice::new(frame.ethernet())];
        rustix::io::writev(&self.fd, &parts).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The number of the device of this name.
fn index_of(name: &str) -> io::Result<u32> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    let asks = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&asks, name)?)
}

/// Why a replica cannot attach to a TAP, and what to do.
pub(crate) fn not_attached(name: &str, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::ResourceBusy => {
            "another process uses it: give each replica devices of its own (net.tap, nic.tap), or end that process".into()
        }
        io::ErrorKind::PermissionDenied => format!(
            "it belongs to another user, or this one may not open /dev/net/tun (usually 0666): make it anew with 'ip tuntap add {name} mode tap user plover' (the user that runs \
             the replica)"
        ),
        _ => format!(
            "create it with 'ip tuntap add {name} mode tap user plover' (the user that runs the replica), or with 'plover tap' if \
             the configuration names its bridge"
        ),
    };
    format!("cannot attach to the TAP device '{name}': {error}; {advice}")
}

/// The TAP devices of all of the guest's NICs, by the NICs' numbers.
#[derive(Debug)]
pub(crate) struct Taps(Vec<Tap>);

impl Taps {
    /// Attaches to each device with `attach`.
    pub fn attach<E>(
        names: &[&str],
        attach: impl Fn(&str, u8) -> Result<Tap, E>,
    ) -> Result<Self, E> {
        let taps = names.iter().zip(0..).map(|(name, nic)| attach(name, nic));
        Ok(Self(taps.collect::<Result<_, _>>()?))
    }

    /// Attaches again to those devices that were deleted, if there are others of their names by now. Returns why it could
    /// not attach to one of these.
    pub fn attach_again(&mut self, names: &[&str]) -> Option<String> {
        let mut why = None;
        for (tap, name) in self.0.iter_mut().zip(names) {
            if !tap.is_still(name) {
                match Tap::attach(name, tap.nic) {
                    Ok(new) => *tap = new,
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                    // The program that makes the device has it open for a moment.
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                    Err(error) => why = Some(not_attached(name, &error)),
                }
            }
        }
        why
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Tap> {
        self.0.iter()
    }

    /// As [`Tap::allow`], by what the guest's driver takes on each NIC.
    pub fn allow(&mut self, offloads: impl Fn(usize) -> u32) {
        let taps = self.0.iter_mut().enumerate();
        taps.for_each(|(nic, tap)| tap.allow(offloads(nic)));
    }

    /// As [`Tap::allow_nothing`].
    pub fn allow_nothing(&mut self) {
        self.0.iter_mut().for_each(Tap::allow_nothing);
    }

    /// As [`Tap::read`], of each device a fair share.
    pub fn read(&mut self, max: usize, bytes_max: usize, frames: &mut Vec<Frame>) {
        let count = self.0.len();
        for tap in &mut self.0 {
            tap.read(max.div_ceil(count), bytes_max / count, frames);
        }
    }

    /// As [`Tap::drain`].
    pub fn drain(&mut self) {
        self.0.iter_mut().for_each(Tap::drain);
    }

    /// Sends a frame by the device of its NIC; `false` if that did not take it, or there is none.
    pub fn write(&self, frame: &Frame) -> bool {
        let tap = self.0.get(usize::from(frame.nic()));
        tap.is_some_and(|tap| tap.write(frame))
    }
}
