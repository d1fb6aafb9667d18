//! The bytes between a viewer of the guest's display and QEMU, which speak the protocol of VNC with each other.
//!
//! ```text
//!   viewer ── control.sock ──▶ leader ── a socket ──▶ QEMU
//!   viewer ── control.sock ──▶ replica 2 ── Ask(Viewed) ──▶ leader ── a socket ──▶ QEMU
//! ```
//!
//! Between two replicas each direction is a chain of requests: one is answered when its bytes are passed on, and only then
//! the next one is sent. So a viewer that is slow takes memory of one request, and slows nobody else down.
//!
//! All of it runs on threads of its own. The loop hands requests to them and sends their answers.

use crate::control::{Op, Request, StopHandle};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use plover_types::ReplicaId;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, shutdown};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The most bytes of one request.
const PART_BYTES_MAX: usize = 24 << 10;

/// One that takes nothing for this long is not served any more.
const TAKES_WITHIN: Duration = Duration::from_secs(20);

/// A little longer than the other replica waits for its end.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

/// A guest that stands for longer is not waited for.
const STANDS_FOR_MAX: Duration = Duration::from_secs(1);

/// Shut while the guest stands still for a sync. QEMU drops keys and buttons that it reads then, and one whose release it drops
/// stays pressed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Shuts or opens it.
    pub fn set(&self, shut: bool) {
        let mut is_shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_shut, shut) && !shut {
            self.opened.notify_all();
        }
    }

    fn wait(&self) {
        let is_shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .opened
            .wait_timeout_while(is_shut, STANDS_FOR_MAX, |shut| *shut);
        drop(waited);
    }
}

/// QEMU's socket, behind the gate.
struct Gated<'a> {
    gate: &'a Gate,
    to: &'a File,
}

impl Write for Gated<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gate.wait();
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that another replica has asked this one to pass on, and the number of its request.
#[derive(Debug)]
pub(crate) struct Part {
    pub bytes: Vec<u8>,
    pub id: u64,
}

/// A viewer at one replica of a display at another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The replica at the other end.
    pub peer: ReplicaId,
    /// Names the viewer among those of the replica that it looks from.
    pub viewer: u64,
    /// Whether this replica has the viewer, and sends what is for the guest.
    pub to_guest: bool,
}

/// Where a viewer's bytes go.
#[derive(Debug)]
pub(crate) enum Seat {
    /// To QEMU on this host.
    Here(UnixStream, Arc<Gate>),
    /// To the replica that leads.
    There(Route, Receiver<Part>),
}

/// A viewer as the loop knows it, by a number.
#[derive(Debug)]
pub(crate) struct View {
    /// This process's end of QEMU's socket, where it has one.
    pub guest: Option<UnixStream>,
    /// Where it is not both here: the route, and the thread that passes parts on.
    pub route: Option<(Route, SyncSender<Part>)>,
}

impl View {
    /// Closes it. Its threads end, and tell the other replica.
    pub fn close(&self) {
        if let Some(guest) = &self.guest {
            // Fails only where QEMU has closed it.
            let _ = guest.shutdown(Shutdown::Both);
        }
    }
}

/// One part at a time: the sender waits for its answer.
pub(crate) fn parts() -> (SyncSender<Part>, Receiver<Part>) {
    sync_channel(1)
}

/// Carries bytes between two stream sockets until either is closed, or takes nothing for 20 s. Both are closed then.
///
/// # Errors
/// A socket is not usable, or has failed.
pub fn join_sockets(one: impl AsFd, other: impl AsFd) -> io::Result<()> {
    join_through(&Gate::default(), one, other)
}

