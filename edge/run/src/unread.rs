//! Whether a program has read its input: what the kernel says of the program's end of a connection.
//!
//! A program's end is another process's socket, so this asks by `sock_diag` (netlink), for one connection by its
//! two addresses. Two figures count: how many bytes have come to that socket, and how many of them wait in it.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const INET_DIAG_INFO: u8 = 2;
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_msg`: state at 1, rqueue at 56, inode at 68; then attributes.
const MESSAGE_BYTES: usize = 72;
/// `tcpi_bytes_received` in `struct tcp_info`.
const BYTES_RECEIVED_AT: usize = 128;

const ESTABLISHED: u8 = 1;
const SYN_RECEIVED: [u8; 2] = [3, 12];
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

/// The kernel's word on one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    state: u8,
    /// Bytes that wait, and the end of the stream if that waits.
    waits: u32,
    /// A process has accepted it.
    is_accepted: bool,
    /// Bytes that have come.
    received: u64,
}

impl Socket {
    /// Whether all of `sent` bytes, and the end if `ended`, have come.
    pub fn has(&self, sent: u64, ended: bool) -> bool {
        if SYN_RECEIVED.contains(&self.state) {
            return false;
        }
        self.is_over() || (self.received >= sent && (!ended || self.state != ESTABLISHED))
    }

    /// Whether the program has accepted the connection and read all that has come.
    pub fn is_read(&self) -> bool {
        self.is_over() || (self.is_accepted && self.waits == 0)
    }

    /// The program has closed it.
    fn is_over(&self) -> bool {
        !self.is_accepted
            && self.state != ESTABLISHED
            && self.state != CLOSE_WAIT
            && !SYN_RECEIVED.contains(&self.state)
    }
}

/// Asks the kernel.
#[derive(Debug)]
pub(crate) struct Diag(OwnedFd);

impl Diag {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(netlink::SOCK_DIAG),
        )?;
        Ok(Self(socket))
    }

    /// The socket of this host at `own` whose peer is at `peer`. `None` if there is none.
    pub fn socket(&self, own: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Option<Socket>> {
        // Without such a connection, the kernel names the socket that listens.
        let socket = self.ask(own, peer)?;
        Ok(socket.filter(|it| it.state != LISTEN))
    }

    /// Whether a process listens at `own`, or at its port of all addresses.
    pub fn listens(&self, own: SocketAddrV4) -> io::Result<bool> {
        let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let socket = self.ask(own, nobody)?;
        Ok(socket.is_some_and(|it| it.state == LISTEN))
    }

    fn ask(&self, own: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Option<Socket>> {
        let mut request = Vec::with_capacity(HEADER_BYTES + 56);
        request.extend(72u32.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend(NLM_F_REQUEST.to_ne_bytes());
        request.extend([0; 8]);
        let ask_info = 1 << (INET_DIAG_INFO - 1);
        request.extend([libc::AF_INET as u8, libc::IPPROTO_TCP as u8, ask_info, 0]);
        request.extend(u32::MAX.to_ne_bytes());
        request.extend(own.port().to_be_bytes());
        request.extend(peer.port().to_be_bytes());
        for address in [own, peer] {
            request.extend(address.ip().octets());
            request.extend([0; 12]);
        }
        // Any device, any cookie.
        request.extend(0u32.to_ne_bytes());
        request.extend([0xff; 8]);
        send(&self.0, &request, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (count, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        parse(&answer[..count])
    }
}

/// Decodes the kernel's answer.
fn parse(answer: &[u8]) -> io::Result<Option<Socket>> {
    let short = || io::Error::other("the kernel's answer about a socket is too short");
    let kind = answer.get(4..6).ok_or_else(short)?;
    let body = &answer[HEADER_BYTES.min(answer.len())..];
    if u16::from_ne_bytes([kind[0], kind[1]]) == libc::NLMSG_ERROR as u16 {
        let code = body.first_chunk().ok_or_else(short)?;
        return match -i32::from_ne_bytes(*code) {
            libc::ENOENT => Ok(None),
            code => Err(io::Error::from_raw_os_error(code)),
        };
    }
    let word = |at: usize| body.get(at..at + 4).and_then(|it| it.first_chunk());
    let (Some(waits), Some(inode)) = (word(56), word(68)) else {
        return Err(short());
    };
    Ok(Some(Socket {
        state: body[1],
        waits: u32::from_ne_bytes(*waits),
        is_accepted: u32::from_ne_bytes(*inode) != 0,
        received: received(&body[MESSAGE_BYTES.min(body.len())..]).unwrap_or(0),
    }))
}

/// The bytes received, from the attributes of an answer.
fn received(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind == u16::from(INET_DIAG_INFO) {
            return Some(u64::from_ne_bytes(
                *value.get(BYTES_RECEIVED_AT..)?.first_chunk()?,
            ));
        }
        attributes = attributes.get((length + 3) & !3..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

    fn v4(address: io::Result<SocketAddr>) -> SocketAddrV4 {
        match address.unwrap() {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => panic!("an IPv4 address was bound"),
        }
    }

    /// What has come may come a little later than the write returns.
    fn until(
        diag: &Diag,
        ends: (SocketAddrV4, SocketAddrV4),
        holds: impl Fn(Option<Socket>) -> bool,
    ) {
        for _ in 0..10_000 {
            if holds(diag.socket(ends.0, ends.1).unwrap()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{:?}", diag.socket(ends.0, ends.1));
    }

    #[test]
    fn input_is_unread_until_the_program_has_read_it() {
        for at in ["127.0.0.1:0", "127.0.0.2:0"] {
            input_is_unread_at(at);
        }
    }

    fn input_is_unread_at(at: &str) {
        let diag = Diag::open().unwrap();
        let listener = TcpListener::bind(at).unwrap();
        let own = v4(listener.local_addr());
        assert!(diag.listens(own).unwrap());
        let mut ours = TcpStream::connect(own).unwrap();
        let ends = (own, v4(ours.local_addr()));
        until(&diag, ends, |it| {
            it.is_some_and(|it| it.has(0, false) && !it.is_read())
        });
        let (mut theirs, _) = listener.accept().unwrap();
        until(&diag, ends, |it| it.is_some_and(|it| it.is_read()));
        ours.write_all(b"12345").unwrap();
        until(&diag, ends, |it| {
            it.is_some_and(|it| it.has(5, false) && !it.is_read() && !it.has(6, false))
        });
        theirs.read_exact(&mut [0; 3]).unwrap();
        until(&diag, ends, |it| it.is_some_and(|it| !it.is_read()));
        theirs.read_exact(&mut [0; 2]).unwrap();
        until(&diag, ends, |it| {
            it.is_some_and(|it| it.is_read() && !it.has(5, true))
        });
        ours.shutdown(Shutdown::Write).unwrap();
        until(&diag, ends, |it| {
            it.is_some_and(|it| it.has(5, true) && !it.is_read())
        });
        assert_eq!(theirs.read(&mut [0; 2]).unwrap(), 0);
        until(&diag, ends, |it| it.is_some_and(|it| it.is_read()));
        drop((theirs, ours));
        until(&diag, ends, |it| it.is_none_or(|it| it.is_read()));
        drop(listener);
        assert!(!diag.listens(own).unwrap());
    }
}
