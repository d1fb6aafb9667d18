//! The interface between the replica's loop and a guest: orders in, events out.
//!
//! Nothing here blocks. An order is queued and carried out when its turn comes; the event that
//! answers it comes out of [`Vm::poll`]. Two implementations exist: [`crate::QemuVm`], and
//! [`crate::FakeVm`] for tests of what stands above.

use plover_types::{Digest, Frame, PageNo, PageSet, Unconsumed};
use std::os::fd::RawFd;
use std::time::Duration;

/// An order to the guest that completes later, with the [`VmEvent`] named beside it. Orders
/// are carried out one after the other, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmCommand {
    /// Stop the vCPUs → [`VmEvent::Paused`].
    Pause,
    /// Let the vCPUs run → [`VmEvent::Resumed`].
    Resume,
    /// Put the devices into their power-on state while paused, where this machine type needs
    /// it before a load ([`Vm::needs_reset`]) → [`VmEvent::ResetDone`].
    Reset,
    /// Serialise device and CPU state while paused → [`VmEvent::StateSaved`].
    SaveState,
    /// Load device and CPU state while paused → [`VmEvent::StateLoaded`].
    LoadState(Vec<u8>),
    /// Press the power button (ACPI) → nothing.
    PowerButton,
}

/// What happened to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// The hypervisor is up, the guest paused before its first instruction.
    Started,
    /// The vCPUs stand still.
    Paused,
    /// The vCPUs run.
    Resumed,
    /// The devices are reset.
    ResetDone,
    /// The device and CPU state, opaque.
    StateSaved(Vec<u8>),
    /// It is loaded.
    StateLoaded,
    /// A command failed; the guest's state is unknown. Orders that were given behind it are
    /// dropped.
    Failed {
        /// What was asked.
        command: String,
        /// What the hypervisor said.
        error: String,
    },
    /// The hypervisor process is gone; with its exit status and the end of its error output.
    Died(String),
    /// The guest powered itself off or asked for a reset.
    GuestShutdown,
}

/// One guest under one hypervisor. Every method returns at once (memory work takes what the
/// memory takes).
pub trait Vm {
    /// Guest RAM in pages, and after them the 4 KiB blocks of its writable disks.
    fn pages(&self) -> u32;
    /// Whether a load needs a reset before it (design §4).
    fn needs_reset(&self) -> bool;
    /// Gives an order.
    fn command(&mut self, command: VmCommand);
    /// Collects what happened since the last call, without blocking.
    fn poll(&mut self, events: &mut Vec<VmEvent>);
    /// Pages written by the guest or the hypervisor since the last scan, added to `dirty`;
    /// write-protects them again in the same step.
    fn scan_dirty(&mut self, dirty: &mut PageSet) -> Result<(), VmError>;
    /// The keyed hash of each page, in order; all cores hash.
    fn hash_pages(&self, key: &[u8; 32], pages: &[PageNo], digests: &mut Vec<Digest>);
    /// The keyed hash of each block of each page ([`plover_types::BLOCK_BYTES`]), in order.
    fn hash_blocks(&self, key: &[u8; 32], pages: &[PageNo], hashes: &mut Vec<u64>) {
        crate::hash::hash_blocks(|page, to| self.read_page(page, to), key, pages, hashes);
    }
    /// Copies a page out; `to` has [`plover_types::PAGE_BYTES`].
    fn read_page(&self, page: PageNo, to: &mut [u8]);
    /// The first page at or after `page` that may hold something other than zeroes. Those before it
    /// were never touched, and reading them would allocate them.
    fn first_data(&self, page: PageNo) -> PageNo {
        page
    }
    /// Copies a page in. Not seen by `scan_dirty`.
    fn write_page(&mut self, page: PageNo, from: &[u8]);
    /// Why something above did not work on a page of a disk, if that has happened: what was read or
    /// written is void, and so is the guest.
    fn disk_failure(&self) -> Option<String> {
        None
    }
    /// Puts a frame into the guest's NIC queue; `false` when that is full (the frame is not
    /// taken).
    fn feed(&mut self, frame: &Frame) -> bool;
    /// Whether the hypervisor has consumed every frame fed to it and every byte typed, and its
    /// disks have answered every request.
    fn consumed_all(&self) -> bool;
    /// While paused: takes back what the hypervisor has not consumed of the frames fed and the
    /// bytes typed.
    fn take_unconsumed(&mut self) -> Unconsumed;
    /// Whether [`Vm::wait_fd`] polls readable when the guest has sent frames, as it does to begin with.
    /// A guest that wakes nobody with each of them has more of its CPU.
    fn hear_outputs(&mut self, hear: bool);
    /// Frames the guest has sent since the last call; at most `max` a call.
    fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>);
    /// CPU time of all vCPU threads since the start.
    fn cpu_time(&self) -> Duration;
    /// Whether a thread that runs the guest or its devices is running or waiting for a CPU.
    fn has_work(&self) -> bool;
    /// Types on the guest's serial console.
    fn console_write(&mut self, bytes: &[u8]);
    /// What the guest printed on its serial console since the last call.
    fn console_read(&mut self, bytes: &mut Vec<u8>);
    /// Whether something fed or typed waits for room in the hypervisor's queue. `poll` puts it there,
    /// and `wait_fd` does not say when.
    fn has_backlog(&self) -> bool;
    /// A descriptor that polls readable when `poll`, `console_read` or, as long as they are to be heard,
    /// `take_outputs` has something.
    fn wait_fd(&self) -> RawFd;
    /// The hypervisor's process id, for people and fault tests.
    fn pid(&self) -> Option<u32>;
    /// Ends the hypervisor at once and removes its files. Also done on drop.
    fn kill(&mut self);
}

/// Why the guest could not be driven.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// A system call on the guest's memory or process failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// This machine or QEMU lacks something that Plover needs; the text says what to do.
    #[error("{0}")]
    Unsupported(String),
}

impl VmError {
    /// For `map_err` on a system call: says what was tried.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io {
            what: what.to_owned(),
            source: error.into(),
        }
    }
}
