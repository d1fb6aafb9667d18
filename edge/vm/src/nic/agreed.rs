//! The agreement of QEMU and the guest's driver, as the agent says it (edge/agent/src/nic.c).

use super::datagrams::HEADER_BYTES_MAX;
use crate::VmError;
use plover_types::Offload;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// A page that the agent writes: the offloads, then the bytes of the header, 32 bits each. Zeros until QEMU has said
/// anything, and for ever if it does not take the NIC for a TAP device.
pub(super) struct Agreed {
    fd: OwnedFd,
    at: NonNull<AtomicU64>,
}

const BYTES: usize = size_of::<AtomicU64>();

// SAFETY: the mapping belongs to this value alone and is not tied to a thread; it is only read, atomically.
unsafe impl Send for Agreed {}

impl Agreed {
    pub(super) fn new() -> Result<Self, VmError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("plover-nic", flags)
            .map_err(VmError::io("creating the NIC's page (memfd)"))?;
        ftruncate(&fd, BYTES as u64).map_err(VmError::io("sizing the NIC's page"))?;
        // A QEMU that the guest has taken over could shrink it otherwise, and the next look would end this process with
        // SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(VmError::io("sealing the NIC's page"))?;
        // SAFETY: a fresh mapping at an address the kernel chooses replaces no other mapping.
        let at = unsafe { mmap(null_mut(), BYTES, ProtFlags::READ, MapFlags::SHARED, &fd, 0) }
            .map_err(VmError::io("mapping the NIC's page"))?;
        let at = NonNull::new(at.cast()).expect("mmap does not return null");
        Ok(Self { fd, at })
    }

    /// For the agent.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The offloads that the guest takes (`TUN_F_…`).
    pub(super) fn offloads(&self) -> u32 {
        self.word() as u32
    }

    /// The bytes of the header before each frame. A guest that has taken QEMU over may say anything.
    pub(super) fn header_bytes(&self) -> usize {
        match (self.word() >> 32) as usize {
            bytes @ (Offload::BYTES | HEADER_BYTES_MAX) => bytes,
            _ => 0,
        }
    }

    fn word(&self) -> u64 {
        // SAFETY: `at` is a mapped page, readable and aligned for as long as `self` lives. The agent changes it at any time,
        // which an atomic read allows.
        unsafe { self.at.as_ref() }.load(Ordering::Relaxed)
    }
}

impl Drop for Agreed {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.at.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok(), "the NIC's page was not mapped");
    }
}
