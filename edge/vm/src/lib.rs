//! Driving a stock QEMU from outside: RAM, dirty pages, device state, NIC, console.
//!
//! Plover keeps two copies of a guest alike without changing the hypervisor. Everything it needs
//! from QEMU it gets by means that any distribution's QEMU offers:
//!
//! | need | how | where |
//! |---|---|---|
//! | guest RAM | a shared memfd | `ram` |
//! | written pages | `PAGEMAP_SCAN` under an asynchronous userfaultfd | `dirty` |
//! | pause, device state | QMP over an inherited socket, state in a memfd | `qemu`, [`qmp`] |
//! | the rest | the agent, a small preloaded library | `plover-agent` |
//! | frames | a datagram socket pair | `nic` |
//! | disks | NBD over inherited sockets | `plover-disk`, `regions` |
//!
//! The order in which the parts are used is what makes a sync right (design §4). On the side that
//! is overwritten:
//!
//! ```text
//!   Pause ─► Reset ─► scan_dirty ─► write_page … ─► LoadState ─► Resume
//!            │         │
//!            │         └ after the reset, which itself writes guest RAM
//!            └ q35 and pc only: device state is loaded onto clean devices
//! ```
//!
//! [`Vm`] is the interface, [`QemuVm`] the real thing, [`FakeVm`] a guest for tests. [`check_host`]
//! says in advance whether a machine can do all this, and if not, what to do about it.

mod accel;
mod api;
mod check;
mod config;
mod console;
mod cpu_clock;
mod device_state;
mod dirty;
mod hash;
mod nic;
mod qemu;
pub mod qmp;
mod ram;
mod regions;
mod thread_state;

pub use accel::{AccelChoice, choose_accel, host_cpu};
pub use api::{VmCommand, VmError, VmEvent};
pub use check::{HostReport, check_host};
pub use config::{Accel, Boot, DiskBus, DiskDevice, Firmware, Machine, QemuConfig};
pub use hash::{PageHasher, digest_page, hash_subpages};
pub use qemu::QemuVm;
