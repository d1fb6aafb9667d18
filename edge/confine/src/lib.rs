//! Confines the programs that a replica starts: QEMU, which a guest may have taken over, and `qemu-img`, which
//! reads images that strangers have made.
//!
//! ```text
//!   replica ── fork ──▶ child ── Confinement::enter ──▶ exec QEMU
//!                                 1. no capabilities, also for root
//!                                 2. no new privileges
//!                                 3. Landlock: the named files and sockets only; no TCP; no signals to others
//!                                 4. seccomp: no sockets to name, no look into other processes
//! ```
//!
//! All of it works without privileges, so a service that is not root can do it, and it needs no second user:
//! see docs/decisions/0048. What the child inherits as an open descriptor stays usable, and nothing else is needed: guest RAM,
//! network card, disks and console come that way.
//!
//! Landlock's rules depend on the kernel: files since Linux 5.13, TCP since 6.7, signals and abstract sockets since
//! 6.12, Unix sockets with a path since 7.1. A kernel that is built or booted without Landlock does not confine files at all.
//! [`confines_files`] tells.
//!
//! **Before 7.1 a datagram reaches a socket with a path.** QEMU has a datagram socket for each network card, and the kernel lets
//! its owner name another recipient in `sendmsg`. The name is in memory, where no filter of system calls sees it.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest rules of Landlock that are used here. An older kernel applies those that it has.
const NEWEST: ABI = ABI::V9;

/// Programs, libraries and their data.
const SYSTEM: [&str; 3] = ["/usr", "/lib", "/lib64"];
/// The loader's list of libraries.
const LOADER: &str = "/etc/ld.so.cache";
/// Devices that any program may open.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"];

/// System calls that are refused: each reaches another process, the kernel's keys, or the network, or makes
/// the kernel do work that this filter does not see.
const REFUSED: [libc::c_long; 32] = [
    // Connections come by inheritance. Landlock covers the path of a Unix socket on new kernels only.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Work that the kernel does by itself, also connecting.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Other processes of the same user.
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_kcmp,
    // Memory and messages that all processes of a user share.
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Namespaces, in which a process has all capabilities and reaches much more of the kernel.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
];

/// System calls of the x32 ABI have this bit in their numbers. No program here is of that ABI.
const X32: u32 = 1 << 30;

/// Why a program cannot be confined: it must not be started.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The filter of system calls cannot be made, on an architecture that it does not know.
    #[error("cannot make a filter of system calls: {0}; plover runs on x86-64")]
    Seccomp(#[from] seccompiler::BackendError),
    /// The kernel refuses Landlock's rules.
    #[error("cannot confine the files of a program that is to be started (Landlock): {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// A file that the program needs cannot be opened.
    #[error("cannot let a program have the file that it needs: {0}")]
    File(#[from] landlock::PathFdError),
}

/// The files of a program, beside the system's own (`/usr`) and those that it inherits.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// It may read these, and what is in them. One that is not there is left out.
    pub read: Vec<PathBuf>,
    /// It may also write these files, or use these devices. One that is not there is left out.
    pub write: Vec<PathBuf>,
}

/// A child's bounds, made before the fork.
#[derive(Debug)]
pub struct Confinement {
    filter: BpfProgram,
    /// Without it the kernel has no Landlock.
    ruleset: Option<OwnedFd>,
    kept: CapabilitySet,
}

impl Confinement {
    /// The bounds of a program that may use `files`.
    ///
    /// # Errors
    /// The kernel refuses them. A kernel without Landlock is no error, and is logged.
    pub fn new(files: &Files) -> Result<Self, ConfineError> {
        let ruleset = Option::<OwnedFd>::from(rules(files)?);
        if ruleset.is_none() {
            tracing::warn!(
                event = "no_landlock",
                "this kernel has no Landlock, so a guest that takes its QEMU over reaches all files of this \
                 user: add 'landlock' to the kernel's boot option lsm="
            );
        }
        Ok(Self {
            filter: filter()?,
            ruleset,
            kept: CapabilitySet::empty(),
        })
    }

    /// Lets the program read the files that it may have whatever their mode is, if the caller can. A file of another user is
    /// closed to root without this right.
    ///
    /// # Errors
    /// The kernel does not say what the caller can.
    pub fn reading_as_the_caller(mut self) -> io::Result<Self> {
        let own = rustix::thread::capabilities(None)?;
        self.kept = own.permitted & CapabilitySet::DAC_READ_SEARCH;
        Ok(self)
    }

