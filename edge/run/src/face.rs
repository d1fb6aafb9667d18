//! The clients' address: the leader has it, and says so to the network.
//!
//! The address is on a TUN device that belongs to this process: the kernel removes device and address when the
//! process ends, however it ends. The kernel answers ARP for the address on every device of the host. The TUN
//! device itself carries nothing.
//!
//! When a process is killed, the kernel releases its descriptors from the highest number to the lowest, and it sends no reset
//! from an address that it has no more. A client would wait then that it had let in at the last moment, and which the log does
//! not know. So the device has a number that was taken before those of the listener and the clients ([`LowNumber`]).

use crate::orphans::Orphans;
use plover_node::Announcement;
use plover_types::Mac;
use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, dup3};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::cell::RefCell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The pauses before the address is announced again: a switch may have missed the first time,
const PAUSES: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(1200),
];
/// and afterwards: the leader before may come back, and clients find that one by ARP.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of a descriptor, kept for the device.
#[derive(Debug)]
pub(crate) struct LowNumber {
    kept: RefCell<OwnedFd>,
    nothing: OwnedFd,
}

impl LowNumber {
    /// Takes the lowest one that is free.
    pub fn keep() -> io::Result<Rc<Self>> {
        let open =
            || rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(Rc::new(Self {
            kept: RefCell::new(open()?),
            nothing: open()?,
        }))
    }

    /// Gives `file` the number, which it has until the result is dropped.
    fn hold(self: Rc<Self>, file: OwnedFd) -> io::Result<Device> {
        dup3(&file, &mut self.kept.borrow_mut(), DupFlags::CLOEXEC)?;
        Ok(Device(self))
    }
}

/// The TUN device with the clients' address.
#[derive(Debug)]
struct Device(Rc<LowNumber>);

impl Drop for Device {
    /// The device ends with its last descriptor.
    fn drop(&mut self) {
        let LowNumber { kept, nothing } = &*self.0;
        let _ = dup3(nothing, &mut kept.borrow_mut(), DupFlags::CLOEXEC);
    }
}

/// This host has the clients' address.
#[derive(Debug)]
pub(crate) struct Face {
    _device: Device,
    packets: OwnedFd,
    index: i32,
    announcement: Announcement,
    announced: usize,
    announced_at: Instant,
    orphans: Option<Orphans>,
}

impl Face {
    /// Takes `address`, and announces it on `device`.
    pub fn take(address: Ipv4Addr, device: &str, number: &Rc<LowNumber>) -> io::Result<Self> {
        let asks = socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let index = rustix::net::netdevice::name_to_index(&asks, device)? as i32;
        let mac = mac_of(&asks, device)?;
        let packets = packet_socket()?;
        let own = Rc::clone(number).hold(tun(&asks, address)?)?;
        let mut face = Self {
            _device: own,
            packets,
            index,
            announcement: Announcement::of(mac, address),
            announced: 0,
            announced_at: Instant::now(),
            orphans: None,
        };
        face.send();
        Ok(face)
    }

    /// Makes the clients of the leader before notice.
    pub fn inherit(&mut self, orphans: Orphans) {
        orphans.tell();
        self.orphans = Some(orphans);
    }

    /// Announces the address again when it is time.
    pub fn advance(&mut self) {
        let pause = PAUSES.get(self.announced).unwrap_or(&PAUSE);
        if self.announced_at.elapsed() < *pause {
            return;
        }
        self.announced_at = Instant::now();
        self.announced += 1;
        self.send();
        if let Some(orphans) = &self.orphans {
            orphans.tell();
        }
        if self.announced == PAUSES.len() {
            self.orphans = None;
        }
    }

    fn send(&mut self) {
        // SAFETY: an all-zero sockaddr_ll is a valid value of this plain C struct.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as libc::sa_family_t;
        to.sll_ifindex = self.index;
        to.sll_halen = 6;
        to.sll_addr[..6].fill(0xff);
        for frame in self.announcement.frames() {
            let bytes = &frame.0;
            // SAFETY: the kernel reads `bytes.len()` bytes of the frame and one sockaddr_ll; both live across
            // the call. A frame that is lost is announced again.
            unsafe {
                libc::sendto(
                    self.packets.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_DONTWAIT,
                    (&raw const to).cast(),
                    size_of::<libc::sockaddr_ll>() as libc::socklen_t,
                );
            }
        }
    }
}

/// A socket that sends frames, and receives none.
fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes its arguments by value.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and belongs to no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// One request about a device.
fn ioctl(on: &OwnedFd, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these requests read and write one ifreq, which lives across the call.
    match unsafe { libc::ioctl(on.as_raw_fd(), code as _, request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn mac_of(asks: &OwnedFd, device: &str) -> io::Result<Mac> {
    let mut request = request(device);
    ioctl(asks, libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has written this member of the union.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(Mac(std::array::from_fn(|at| data[at] as u8)))
}

/// A TUN device with `address`.
fn tun(asks: &OwnedFd, address: Ipv4Addr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut device = request("plover%d");
    device.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    ioctl(&fd, libc::TUNSETIFF, &mut device)?;
    let mut with_address = device;
    // SAFETY: an all-zero sockaddr_in is a valid value of this plain C struct, and it fits a sockaddr.
    unsafe {
        let mut to: libc::sockaddr_in = std::mem::zeroed();
        to.sin_family = libc::AF_INET as libc::sa_family_t;
        to.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
        with_address.ifr_ifru.ifru_addr =
            std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(to);
    }
    // A point-to-point device's address has no network, so no route is made.
    ioctl(asks, libc::SIOCSIFADDR, &mut with_address)?;
    device.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    ioctl(asks, libc::SIOCSIFFLAGS, &mut device)?;
    Ok(fd)
}
