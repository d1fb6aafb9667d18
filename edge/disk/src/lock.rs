//! Locks an image, so that only one process uses it.
//!
//! Two kinds of kernel locks, which end with the process that holds them: `flock` between replicas, and the
//! byte ranges by which QEMU's programs tell each other what they do with an image
//! (`block/file-posix.c`). With the second, `qemu-img` and a guest started by hand refuse an image that a
//! replica has, and a replica refuses theirs.
//!
//! ```text
//!   byte 100 + n, read-locked: I do this      n: 0 read   1 write   2 rewrite the same   3 resize
//!   byte 200 + n, read-locked: no one else may do this
//! ```

use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;

const DOES: i64 = 100;
const FORBIDS: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// A file that stays locked until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// Locks `file` for reading only, or for writing. `None` if another process uses it.
    pub(crate) fn take(file: File, read_only: bool) -> io::Result<Option<Self>> {
        let locked = Self(file);
        Ok(lock(&locked, read_only)?.then_some(locked))
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

/// Unlocks explicitly. Closing the file would not do: a child that another thread is just starting has a
/// copy of it until its `exec`.
impl Drop for Locked {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
        for base in [DOES, FORBIDS] {
            for what in [READ, WRITE, RESIZE] {
                let _ = request(&self.0, libc::F_OFD_SETLK, libc::F_UNLCK, base + what);
            }
        }
    }
}

fn lock(file: &File, read_only: bool) -> io::Result<bool> {
    let how = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(file, how) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    let (ours, theirs) = if read_only {
        (
            &[(DOES, READ), (FORBIDS, WRITE), (FORBIDS, RESIZE)][..],
            &[(FORBIDS, READ), (DOES, WRITE), (DOES, RESIZE)][..],
        )
    } else {
        let all = &[
            (DOES, READ),
            (DOES, WRITE),
            (DOES, RESIZE),
            (FORBIDS, READ),
            (FORBIDS, WRITE),
            (FORBIDS, RESIZE),
        ][..];
        (all, all)
    };
    // First take ours, then look at theirs, as QEMU does: of two processes that come at the same time
    // at least one sees the other.
    for (base, what) in ours {
        if let Err(error) = request(file, libc::F_OFD_SETLK, libc::F_RDLCK, base + what) {
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(false),
                // A file system that has no such locks.
                _ => Ok(true),
            };
        }
    }
    for (base, what) in theirs {
        let found = request(file, libc::F_OFD_GETLK, libc::F_WRLCK, base + what)?;
        if found != libc::F_UNLCK {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The byte by which one process makes an image. QEMU's programs lock others.
const MAKES: i64 = 300;

/// Locks an image that is being made, or lets go of it. `false` if another process makes it. Where the file system knows no locks,
/// nobody else is seen.
pub(crate) fn making(file: &File, locks: bool) -> bool {
    let kind = if locks { libc::F_WRLCK } else { libc::F_UNLCK };
    let locked = request(file, libc::F_OFD_SETLK, kind, MAKES);
    let refused =
        |error: io::Error| matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    !locked.is_err_and(refused)
}

/// Requests a lock on one byte. Returns the kind of lock that the kernel reports.
fn request(file: &File, command: i32, kind: i32, byte: i64) -> io::Result<i32> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while `file` is borrowed, and both commands take a pointer to
    // a `flock`, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_allows_one_writer_or_several_readers() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let take = |read_only| Locked::take(open(), read_only).unwrap();
        let writer = take(false).unwrap();
        assert!(take(true).is_none());
        drop(writer);
        let readers = (take(true), take(true));
        assert!(readers.0.is_some() && readers.1.is_some());
        assert!(take(false).is_none());
    }

    #[test]
    fn a_copy_that_a_starting_child_has_does_not_hold_it() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let writer = Locked::take(open(), false).unwrap().unwrap();
        let _copy = writer.try_clone().unwrap();
        drop(writer);
        assert!(Locked::take(open(), false).unwrap().is_some());
    }

    /// QEMU holds the byte ranges of a guest's disk, and no `flock`.
    #[test]
    fn a_disk_of_another_qemu_is_seen() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let theirs = open();
        for byte in [DOES + READ, DOES + WRITE, FORBIDS + WRITE, FORBIDS + RESIZE] {
            request(&theirs, libc::F_OFD_SETLK, libc::F_RDLCK, byte).unwrap();
        }
        let take = |read_only| Locked::take(open(), read_only).unwrap();
        assert!(take(false).is_none());
        assert!(take(true).is_none());
        drop(theirs);
        assert!(take(false).is_some());
    }
}
