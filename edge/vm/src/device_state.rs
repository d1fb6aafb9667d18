//! Device and CPU state on its way in and out of QEMU: a memfd.
//!
//! QEMU's `xen-save-devices-state` and `xen-load-devices-state` take a file name. QEMU inherits
//! this memory file and opens it as `/proc/self/fd/N`, anew and truncated for each save, so there
//! is no file in any directory to protect or to clean up.

use crate::VmError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// More than any machine here saves (20 to 80 KiB), with room for big virtio devices. A bound
/// because the size is QEMU's word.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// The file that carries one state at a time.
pub(crate) struct StateFile {
    file: File,
}

impl StateFile {
    pub(crate) fn new() -> Result<Self, VmError> {
        let fd: OwnedFd = memfd_create("plover-state", MemfdFlags::CLOEXEC)
            .map_err(VmError::io("creating memory for device state (memfd)"))?;
        Ok(Self { file: fd.into() })
    }

    /// To pass to QEMU.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Puts a state there for QEMU to load.
    pub(crate) fn write(&self, state: &[u8]) -> std::io::Result<()> {
        ftruncate(&self.file, 0)?;
        self.file.write_all_at(state, 0)
    }

    /// What QEMU saved.
    pub(crate) fn read(&self) -> std::io::Result<Vec<u8>> {
        let size = fstat(&self.file)?.st_size as u64;
        if size == 0 || size > STATE_BYTES_MAX {
            return Err(std::io::Error::other(format!(
                "a device state of {size} bytes"
            )));
        }
        let mut state = vec![0; size as usize];
        self.file.read_exact_at(&mut state, 0)?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_state_leaves_nothing_of_a_longer_one() {
        let file = StateFile::new().unwrap();
        assert!(file.read().is_err(), "nothing saved is no state");
        file.write(b"long state").unwrap();
        file.write(b"short").unwrap();
        assert_eq!(file.read().unwrap(), b"short");
    }
}
