//! Watching the switch: which replica sent what as the guest, and when.
//!
//! Two replicas that both send as the guest would be the worst failure of all. The capture is
//! the witness from outside: a packet socket in the switch's namespace notes every frame that
//! *enters* one of the watched ports, before the switch does anything with it. A filter in the
//! kernel passes only frames from the guest's address, so that the rest of the traffic costs
//! nothing and the buffer does not overflow; should it, [`Captured::lost`] says so, and a proof
//! that rests on the capture must check that it is zero.

use super::Namespace;
use anyhow::{Context, Result, anyhow};
use plover_types::Mac;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::collections::HashMap;
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// How much of each frame is kept: enough for the Ethernet, IPv4 and TCP headers.
const HEAD_BYTES: usize = 64;
/// What the kernel keeps for us while this thread does not run.
const BUFFER_BYTES: libc::c_int = 32 << 20;

/// One frame that entered the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When, by the kernel's clock at arrival.
    pub at: SystemTime,
    /// The port of the switch.
    pub port: String,
    /// The replica behind that port, for `rN-…` ports.
    pub replica: Option<usize>,
    /// What it carries: 0x0800 IPv4, 0x0806 ARP ….
    pub ethertype: u16,
    /// Its length in bytes.
    pub len: usize,
    /// Its first 64 bytes, or all of a shorter one.
    pub head: Vec<u8>,
}

/// All that a capture saw, in the order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The frames.
    pub frames: Vec<Seen>,
    /// How many frames the kernel dropped because this process did not keep up.
    pub lost: u32,
}

/// A running capture. Dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    // Its closing wakes the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<Result<Captured>>>,
}

impl Capture {
    /// Notes, from now on, the frames that enter `ports` of `namespace`; those from `source`
    /// only, if one is given.
    pub fn start(namespace: &Namespace, ports: &[String], source: Option<Mac>) -> Result<Self> {
        let (socket, ports) = namespace.run(|| {
            let socket = packet_socket(source).context("cannot open a packet socket")?;
            let mut by_index = HashMap::new();
            for port in ports {
                let index = rustix::net::netdevice::name_to_index(&socket, port)
                    .with_context(|| format!("no device {port} in {}", namespace.name()))?;
                by_index.insert(index, port.clone());
            }
            Ok((socket, by_index))
        })?;
        let (wake, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .context("cannot make a pipe")?;
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || collect(&socket, &wake, &ports))
            .context("cannot start a thread")?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Ends the capture. Everything that had entered the switch before the call is in it.
    pub fn stop(mut self) -> Result<Captured> {
        self.stop = None;
        let thread = self
            .thread
            .take()
            .expect("only `stop` takes it, and it takes self");
        thread
            .join()
            .map_err(|_| anyhow!("the capture's thread panicked"))?
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads until `wake` is closed and nothing is left to read.
fn collect(socket: &OwnedFd, wake: &OwnedFd, ports: &HashMap<u32, String>) -> Result<Captured> {
    let mut captured = Captured::default();
    loop {
        let mut fds = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::new(wake, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for frames"),
        }
        let stopping = !fds[1].revents().is_empty();
        while let Some(frame) = receive(socket, ports)? {
            captured.frames.extend(frame);
        }
        if stopping {
            captured.lost = lost(socket)?;
            return Ok(captured);
        }
    }
}

/// The next frame: `None` if there is none, `Some(None)` if it is not one to note.
fn receive(socket: &OwnedFd, ports: &HashMap<u32, String>) -> Result<Option<Option<Seen>>> {
    let mut head = [0_u8; HEAD_BYTES];
    // A control message with one timespec takes 32 bytes; u64 gives its alignment.
    let mut control = [0_u64; 16];
    // SAFETY: all-zero is a valid value of these plain C structs.
    let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut part = libc::iovec {
        iov_base: head.as_mut_ptr().cast(),
        iov_len: head.len(),
    };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of_val(&from) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: `message` points to buffers on this stack frame with their true lengths; all of
    // them outlive the call. MSG_TRUNC makes the call return the frame's full length, and never
    // write more than `iov_len`.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if len < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            io::ErrorKind::Interrupted => Ok(Some(None)),
            // ENETDOWN: a watched device went away, as when the lab is taken down.
            _ if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(Some(None)),
            _ => Err(error).context("cannot read a frame"),
        };
    }
    let port = u32::try_from(from.sll_ifindex)
        .ok()
        .and_then(|index| ports.get(&index));
    let Some(port) = port.filter(|_| from.sll_pkttype != libc::PACKET_OUTGOING) else {
        return Ok(Some(None));
    };
    let len = len as usize;
    Ok(Some(Some(Seen {
        at: timestamp(&message).unwrap_or_else(SystemTime::now),
        port: port.clone(),
        replica: replica_of(port),
        ethertype: u16::from_be_bytes([head[12], head[13]]),
        len,
        head: head[..len.min(HEAD_BYTES)].to_vec(),
    })))
}

/// The kernel's time of arrival.
fn timestamp(message: &libc::msghdr) -> Option<SystemTime> {
    // SAFETY: `message` was filled in by a successful recvmsg, and its control buffer is alive;
    // the CMSG functions stay within `msg_controllen`. The payload of SCM_TIMESTAMPNS is a
    // timespec, read unaligned as it carries no promise of alignment.
    let time = unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_TIMESTAMPNS
        {
            return None;
        }
        libc::CMSG_DATA(header)
            .cast::<libc::timespec>()
            .read_unaligned()
    };
    let since = Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?);
    Some(SystemTime::UNIX_EPOCH + since)
}

/// `r2-edge` is replica 2's.
fn replica_of(port: &str) -> Option<usize> {
    port.strip_prefix('r')?.split_once('-')?.0.parse().ok()
}

/// A packet socket that sees every frame of its namespace, or those from `source`.
fn packet_socket(source: Option<Mac>) -> io::Result<OwnedFd> {
    // No protocol yet: the socket receives nothing before the filter is in place.
    // SAFETY: plain system call without pointers; the result is checked below.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned by the kernel, owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };

    set(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        &BUFFER_BYTES,
    )?;
    set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32)?;
    if let Some(mac) = source {
        let mut code = from_only(mac);
        let program = libc::sock_fprog {
            len: code.len() as u16,
            filter: code.as_mut_ptr(),
        };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    }
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address and its length belong together and outlive the call.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Classic BPF: the source address, bytes 6 to 11, is `mac`.
fn from_only(mac: Mac) -> [libc::sock_filter; 6] {
    let [a, b, c, d, e, f] = mac.0;
    let op = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 6),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            3,
            u32::from_be_bytes([a, b, c, d]),
        ),
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 10),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            u16::from_be_bytes([e, f]).into(),
        ),
        op(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0),
    ]
}

fn set<T>(socket: &impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (fd, len) = (
        socket.as_fd().as_raw_fd(),
        size_of::<T>() as libc::socklen_t,
    );
    // SAFETY: pointer and length describe `value`, which outlives the call; the kernel only
    // reads it. Each option above is given the type that its documentation names.
    let result = unsafe { libc::setsockopt(fd, level, option, (value as *const T).cast(), len) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// How many frames found the socket's buffer full.
fn lost(socket: &OwnedFd) -> Result<u32> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut statistics: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: pointer and length describe `statistics`, which outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error()).context("cannot ask how many frames were lost");
    }
    Ok(statistics.tp_drops)
}
