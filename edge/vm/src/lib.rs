//! Drives a stock QEMU from outside: RAM, dirty pages, device state, NIC, console, disks.
//!
//! Plover keeps two copies of a guest equal without changing the hypervisor. All that it needs from QEMU
//! it gets by means that any distribution's QEMU offers:
//!
//! | need | means | where |
//! |---|---|---|
//! | guest RAM | a shared memfd | `ram` |
//! | written pages | QEMU's own log, which the agent hands over; of devices' memory `PAGEMAP_SCAN` under an asynchronous userfaultfd | `written`, `dirty` |
//! | pause, device state | orders to QEMU's main loop; the state in a memfd | `qemu`, [`qmp`] |
//! | calls inside QEMU | the agent, a small preloaded library | `plover-agent` |
//! | frames | a datagram socket pair | `nic` |
//! | disks | NBD over inherited sockets | `plover-disk`, `regions` |
//!
//! The states of a guest, and the orders ([`VmCommand`]) that change them:
//!
//! ```text
//!   spawn ──▶ starting ──Started──▶ paused ◀──Pause── running ──▶ GuestEnded: boots, or is off
//!                                     │  └──Resume──▶    │
//!                                     │                  │
//!                                     └──────┬───────────┘
//!                                            ▼ QEMU ends or is killed
//!                                           Died
//! ```
//!
//! A sync is right only in this order, on the side that is overwritten:
//!
//! ```text
//!   Pause ─► Reset ─► scan_dirty ─► write_page … ─► LoadState ─► Resume
//!            │         │
//!            │         └ after the reset, which itself writes guest RAM
//!            └ q35 and pc only: device state is loaded onto clean devices
//! ```
//!
//! [`QemuVm`] is one guest. [`check_host`] says in advance whether a machine can run it, and if not, what
//! to do.
//!
//! ```
//! use plover_vm::{Boot, Machine, QemuConfig};
//!
//! let mac = "52:54:00:12:34:56".parse().expect("an Ethernet address");
//! let config = QemuConfig {
//!     machine: Machine::Microvm,
//!     ..QemuConfig::new(Boot::Firmware, mac)
//! };
//! let error = config.validate().expect_err("a microvm needs a kernel");
//! assert!(error.to_string().contains("machine = \"q35\" or \"pc\""));
//! assert_eq!(config.ram_pages(), 65_536);
//! ```

mod accel;
mod api;
mod check;
mod clean;
mod config;
mod console;
mod cpu_clock;
mod device_state;
mod dirty;
#[doc(hidden)]
pub mod fuzz;
mod hash;
mod identity;
mod nic;
mod nics;
mod processors;
mod qemu;
pub mod qmp;
mod ram;
mod regions;
mod thread_state;
pub mod trial;
mod written;

pub use accel::{AccelChoice, choose_accel, host_cpu};
pub use api::{GuestEnd, VmCommand, VmError, VmEvent};
pub use check::check_host;
pub use config::{
    Accel, AtEnd, Boot, DiskBus, DiskDevice, Ends, Firmware, Machine, NicDevice, NicModel,
    QemuConfig, Watchdog,
};
pub use hash::{PageHasher, hash_subpages};
pub use identity::{ClockBase, Identity, SystemWords, Topology};
pub use processors::{Model, Processors};
pub use qemu::QemuVm;