    /// Makes `command` start its program within these bounds.
    pub fn apply(self, command: &mut Command) {
        // SAFETY: between fork and exec the closure makes system calls only: no allocation, no lock.
        unsafe {
            command.pre_exec(move || self.enter());
        }
    }

    /// Confines the calling thread for ever. Makes system calls only, so it may stand between fork and exec.
    ///
    /// # Errors
    /// The kernel refuses a part: do not go on.
    pub fn enter(&self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        drop_capabilities(self.kept)?;
        if let Some(ruleset) = &self.ruleset {
            // SAFETY: the call takes a descriptor, which is open, and flags by value.
            let done =
                unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        seccompiler::apply_filter(&self.filter).map_err(|error| match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            _ => io::ErrorKind::InvalidInput.into(),
        })
    }
}

/// Whether this kernel can confine a program's files.
///
/// # Errors
/// It has Landlock, and refuses the rules.
pub fn confines_files() -> Result<bool, ConfineError> {
    Ok(Option::<OwnedFd>::from(rules(&Files::default())?).is_some())
}

fn rules(files: &Files) -> Result<RulesetCreated, ConfineError> {
    let reads = AccessFs::from_read(NEWEST);
    let writes = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let system = SYSTEM.iter().chain([&LOADER]).map(Path::new);
    let read = system.chain(files.read.iter().map(PathBuf::as_path));
    let devices = DEVICES.iter().map(Path::new);
    let write = devices.chain(files.write.iter().map(PathBuf::as_path));
    let both = read
        .map(|path| (path, reads))
        .chain(write.map(|path| (path, writes)));
    for (path, access) in both.filter(|(path, _)| path.exists()) {
        let rights = if path.is_dir() {
            access
        } else {
            access & AccessFs::from_file(NEWEST)
        };
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, rights))?;
    }
    Ok(rules)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    use SeccompCmpOp::{MaskedEq, Ne};
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let new_user = libc::CLONE_NEWUSER as u64;
    for (call, argument, is, value) in [
        // Its own limits it may ask for, which the C library does at the start.
        (libc::SYS_prlimit64, 0, Ne, 0),
        // Only datagrams can be sent to a name; these are the types 2 and 3. Flags are above the lowest four bits.
        (libc::SYS_socketpair, 1, MaskedEq(0b1110), 0b0010),
        // In a namespace of users of its own a process may make all other namespaces.
        (libc::SYS_clone, 0, MaskedEq(new_user), new_user),
    ] {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?;
        refused.insert(call, vec![SeccompRule::new(vec![condition])?]);
    }
    let program: BpfProgram = SeccompFilter::new(
        refused,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?
    .try_into()?;
    Ok([&around_it()[..], &program].concat())
}

/// Comes before the filter, and refuses calls that it would not know. `clone3` has its flags in memory, where no filter sees
/// them: it is said not to exist, and the C library uses `clone`.
fn around_it() -> [sock_filter; 5] {
    let step = |code: u32, jf, k| sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let unless = |test: u32, k| step(libc::BPF_JMP | test | libc::BPF_K, 1, k);
    let refuse = |error: i32| {
        let answer = libc::SECCOMP_RET_ERRNO | error as u32;
        step(libc::BPF_RET | libc::BPF_K, 0, answer)
    };
    [
        // The number of the call, which is the first that a filter is given.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        unless(libc::BPF_JGE, X32),
        refuse(libc::EPERM),
        unless(libc::BPF_JEQ, libc::SYS_clone3 as u32),
        refuse(libc::ENOSYS),
    ]
}

/// Drops all but `kept`, which this process has. A program that root starts has all capabilities of the bounding set. Another
/// user's has those that were made ambient.
fn drop_capabilities(kept: CapabilitySet) -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().difference(kept).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Another user's process, or a root without this capability. Emptying the sets below is enough.
            Err(rustix::io::Errno::PERM) => break,
            // Newer than this kernel.
            Err(rustix::io::Errno::INVAL) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Without new privileges a program gets no capability that its process does not have.
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    match rustix::thread::set_capabilities(None, sets) {
        // A service may be refused the call. A program of another user than root has no capability then all the same, and
        // one of root those that the service leaves it.
        Err(rustix::io::Errno::PERM) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