/// [`join_sockets`], where what is for the other one goes through a gate.
pub(crate) fn join_through(gate: &Gate, one: impl AsFd, other: impl AsFd) -> io::Result<()> {
    let open = |socket: BorrowedFd<'_>| {
        set_socket_timeout(socket, Timeout::Send, Some(TAKES_WITHIN))?;
        Ok::<_, io::Error>(File::from(socket.try_clone_to_owned()?))
    };
    let (one, other) = (open(one.as_fd())?, open(other.as_fd())?);
    let carry = |mut from: &File, to: &mut dyn Write| {
        let carried = io::copy(&mut from, to);
        for end in [&one, &other] {
            // Fails only where it is closed.
            let _ = shutdown(end, net::Shutdown::Both);
        }
        carried.map(|_| ())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| carry(&other, &mut &one));
        carry(&one, &mut Gated { gate, to: &other })
    })
}

/// Carries the bytes of the viewer with this number between a socket and another replica until either end is closed. What is
/// for the socket goes through the gate.
pub(crate) fn carry(
    number: u64,
    stream: &UnixStream,
    gate: &Gate,
    route: Route,
    parts: Receiver<Part>,
    handle: &StopHandle,
) -> io::Result<()> {
    stream.set_write_timeout(Some(TAKES_WITHIN))?;
    std::thread::scope(|scope| {
        scope.spawn(move || pass_on(stream, gate, route, parts, handle));
        let mut bytes = vec![0; PART_BYTES_MAX];
        let mut from = stream;
        while let Ok(got @ 1..) = from.read(&mut bytes) {
            if !send(handle, route, &bytes[..got]) {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        // The end of the bytes. The other replica may have sent its own.
        send(handle, route, &[]);
        // The loop drops its end of `parts`, if the other replica has no more to say.
        handle.viewer_left(number);
    });
    Ok(())
}

/// Writes what comes from the other replica, and answers it.
fn pass_on(
    mut to: &UnixStream,
    gate: &Gate,
    route: Route,
    parts: Receiver<Part>,
    handle: &StopHandle,
) {
    for part in parts {
        gate.wait();
        let passed = !part.bytes.is_empty() && to.write_all(&part.bytes).is_ok();
        handle.send(Request::Passed {
            to: route.peer,
            id: part.id,
            passed,
        });
        if !passed {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Sends one part to the other replica. Returns whether it has passed it on.
fn send(handle: &StopHandle, route: Route, bytes: &[u8]) -> bool {
    let (reply, answer) = channel();
    handle.send(Request::Ask {
        of: route.peer,
        op: Op::Viewed {
            viewer: route.viewer,
            to_guest: route.to_guest,
            bytes: BASE64_STANDARD.encode(bytes),
        },
        reply,
    });
    let answer = answer.recv_timeout(ANSWER_WITHIN);
    answer.is_ok_and(|answer| answer.get("error").is_none())
}

/// The bytes of an [`Op::Viewed`].
pub(crate) fn decode(bytes: &str) -> Result<Vec<u8>, String> {
    match BASE64_STANDARD.decode(bytes) {
        Ok(bytes) if bytes.len() <= PART_BYTES_MAX => Ok(bytes),
        Ok(bytes) => Err(format!("{} bytes in one request", bytes.len())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_wait_while_the_guest_stands() {
        let (mut viewer, ours) = UnixStream::pair().unwrap();
        let (to_qemu, mut qemu) = UnixStream::pair().unwrap();
        let gate = Gate::default();
        std::thread::scope(|scope| {
            scope.spawn(|| join_through(&gate, &ours, &to_qemu));
            let mut got = [0; 3];
            viewer.write_all(b"one").unwrap();
            qemu.read_exact(&mut got).unwrap();
            gate.set(true);
            viewer.write_all(b"two").unwrap();
            // The other direction goes on.
            qemu.write_all(b"pic").unwrap();
            viewer.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"pic");
            qemu.set_nonblocking(true).unwrap();
            let early = qemu.read(&mut got).unwrap_err();
            assert_eq!(early.kind(), io::ErrorKind::WouldBlock);
            qemu.set_nonblocking(false).unwrap();
            gate.set(false);
            qemu.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"two");
            viewer.shutdown(Shutdown::Both).unwrap();
        });
    }
}
