//! The agent: the only code of Plover that runs inside QEMU, carried as bytes.
//!
//! QEMU stays the distribution's own. A few things cannot be done to it from another process. The agent
//! does them. It is a small shared library, which is preloaded into QEMU and answers requests on an
//! inherited socket; the head of `agent.c` lists what it does, and why. This crate compiles the library,
//! carries it, and names the numbers of its protocol, so that the two ends are changed together.
//!
//! ```text
//!   plover                                   QEMU
//!     │  request {op, runs, addr, len, …}      │
//!     ├───────────────────────────────────────►│ agent thread
//!     │  reply {status, value}                 │
//!     │◄───────────────────────────────────────┤  (+ the userfaultfd, after TRACK)
//!     │                                        │
//!     │  order {op, runs, 0, keep, …}          │
//!     ├───────────────────────────────────────►│ main loop, as monitor commands
//!     │  reply {status, op} and words          │
//!     │◄───────────────────────────────────────┤
//! ```
//!
//! Between requests the agent keeps the places that it was told or has found in this QEMU, and the time by which its guest's clocks are
//! behind; all of it goes with the process. It starts with QEMU and ends when the socket closes. It answers in any program. In one that
//! is no QEMU it says that the calls it needs are missing:
//!
//! ```
//! use plover_agent::{AGENT_FD_ENV, AGENT_SO, AGENT_VERSION, HELLO_HAS_ORDERS, Op, Reply, request};
//! use std::io::{Read, Write};
//! use std::os::{fd::OwnedFd, unix::net::UnixStream};
//! use std::process::{Command, Stdio};
//!
//! let mut library = tempfile::NamedTempFile::new()?;
//! library.write_all(AGENT_SO)?;
//! let (mut ours, theirs) = UnixStream::pair()?;
//! // The program is a shell that waits for a line. It inherits the agent's socket as descriptor 3.
//! let mut program = Command::new("/bin/sh")
//!     .args(["-c", r#"exec 3>&1; LD_PRELOAD="$LIBRARY" exec /bin/sh -c "read line""#])
//!     .env("LIBRARY", library.path())
//!     .env(AGENT_FD_ENV, "3")
//!     .stdin(Stdio::piped())
//!     .stdout(OwnedFd::from(theirs))
//!     .spawn()?;
//!
//! ours.write_all(&request(Op::Hello, 0, 0))?;
//! let mut reply = [0; Reply::BYTES];
//! ours.read_exact(&mut reply)?;
//! let hello = Reply::decode(reply);
//! assert_eq!(hello.status, 0);
//! assert_eq!(hello.value & 0xffff, u32::from(AGENT_VERSION));
//! assert_eq!(hello.value & HELLO_HAS_ORDERS, 0, "a shell has no guest to stop");
//!
//! drop(program.stdin.take()); // The shell's `read` ends, and so does the shell.
//! program.wait()?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::ops::Range;

/// The shared object to preload.
pub const AGENT_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// The environment variable that carries the number of the agent's socket.
pub const AGENT_FD_ENV: &str = "PLOVER_AGENT_FD";

/// The environment variable that carries the numbers of each NIC's socket and of its page, with a comma between them and a space
/// before the next NIC's. Then QEMU takes the sockets for TAP devices, and the agent writes to the page what offloads the
/// guest's driver takes (`TUN_F_…`) and how long the header before each frame is, 32 bits each.
pub const AGENT_NIC_ENV: &str = "PLOVER_NIC";

/// The version of the protocol, the low half of the reply to [`Op::Hello`].
pub const AGENT_VERSION: u16 = 7;

/// The bit of the reply to [`Op::Hello`] that says QEMU exports what [`Op::Orders`] needs.
pub const HELLO_HAS_ORDERS: u32 = 1 << 16;

/// The bit of the reply to [`Op::Hello`] that says QEMU exports what [`Op::Log`] needs.
pub const HELLO_HAS_LOG: u32 = 1 << 17;

/// The bit of the reply to [`Op::Hello`] that says that loads can keep TCG's translations.
pub const HELLO_KEEPS_CODE: u32 = 1 << 18;

/// The most runs of pages in one [`load_order`].
pub const RUNS_MAX: usize = 8192;

/// The requests that the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    /// Ask for the version. The reply's value is the version, with `HELLO_…`.
    Hello = 0,
    /// Write-protect `addr..addr + len` of QEMU's address space for tracking; the userfaultfd
    /// comes with the reply.
    Track = 1,
    /// Listen for [`Order`]s on the inherited socket of number `addr`; states are saved to and
    /// loaded from the inherited file of number `len`.
    Orders = 2,
    /// Put memory in the place of the flash chip that the guest may write; see [`place_request`].
    Flash = 3,
    /// Put memory in the place of the graphics card's; see [`place_request`].
    Display = 4,
    /// Log which pages of the machine's RAM are written; see [`log_request`].
    Log = 5,
}

/// The orders that QEMU's main loop carries out, sent on the orders' socket. The reply's status is 0 or an
/// errno, and its value is the order. If the order failed, QEMU's message follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// Stop the vCPUs: QMP's `stop`.
    Stop = 0,
    /// Let them run: QMP's `cont`. The guest's clocks go on as if it had not stood.
    Cont = 1,
    /// Save device and CPU state: QMP's `xen-save-devices-state`. Behind it what a microvm's
    /// firmware has written to its own memory.
    Save = 2,
    /// Load it: QMP's `xen-load-devices-state`; see [`load_order`].
    Load = 3,
    /// Hand over QEMU's log of written pages ([`Op::Log`]). [`Order::Stop`] does so, too, once the guest stands.
    Written = 4,
}

