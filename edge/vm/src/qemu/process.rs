//! The QEMU process: starting it, its last words, ending it.

use super::command_line::{Inherited, arguments};
use crate::{Accel, Boot, QemuConfig, VmError};
use plover_agent::{AGENT_FD_ENV, AGENT_NIC_ENV, AGENT_SO};
use plover_confine::{Confinement, Files};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};
use rustix::time::Timespec;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// How long the end of a killed QEMU is waited for. It gives much memory back.
const END_WITHIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// Bytes kept of the end of QEMU's error output.
const STDERR_BYTES: usize = 2048;

/// The descriptors that QEMU inherits beside its standard streams.
pub(super) struct Ends<'a> {
    pub(super) ram: BorrowedFd<'a>,
    pub(super) state: BorrowedFd<'a>,
    pub(super) log: BorrowedFd<'a>,
    /// Each NIC, and its [`crate::nic::Nic::agreed_fd`].
    pub(super) nics: Vec<(BorrowedFd<'a>, BorrowedFd<'a>)>,
    pub(super) qmp: BorrowedFd<'a>,
    pub(super) console: BorrowedFd<'a>,
    pub(super) guest_agent: Option<BorrowedFd<'a>>,
    pub(super) agent: BorrowedFd<'a>,
    pub(super) orders: BorrowedFd<'a>,
    pub(super) disks: Vec<BorrowedFd<'a>>,
}

/// The agent's socket; and the NICs that it is to make TAP devices of, with the pages in which it says what was agreed.
pub(crate) struct Agent<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) nics: Vec<(BorrowedFd<'a>, BorrowedFd<'a>)>,
}

/// A child that is ended when this is dropped.
pub(crate) struct Process {
    child: Child,
    pidfd: OwnedFd,
    stderr: ChildStderr,
    tail: Vec<u8>,
    /// It was killed, and a thread waits for its end.
    left: bool,
}

impl Process {
    /// Starts the guest's QEMU.
    pub(super) fn spawn(
        config: &QemuConfig,
        accel: Accel,
        ends: &Ends<'_>,
    ) -> Result<Self, VmError> {
        let fds = Inherited {
            ram: ends.ram.as_raw_fd(),
            nics: ends.nics.iter().map(|(nic, _)| nic.as_raw_fd()).collect(),
            qmp: ends.qmp.as_raw_fd(),
            console: ends.console.as_raw_fd(),
            guest_agent: ends.guest_agent.as_ref().map(AsRawFd::as_raw_fd),
            disks: ends.disks.iter().map(AsRawFd::as_raw_fd).collect(),
        };
        let mut inherit = vec![
            ends.ram,
            ends.state,
            ends.log,
            ends.qmp,
            ends.console,
            ends.orders,
        ];
        inherit.extend(ends.nics.iter().flat_map(|(nic, agreed)| [*nic, *agreed]));
        inherit.extend(ends.guest_agent);
        inherit.extend(&ends.disks);
        let mut files = files(config);
        if let Boot::Kernel { kernel, initrd, .. } = &config.boot {
            files.read.push(kernel.clone());
            files.read.extend(initrd.clone());
        }
        Self::start(
            &binary(config),
            arguments(config, accel, &fds),
            &inherit,
            Some(Agent {
                socket: ends.agent,
                nics: if config.offloads {
                    ends.nics.clone()
                } else {
                    Vec::new()
                },
            }),
            &files,
        )
    }

