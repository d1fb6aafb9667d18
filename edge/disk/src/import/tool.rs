//! `qemu-img`, confined.

use crate::error::{DiskError, io_error};
use plover_confine::{Confinement, Files, confines_files};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit,
};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Address space of `qemu-img`, which takes some 150 MiB and more for a large table of a qcow2 image.
const TOOL_BYTES_MAX: u64 = 1 << 30;

/// More address space for each folder from which it reads an image: the cache of a table is 32 MiB.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// So many bytes of the errors that `qemu-img` prints are kept. A hostile image may make it print more.
pub(super) const ERRORS_BYTES_MAX: u64 = 64 << 10;

/// How often the caller is asked whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An image is inspected within this time, which reads its header and those of its backing files.
const INSPECTED_WITHIN: Duration = Duration::from_secs(60);

/// So many bytes of what is told of an image are read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A process that is killed ends within this time, unless the kernel cannot end it.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// `qemu-img` with these arguments, for an image that may be hostile. It reads its folder and those `beside`, and writes at
/// most `file_bytes_max` to `to`, which stays open until the command ends.
pub(super) fn qemu_img(
    arguments: &[&str],
    image: &Path,
    beside: &[PathBuf],
    to: Option<&File>,
    file_bytes_max: u64,
) -> Result<Command, DiskError> {
    // Absolute, so that a name is never read as an option or as "protocol:". Without links, since what the image
    // names is beside the file itself.
    let image = image
        .canonicalize()
        .map_err(io_error("cannot find", image))?;
    let to = to.map(|to| to.as_raw_fd());
    // The file itself, whatever has its name by now.
    let to_file = to.map(|to| PathBuf::from(format!("/proc/self/fd/{to}")));
    let files = Files {
        read: image
            .parent()
            .into_iter()
            .map(Into::into)
            .chain(beside.iter().cloned())
            .collect(),
        write: to_file.clone().into_iter().collect(),
    };
    let mut command = Command::new("qemu-img");
    command.args(arguments).arg(&image).args(to_file);
    if let Some(to) = to {
        inherit(&mut command, to);
    }
    confine(&mut command, &image, &files, file_bytes_max)?;
    Ok(command)
}

/// Lets `command` have this descriptor, which is open until it has started.
pub(crate) fn inherit(command: &mut Command, fd: RawFd) {
    // SAFETY: between fork and exec the closure makes a system call only, on a descriptor that is open.
    unsafe {
        command.pre_exec(move || {
            fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty()).map_err(Into::into)
        });
    }
}

/// Lets `command`, which is `qemu-img` for `image`, have these files and nothing else, and write at most
/// `file_bytes_max` to one. It ends with the thread that starts it.
pub(crate) fn confine(
    command: &mut Command,
    image: &Path,
    files: &Files,
    file_bytes_max: u64,
) -> Result<(), DiskError> {
    if !confines_files().map_err(DiskError::Confine)? {
        return Err(DiskError::NotConfined(image.into()));
    }
    command.stdin(Stdio::null());
    // glibc sets 64 MiB of addresses aside for each of its threads, of which there may be dozens.
    command.env("MALLOC_ARENA_MAX", "1");
    let address_bytes_max = TOOL_BYTES_MAX + IMAGE_BYTES_MAX * files.read.len() as u64;
    let parent = getpid();
    // SAFETY: between fork and exec the closure makes system calls only: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            for (what, most) in [
                (Resource::As, address_bytes_max),
                (Resource::Fsize, file_bytes_max),
                (Resource::Core, 0),
            ] {
                let limit = Rlimit {
                    current: Some(most),
                    maximum: Some(most),
                };
                setrlimit(what, limit)?;
            }
            Ok(())
        });
    }
    let confinement = Confinement::new(files).map_err(DiskError::Confine)?;
    let confinement = confinement.reading_as_the_caller();
    confinement.map_err(tool_error(image))?.apply(command);
    Ok(())
}

pub(crate) fn tool_error(path: &Path) -> impl FnOnce(io::Error) -> DiskError + use<> {
    let path = path.to_path_buf();
    move |error| match error.kind() {
        io::ErrorKind::NotFound => DiskError::NoTool(path),
        io::ErrorKind::TimedOut => DiskError::NotImported {
            path,
            why: "qemu-img does not end: see whether the disk that it is on hangs".into(),
        },
        _ => DiskError::Io {
            what: "cannot run qemu-img for",
            path,
            source: error,
        },
    }
}