/// The agent's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// 0, or an errno.
    pub status: i32,
    /// See [`Op::Hello`].
    pub value: u32,
}

impl Reply {
    /// Bytes of a reply.
    pub const BYTES: usize = 8;

    /// The reply in `bytes`.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            status: i32::from_ne_bytes([a, b, c, d]),
            value: u32::from_ne_bytes([e, f, g, h]),
        }
    }
}

/// The bytes of a request; what `addr` and `len` mean is [`Op`]'s business.
pub fn request(op: Op, addr: u64, len: u64) -> Vec<u8> {
    encode(op as u32, addr, len, &[])
}

/// The bytes of an [`Op::Flash`] or [`Op::Display`]: the memory of the device is, from now on, `bytes` at `offset` of the
/// inherited file of number `file`. Both are whole pages.
pub fn place_request(op: Op, file: u32, offset: u64, bytes: u32) -> Vec<u8> {
    let place = (u64::from(file) << 32) | u64::from(bytes);
    encode(op as u32, offset, place, &[])
}

/// The bytes of an [`Op::Log`]: QEMU logs which pages of `addr..addr + bytes` of its address space, the machine's RAM, are
/// written, and at each hand-over the agent sets their bits in the inherited file of number `file`: bit N % 64 of word N / 64 is
/// page N's. The reader clears them. `bytes` is a multiple of 64 pages.
pub fn log_request(addr: u64, bytes: u64, file: u32) -> Vec<u8> {
    encode(Op::Log as u32, addr, bytes, &[(file, 0)])
}

/// The bytes of an order without particulars.
pub fn order(order: Order) -> Vec<u8> {
    encode(order as u32, 0, 0, &[])
}

/// The bytes of an [`Order::Load`]. `written`: all pages, by guest-physical address, that were
/// written behind QEMU's back since the last load, as runs of (first page, pages), at most
/// [`RUNS_MAX`]; then what QEMU has translated from other pages is kept. `None`: everything is
/// translated anew. `serial`: where in the file the section of the serial port lies, empty if there
/// is none. `stopped_at`: when the guest of that state stopped, in microseconds of `CLOCK_MONOTONIC`; 0
/// if it is not known.
pub fn load_order(written: Option<&[(u32, u32)]>, serial: Range<u32>, stopped_at: u64) -> Vec<u8> {
    let runs = written.unwrap_or_default();
    assert!(runs.len() <= RUNS_MAX, "{} runs in one order", runs.len());
    let place = (u64::from(serial.start) << 32) | u64::from(serial.end);
    let keeps = u64::from(written.is_some());
    encode(Order::Load as u32, place, (stopped_at << 1) | keeps, runs)
}

fn encode(op: u32, addr: u64, len: u64, runs: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24 + runs.len() * 8);
    bytes.extend(op.to_ne_bytes());
    bytes.extend((runs.len() as u32).to_ne_bytes());
    bytes.extend(addr.to_ne_bytes());
    bytes.extend(len.to_ne_bytes());
    for (page, pages) in runs {
        bytes.extend(page.to_ne_bytes());
        bytes.extend(pages.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// The agent in a program that is no QEMU: it answers, says that the symbol is missing, and
    /// leaves nothing in the environment of what that program starts.
    #[test]
    fn serves_any_program_and_cleans_its_environment() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut so = tempfile::NamedTempFile::new().unwrap();
        so.write_all(AGENT_SO).unwrap();
        let fd = theirs.as_raw_fd();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "env; read line"])
            .env_clear()
            .env("MARKER", "1")
            .env("LD_PRELOAD", so.path())
            .env(AGENT_FD_ENV, fd.to_string())
            .env(AGENT_NIC_ENV, "98,99")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: the closure makes one async-signal-safe system call, on a descriptor that is
        // open in the child; F_SETFD takes an int.
        unsafe {
            command.pre_exec(move || {
                let failed = libc::fcntl(fd, libc::F_SETFD, 0) != 0;
                if failed {
                    Err(std::io::Error::last_os_error())
                } else {
                    Ok(())
                }
            });
        }
        let mut child = command.spawn().unwrap();
        drop(theirs);

        let ask = |ours: &mut UnixStream, bytes: &[u8]| {
            ours.write_all(bytes).unwrap();
            let mut reply = [0; Reply::BYTES];
            ours.read_exact(&mut reply).unwrap();
            Reply::decode(reply)
        };
        let hello = ask(&mut ours, &request(Op::Hello, 0, 0));
        assert_eq!(
            hello,
            Reply {
                status: 0,
                value: u32::from(AGENT_VERSION)
            }
        );
        assert_eq!(
            ask(&mut ours, &request(Op::Orders, 0, 0)).status,
            38,
            "ENOSYS"
        );
        assert_eq!(
            ask(&mut ours, &log_request(0, 64 * 4096, 0)).status,
            38,
            "ENOSYS"
        );
        for op in [Op::Flash, Op::Display] {
            let placed = ask(&mut ours, &place_request(op, 0, 0, 4096));
            assert_eq!(placed.status, 38, "{op:?}: ENOSYS");
        }
        assert_ne!(
            ask(&mut ours, &request(Op::Track, 1, 1)).status,
            0,
            "a bad range is refused"
        );
        let mut unknown = request(Op::Hello, 0, 0);
        unknown[0] = 99;
        assert_eq!(ask(&mut ours, &unknown).status, 22, "EINVAL");

        drop(child.stdin.take());
        let mut printed = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        child.wait().unwrap();
        assert!(printed.contains("MARKER="), "env printed: {printed}");
        assert!(
            !["LD_PRELOAD", AGENT_FD_ENV, AGENT_NIC_ENV]
                .iter()
                .any(|name| printed.contains(name)),
            "{printed}"
        );
    }
}
