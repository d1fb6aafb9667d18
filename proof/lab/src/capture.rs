//! Watching the switch: which replica sends as the guest, frame by frame.
//!
//! It would be the worst failure of all if two replicas sent as the guest at the same time. The capture
//! looks for it from outside: a packet socket in the switch's namespace notes every frame that *enters*
//! a replica's port, before the switch does anything with it. A filter in the kernel passes only frames
//! from the guest's address, so that other traffic does not fill the buffer. If the buffer overflows all
//! the same, [`Captured::lost`] is not zero and the capture proves nothing.

use anyhow::{Context, Result, anyhow};
use plover_lab::net::{GUEST_MAC, Topology, edge_port};
use plover_types::Mac;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::collections::HashMap;
use std::io;
use std::thread::JoinHandle;

/// How much the kernel keeps for us while this thread does not run.
const BUFFER_BYTES: libc::c_int = 32 << 20;

/// The frames that a capture saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The sender of each frame, in the order of arrival.
    pub senders: Vec<u8>,
    /// How many frames the kernel dropped because this process did not keep up.
    pub lost: u32,
}

/// A running capture. Dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    // Closing it wakes the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<Result<Captured>>>,
}

impl Capture {
    /// Notes, from now on, every frame that a replica of a lab sends as the guest.
    pub fn start(network: &Topology) -> Result<Self> {
        let switch = network.switch();
        let (socket, ports) = switch.run(|| {
            let socket = packet_socket(GUEST_MAC).context("cannot open a packet socket")?;
            let mut by_index = HashMap::new();
            for replica in 0..network.replicas() {
                let port = edge_port(replica);
                let index = rustix::net::netdevice::name_to_index(&socket, &port)
                    .with_context(|| format!("no device {port} in {}", switch.name()))?;
                by_index.insert(index, replica as u8);
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

    /// Ends the capture. It includes all frames that had entered the switch before the call.
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
fn collect(socket: &OwnedFd, wake: &OwnedFd, ports: &HashMap<u32, u8>) -> Result<Captured> {
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
        while let Some(sender) = receive(socket, ports)? {
            captured.senders.extend(sender);
        }
        if stopping {
            captured.lost = lost(socket)?;
            return Ok(captured);
        }
    }
}

/// The sender of the next frame: `None` if there is no frame, `Some(None)` if it is not to be noted.
fn receive(socket: &OwnedFd, ports: &HashMap<u32, u8>) -> Result<Option<Option<u8>>> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut from_len = size_of_val(&from) as libc::socklen_t;
    // SAFETY: the buffer is empty, so that nothing is written to it: only the address is asked for.
    // `from` and `from_len` belong together and outlive the call.
    let len = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
            (&raw mut from).cast(),
            &raw mut from_len,
        )
    };
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
    let replica = u32::try_from(from.sll_ifindex)
        .ok()
        .and_then(|index| ports.get(&index));
    Ok(Some(
        replica
            .filter(|_| from.sll_pkttype != libc::PACKET_OUTGOING)
            .copied(),
    ))
}

/// A packet socket that sees every frame of its namespace from one address.
fn packet_socket(source: Mac) -> io::Result<OwnedFd> {
    // No protocol yet: the socket receives nothing before the filter is in place.
    // SAFETY: plain system call without pointers; the result is checked below.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned by the kernel, which has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };

    set(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        &BUFFER_BYTES,
    )?;
    let mut code = from_only(source);
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
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