/// What `qemu-img` has said, in a line; how it ended, if that is nothing.
pub(crate) fn said(done: &Output) -> String {
    let said = String::from_utf8_lossy(&done.stderr);
    match said.trim().trim_start_matches("qemu-img: ") {
        "" => format!("qemu-img has said nothing and ended with {}", done.status),
        why => format!("qemu-img says: {}", why.replace('\n', "; ")),
    }
}

pub(super) fn refused(path: &Path, done: &Output) -> DiskError {
    let mut why = said(done);
    if why.contains("Permission denied") {
        why += "; backing files and extents must be in the folder of the image (`plover disk import` takes others, too)";
    }
    DiskError::NotImported {
        path: path.into(),
        why,
    }
}

/// Runs `qemu-img` as long as `goes_on`, which is asked every [`LOOK_EVERY`]; `read` has what it prints. Returns its end and
/// errors, and what `read` has found.
fn run<T: Send + 'static>(
    command: &mut Command,
    read: impl FnOnce(ChildStdout) -> T + Send + 'static,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<(Output, Option<T>)> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Each pipe has a thread: `qemu-img` waits when one of them is full.
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (told, said_all) = channel();
    let reader = std::thread::spawn(move || {
        let found = stdout.map(read);
        let _ = told.send(());
        found
    });
    let errors = std::thread::spawn(move || stderr.map_or_else(Vec::new, read_errors));
    let (mut killed, mut wait) = (None, LOOK_EVERY);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if killed.is_none() && !goes_on() {
            let _ = child.kill();
            killed = Some(Instant::now());
        }
        // The kernel ends no process in the middle of a call to a disk that hangs. Its threads and it are left.
        if killed.is_some_and(|at| at.elapsed() > ENDS_WITHIN) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // What has closed its output is about to end.
        if !matches!(said_all.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
            wait = Duration::from_millis(1);
            std::thread::sleep(wait);
        }
    };
    let output = Output {
        status,
        stdout: Vec::new(),
        stderr: errors.join().unwrap_or_default(),
    };
    Ok((output, reader.join().unwrap_or_default()))
}

/// Runs `qemu-img info`, and returns its answer as well.
pub(super) fn inspect(command: &mut Command) -> io::Result<Output> {
    let begun = Instant::now();
    let read = |stdout| {
        let mut answer = Vec::new();
        let _ = ChildStdout::take(stdout, ANSWER_BYTES_MAX).read_to_end(&mut answer);
        answer
    };
    let (done, answer) = run(command, read, || begun.elapsed() < INSPECTED_WITHIN)?;
    let stdout = answer.unwrap_or_default();
    Ok(Output { stdout, ..done })
}

/// Runs `qemu-img convert -p` to its end, and kills it when it is not to go on.
pub(crate) fn convert(
    command: &mut Command,
    mut progress: impl FnMut(u8),
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<Output> {
    let (told, percents) = channel();
    let read = move |stdout| {
        read_progress(stdout, &mut |percent| {
            let _ = told.send(percent);
        });
    };
    let (done, _) = run(command, read, || {
        percents.try_iter().for_each(&mut progress);
        goes_on()
    })?;
    percents.try_iter().for_each(&mut progress);
    Ok(done)
}

/// The beginning of what is said. Reads the rest, too.
fn read_errors(mut from: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    let _ = from.by_ref().take(ERRORS_BYTES_MAX).read_to_end(&mut kept);
    let _ = io::copy(&mut from, &mut io::sink());
    kept
}

/// Reads `    (12.34/100%)\r` over and over.
pub(super) fn read_progress(mut from: impl Read, progress: &mut impl FnMut(u8)) {
    let (mut number, mut told, mut byte) = (String::new(), 0, [0]);
    while from.read(&mut byte).is_ok_and(|count| count == 1) {
        match byte[0] {
            b'(' => number.clear(),
            b'/' => {
                let percent = number.parse::<f64>().map_or(0, |percent| percent as u8);
                if percent > told && percent <= 100 {
                    told = percent;
                    progress(percent);
                }
            }
            other => number.push(char::from(other)),
        }
    }
}