    /// Starts `program` so that it dies with the calling *thread*, inherits `inherit` under the
    /// numbers the descriptors have here, and with `agent` also inherits the agent and its socket. It opens
    /// `files` and no others.
    pub(crate) fn start(
        program: &Path,
        arguments: Vec<OsString>,
        inherit: &[BorrowedFd<'_>],
        agent: Option<Agent<'_>>,
        files: &Files,
    ) -> Result<Self, VmError> {
        let confinement = Confinement::new(files)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut keep: Vec<i32> = inherit.iter().map(AsRawFd::as_raw_fd).collect();
        let library = agent
            .map(|agent| agent_library().map(|file| (file, agent)))
            .transpose()?;
        if let Some((library, agent)) = &library {
            keep.extend([library.as_raw_fd(), agent.socket.as_raw_fd()]);
            let mut preload = OsString::from(format!("/proc/self/fd/{}", library.as_raw_fd()));
            if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
                preload.push(":");
                preload.push(others);
            }
            command.env("LD_PRELOAD", preload);
            command.env(AGENT_FD_ENV, agent.socket.as_raw_fd().to_string());
            let numbers = agent
                .nics
                .iter()
                .map(|(socket, page)| format!("{},{}", socket.as_raw_fd(), page.as_raw_fd()));
            let numbers: Vec<_> = numbers.collect();
            if !numbers.is_empty() {
                command.env(AGENT_NIC_ENV, numbers.join(" "));
            }
        }
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec the closure makes system calls only: no allocation, no
        // lock. The numbers in `keep` are open in the child, which has a copy of our table.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                if rustix::process::getppid() != Some(parent) {
                    // The parent died before the line above took hold.
                    return Err(rustix::io::Errno::SRCH.into());
                }
                // All other open descriptors are closed by the exec.
                if libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                for fd in &keep {
                    fcntl_setfd(BorrowedFd::borrow_raw(*fd), FdFlags::empty())?;
                }
                // Last: it refuses some of the calls above.
                confinement.enter()
            });
        }
        let mut child = command
            .spawn()
            .map_err(|error| cannot_start(program, error))?;
        let pid = Pid::from_child(&child);
        let stderr = child.stderr.take().expect("stderr is piped");
        let prepare = || -> rustix::io::Result<OwnedFd> {
            fcntl_setfl(&stderr, fcntl_getfl(&stderr)? | OFlags::NONBLOCK)?;
            pidfd_open(pid, PidfdFlags::empty())
        };
        match prepare() {
            Ok(pidfd) => Ok(Self {
                child,
                pidfd,
                stderr,
                tail: Vec::new(),
                left: false,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(VmError::io("watching QEMU")(error))
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Polls readable when the process has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Polls readable when there is error output.
    pub(crate) fn stderr(&self) -> BorrowedFd<'_> {
        self.stderr.as_fd()
    }

    /// Reads the available error output and keeps its end. `false` if there will be no more.
    pub(crate) fn read_stderr(&mut self) -> bool {
        let mut buffer = [0; 4096];
        // Bounded, so that a QEMU that prints without end cannot keep us here.
        for _ in 0..16 {
            match self.stderr.read(&mut buffer) {
                Ok(0) => return false,
                Ok(got) => {
                    let text = String::from_utf8_lossy(&buffer[..got]);
                    tracing::debug!(pid = self.child.id(), "QEMU: {}", text.trim_end());
                    self.tail.extend_from_slice(&buffer[..got]);
                    let excess = self.tail.len().saturating_sub(STDERR_BYTES);
                    self.tail.drain(..excess);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// If the process has ended: its exit status and the end of its error output.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let (status, killed) = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => (status.to_string(), status.signal() == Some(libc::SIGKILL)),
            Err(error) => (error.to_string(), false),
        };
        self.read_stderr();
        let why = match killed {
            true => ": it was killed, as the kernel does where memory is short (look at dmesg)",
            false => "",
        };
        Some(format!("{status}{why}{}", self.last_words()))
    }

    /// Waits for the end of the process. Returns whether it has ended.
    pub(crate) fn ends_within(&self, limit: &Timespec) -> bool {
        let mut end = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut end, Some(limit)), Ok(1))
    }

    /// The exit code, if the process has ended by itself.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.try_wait().ok()??.code()
    }

    /// The end of the error output, as the tail of a message.
    pub(crate) fn last_words(&self) -> String {
        match String::from_utf8_lossy(&self.tail).trim() {
            "" => String::new(),
            words => format!("; it said: {words}"),
        }
    }

    /// Ends the process at once, and does not wait for its end.
    pub(super) fn signal(&mut self) {
        if !self.left {
            // Fails only if it was already waited for.
            let _ = self.child.kill();
        }
    }

    /// Ends the process and waits for its end, but not for long. One that waits for a disk that hangs ends when that answers: nobody waits
    /// for it here.
    pub(super) fn kill(&mut self) {
        if self.left {
            return;
        }
        self.signal();
        if self.ends_within(&END_WITHIN) {
            let _ = self.child.wait();
            return;
        }
        self.left = true;
        let pid = Pid::from_child(&self.child);
        tracing::error!(event = "qemu_does_not_end", %pid, "QEMU was killed and does not end: something holds it in the kernel");
        // Without a thread it stays behind as an entry in the kernel's table.
        let waits = std::thread::Builder::new().name("qemu-end".into());
        let _ = waits.spawn(move || waitpid(Some(pid), WaitOptions::empty()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

const QEMU: &str = "qemu-system-x86_64";

/// The QEMU to start: the configured one, or the first on the path, with its folder. By its bare name a confined process would
/// start the next one on the path wherever the first is outside of what it may execute.
pub(crate) fn binary(config: &QemuConfig) -> PathBuf {
    if let Some(qemu) = &config.qemu {
        return qemu.clone();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).map(|folder| folder.join(QEMU));
    all.find(|file| file.is_file())
        .unwrap_or_else(|| QEMU.into())
}

/// The files of any QEMU by `config`, beside those of a guest's boot: KVM, and a build of one's own that lies outside
/// of `/usr`, whose data is beside the folder of the binary.
pub(crate) fn files(config: &QemuConfig) -> Files {
    let own = binary(config).canonicalize().ok();
    let own = own.and_then(|qemu| {
        let folder = qemu.parent()?;
        let beside = folder.parent().filter(|above| above.parent().is_some());
        Some(beside.unwrap_or(folder).to_path_buf())
    });
    Files {
        read: own.into_iter().collect(),
        write: vec!["/dev/kvm".into()],
    }
}

/// The agent as a file without a name, which the dynamic loader opens by its descriptor.
fn agent_library() -> Result<OwnedFd, VmError> {
    let fd = memfd_create("plover-agent.so", MemfdFlags::CLOEXEC)
        .map_err(VmError::io("creating memory for the agent (memfd)"))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(AGENT_SO).map_err(|source| VmError::Io {
        what: "writing the agent".into(),
        source,
    })?;
    Ok(file.into())
}

/// The error for a program that did not start.
pub(crate) fn cannot_start(program: &Path, error: std::io::Error) -> VmError {
    if error.kind() == std::io::ErrorKind::NotFound {
        return VmError::Unsupported(format!(
            "no QEMU at '{}': install it (Debian, Ubuntu: apt-get install qemu-system-x86) or \
             name the binary in the configuration",
            program.display()
        ));
    }
    VmError::Io {
        what: format!("starting {}", program.display()),
        source: error,
    }
}
