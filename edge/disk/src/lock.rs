//! Keeping an image to one user.
//!
//! Two kinds of lock, both the kernel's, so that they end with whoever holds them: `flock` between
//! replicas, and the byte ranges by which QEMU's own programs tell each other what they do with an
//! image (`block/file-posix.c`). With the second, `qemu-img` and a guest started by hand refuse an
//! image that a replica has, and a replica refuses theirs.
//!
//! ```text
//!   byte 100 + n, read-locked: I do this      n: 0 read   1 write   2 rewrite the same   3 resize
//!   byte 200 + n, read-locked: nobody else may
//! ```

use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const DOES: i64 = 100;
const FORBIDS: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Locks `file` for one that only reads it, or for one that writes it. `false`: somebody else is in
/// the way.
pub(crate) fn take(file: &File, read_only: bool) -> io::Result<bool> {
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
    // First ours, then a look at theirs, as they do: of two that come at the same time at least one
    // sees the other.
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

/// Asks for a lock on one byte; returns what the kernel made of its kind.
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
    fn one_writes_or_several_read() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (first, second) = (open(), open());
        assert!(take(&first, false).unwrap());
        assert!(!take(&second, true).unwrap());
        drop(first);
        assert!(take(&second, true).unwrap());
        assert!(take(&open(), true).unwrap());
        assert!(!take(&open(), false).unwrap());
    }

    /// What QEMU holds for a guest's disk: no `flock`, the byte ranges only.
    #[test]
    fn a_disk_of_another_qemu_is_seen() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (theirs, ours) = (open(), open());
        for byte in [DOES + READ, DOES + WRITE, FORBIDS + WRITE, FORBIDS + RESIZE] {
            request(&theirs, libc::F_OFD_SETLK, libc::F_RDLCK, byte).unwrap();
        }
        assert!(!take(&ours, false).unwrap());
        assert!(!take(&open(), true).unwrap());
        drop(theirs);
        assert!(take(&ours, false).unwrap());
    }
}
