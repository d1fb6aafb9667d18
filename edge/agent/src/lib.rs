//! The part of Plover that runs inside QEMU, carried as bytes.
//!
//! QEMU stays the distribution's own. What cannot be done to it from another process is done by a
//! small shared library, `agent.c`, which is preloaded into it and answers requests on an
//! inherited socket; its head says what it does and why. This crate compiles it, carries it, and
//! names the numbers of its protocol, so that the two ends are changed together.
//!
//! ```text
//!   plover                                   QEMU
//!     │  request {op, runs, addr, len, …}      │
//!     ├───────────────────────────────────────►│ agent thread
//!     │  reply {status, value}                 │
//!     │◄───────────────────────────────────────┤  (+ the userfaultfd, after TRACK)
//! ```

/// The shared object to preload.
pub const AGENT_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// The environment variable that carries the number of the agent's socket.
pub const AGENT_FD_ENV: &str = "PLOVER_AGENT_FD";

/// The version of the protocol, the low half of the reply to [`Op::Hello`].
pub const AGENT_VERSION: u16 = 1;

/// The bit of the reply to [`Op::Hello`] that says QEMU exports what [`Op::Yank`] needs.
pub const HELLO_HAS_YANK: u32 = 1 << 16;

/// The bit of the reply to [`Op::Hello`] that says QEMU exports what [`Op::Invalidate`] needs.
pub const HELLO_HAS_INVALIDATE: u32 = 1 << 17;

/// The most runs of pages in one [`Op::Invalidate`].
pub const RUNS_MAX: usize = 8192;

/// What the agent can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    /// Who are you? The reply's value is the version, with [`HELLO_HAS_YANK`].
    Hello = 0,
    /// Write-protect `addr..addr + len` of QEMU's address space for tracking; the userfaultfd
    /// comes with the reply.
    Track = 1,
    /// Make the next device-state load survivable.
    Yank = 2,
    /// Forget what was translated from given pages of the guest RAM that is mapped at `addr`.
    Invalidate = 3,
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

/// The bytes of a request; `addr` and `len` matter to [`Op::Track`] only.
pub fn request(op: Op, addr: u64, len: u64) -> Vec<u8> {
    encode(op, addr, len, &[])
}

/// The bytes of an [`Op::Invalidate`] of `runs` of (first page, pages), at most [`RUNS_MAX`].
pub fn invalidate_request(ram: u64, runs: &[(u32, u32)]) -> Vec<u8> {
    assert!(runs.len() <= RUNS_MAX, "{} runs in one request", runs.len());
    encode(Op::Invalidate, ram, 0, runs)
}

fn encode(op: Op, addr: u64, len: u64, runs: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24 + runs.len() * 8);
    bytes.extend((op as u32).to_ne_bytes());
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
            ask(&mut ours, &request(Op::Yank, 0, 0)).status,
            38,
            "ENOSYS"
        );
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
            !printed.contains("LD_PRELOAD") && !printed.contains(AGENT_FD_ENV),
            "{printed}"
        );
    }
}
