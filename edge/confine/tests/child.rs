//! The bounds of a confined program, tried from inside.

use plover_confine::{Confinement, Files, confines_files};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(files: &Files, script: &str) -> Output {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    Confinement::new(files).unwrap().apply(&mut command);
    command.output().unwrap()
}

fn succeeds(files: &Files, script: &str) -> bool {
    run(files, script).status.success()
}

#[test]
fn only_the_named_files_are_reached() {
    if !confines_files().unwrap() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["readable", "writable", "other"] {
        std::fs::write(path(name), "text").unwrap();
    }
    std::os::unix::fs::symlink(path("other"), path("link")).unwrap();
    let files = Files {
        read: vec![path("readable"), path("missing")],
        write: vec![path("writable")],
    };
    let does =
        |what: &str, name: &str| succeeds(&files, &format!("{what} {}", path(name).display()));
    assert!(does("cat", "readable"), "a program that is told to read it");
    assert!(!does("echo more >>", "readable"));
    assert!(does("cat", "writable") && does("echo more >", "writable"));
    assert!(!does("cat", "other") && !does("cat", "link") && !does("echo more >", "other"));
    assert!(!does("echo new >", "missing") && !does("rm", "writable") && !does("ls", ""));
    assert!(!succeeds(&files, "cat /etc/passwd"));

    let folder = Files {
        read: vec![dir.path().into()],
        ..Files::default()
    };
    assert!(succeeds(
        &folder,
        &format!("cat {}", path("other").display())
    ));
}

/// The kernel's words about a confined shell that `command` starts.
fn state_of(mut command: Command) -> String {
    // The shell waits for its input, which comes when its state has been read.
    command.args(["-c", "read line"]).stdin(Stdio::piped());
    Confinement::new(&Files::default())
        .unwrap()
        .apply(&mut command);
    let mut child = command.spawn().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    status
}

/// A root that may not change the bounding set, as in some containers.
fn without_setpcap() -> Command {
    let mut command = Command::new("/bin/sh");
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe {
        command.pre_exec(|| {
            let mut sets = capabilities(None)?;
            sets.effective.remove(CapabilitySet::SETPCAP);
            sets.permitted.remove(CapabilitySet::SETPCAP);
            sets.inheritable.remove(CapabilitySet::SETPCAP);
            set_capabilities(None, sets).map_err(Into::into)
        });
    }
    command
}

/// A service whose system calls are filtered, as those of the unit `plover@` are.
fn without_capset() -> Command {
    let refused = [(libc::SYS_capset, Vec::new())].into();
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let (others, these) = (
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
    );
    let filter = SeccompFilter::new(refused, others, these, arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    let mut command = Command::new("/bin/sh");
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe {
        command.pre_exec(move || {
            let mut sets = capabilities(None)?;
            sets.inheritable = CapabilitySet::empty();
            set_capabilities(None, sets)?;
            seccompiler::apply_filter(&filter).map_err(io::Error::other)
        });
    }
    command
}

#[test]
fn a_confined_program_has_no_capabilities_and_reaches_no_process() {
    let mut commands = vec![Command::new("/bin/sh"), without_setpcap()];
    let permitted = capabilities(None).unwrap().permitted;
    // A root that has neither keeps what it has.
    if permitted.is_empty() || permitted.contains(CapabilitySet::SETPCAP) {
        commands.push(without_capset());
    }
    for command in commands {
        let status = state_of(command);
        for line in [
            "CapInh:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
    }

    let kill = format!("kill -0 {}", std::process::id());
    assert!(succeeds(&Files::default(), "true"));
    assert!(
        !succeeds(&Files::default(), &kill),
        "a signal to another process"
    );
    // A socket is refused, before any address is looked at.
    if Path::new("/usr/bin/python3").exists() {
        let socket = "import socket; socket.socket(socket.AF_UNIX)";
        let done = run(
            &Files::default(),
            &format!("/usr/bin/python3 -I -S -c '{socket}'"),
        );
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains("Operation not permitted"), "{said}");
    }
}

/// System calls that a filter does not see by their number and arguments.
#[test]
fn calls_that_get_around_the_filter_are_refused() {
    let confinement = Confinement::new(&Files::default()).unwrap();
    let confined = std::thread::spawn(move || {
        confinement.enter().unwrap();
        let call = |number: libc::c_long, arguments: [libc::c_long; 3]| {
            let [first, second, third] = arguments;
            let none: libc::c_long = 0;
            // SAFETY: no argument of these calls is the address of memory that is there. A child that should not be ends.
            let done = unsafe { libc::syscall(number, first, second, third, none, none) };
            if done == 0 && number == libc::SYS_clone {
                // SAFETY: it ends the process, which has run nothing.
                unsafe { libc::_exit(0) };
            }
            io::Error::last_os_error()
                .raw_os_error()
                .filter(|_| done < 0)
        };
        let new_user = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
        let pair = |kind: i32| {
            [
                libc::c_long::from(libc::AF_UNIX),
                libc::c_long::from(kind | libc::SOCK_CLOEXEC),
                0,
            ]
        };
        [
            // `getpid` of the x32 ABI.
            call((1 << 30) | libc::SYS_getpid, [0; 3]),
            call(libc::SYS_clone, [new_user, 0, 0]),
            call(libc::SYS_clone3, [0; 3]),
            call(libc::SYS_socketpair, pair(libc::SOCK_DGRAM)),
            call(libc::SYS_socketpair, pair(libc::SOCK_RAW)),
            // Those that are allowed find no memory for their answer.
            call(libc::SYS_socketpair, pair(libc::SOCK_STREAM)),
            call(libc::SYS_socketpair, pair(libc::SOCK_SEQPACKET)),
        ]
    });
    let (refused, missing) = (Some(libc::EPERM), Some(libc::ENOSYS));
    let faulty = Some(libc::EFAULT);
    assert_eq!(
        confined.join().unwrap(),
        [refused, refused, missing, refused, refused, faulty, faulty]
    );
}

/// A confined program has an end of a pair of datagram sockets, as QEMU has for a network card, and names another recipient.
#[test]
fn a_datagram_reaches_no_named_socket() {
    // SAFETY: without a ruleset the call takes no memory.
    let version = unsafe {
        let nothing = std::ptr::null::<libc::c_void>();
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, 1)
    };
    if version < 9 || !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: it takes Linux 7.1 with Landlock, and python3");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let named = UnixDatagram::bind(&path).unwrap();
    named.set_nonblocking(true).unwrap();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let script = format!(
        "import socket; s = socket.socket(fileno=0); s.send(b'peer'); s.sendto(b'other', '{}')",
        path.display()
    );
    let mut command = Command::new("/usr/bin/python3");
    command
        .args(["-I", "-S", "-c", &script])
        .stdin(OwnedFd::from(theirs));
    Confinement::new(&Files::default())
        .unwrap()
        .apply(&mut command);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    ours.set_nonblocking(true).unwrap();
    let mut bytes = [0; 9];
    assert_eq!(ours.recv(&mut bytes).unwrap(), 4, "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    assert!(named.recv(&mut bytes).is_err());
}
