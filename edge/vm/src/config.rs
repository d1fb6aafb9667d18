//! What the user may choose about the hypervisor and the guest.

use plover_types::{Mac, PAGE_BYTES};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// QEMU's machine type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// A machine of virtio-mmio devices without PCI or firmware: smallest state, fastest sync.
    #[default]
    Microvm,
    /// A PC with PCI Express.
    Q35,
    /// A PC with PCI (i440FX).
    Pc,
}

impl Machine {
    /// QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
            Self::Q35 => "q35",
            Self::Pc => "pc",
        }
    }

    /// Whether device state may only be loaded onto freshly reset devices. PCI machines refuse
    /// it otherwise: virtio-pci checks the loaded ring indices against the live rings.
    pub fn needs_reset(self) -> bool {
        self != Self::Microvm
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM where it can run a guest kernel at speed (see [`crate::choose_accel`]), else TCG.
    #[default]
    Auto,
    /// The processor, through `/dev/kvm`.
    Kvm,
    /// QEMU's translator. Needs nothing, costs a factor of ten or more.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// What the guest starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Boot {
    /// A Linux kernel, loaded by QEMU.
    Kernel {
        /// The kernel image (`vmlinuz`).
        kernel: PathBuf,
        /// The initial RAM disk.
        #[serde(default)]
        initrd: Option<PathBuf>,
        /// The kernel's command line. Empty: [`Boot::DEFAULT_CMDLINE`].
        #[serde(default)]
        cmdline: String,
    },
    /// A raw disk image, whose boot sector is run; its changes are not kept and not synced. Not
    /// on [`Machine::Microvm`], which has no such disk.
    Disk {
        /// The image.
        image: PathBuf,
    },
    /// The machine's firmware, which starts the first of [`QemuConfig::disks`] that it can. Not on
    /// [`Machine::Microvm`], which has none for disks.
    Firmware,
}

/// What a PC starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    /// SeaBIOS, which comes with QEMU.
    #[default]
    Bios,
    /// OVMF, of the package `ovmf`. Its variables are kept in guest RAM, and so follow every
    /// syncvm (docs/firmware.md). Not on [`Machine::Microvm`].
    Uefi,
}

impl Firmware {
    /// OVMF as one image, code and an empty store of variables (Debian, Ubuntu).
    pub const OVMF: &str = "/usr/share/ovmf/OVMF.fd";
}

/// How a disk is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskBus {
    /// virtio-blk.
    #[default]
    Virtio,
    /// A SCSI disk on a virtio-scsi controller.
    Scsi,
    /// An IDE disk on a PC, a SATA disk on q35. Not on [`Machine::Microvm`].
    Ide,
}

/// A disk as the guest sees it; its content is [`plover_disk::Disks`]' business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskDevice {
    /// How it is connected.
    #[serde(default)]
    pub bus: DiskBus,
    /// The guest cannot write it.
    #[serde(default)]
    pub read_only: bool,
}

impl Boot {
    /// Console on the first serial port; a panic reboots at once, which Plover sees as
    /// [`crate::VmEvent::GuestShutdown`].
    pub const DEFAULT_CMDLINE: &str = "console=ttyS0 quiet panic=-1";
}

/// One guest under QEMU. All replicas of a group must use the same machine, vCPUs, memory, MAC
/// and kernel; `qemu` and the firmware must be the same version on all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QemuConfig {
    /// The QEMU binary. Without it, `qemu-system-x86_64` on the path.
    #[serde(default)]
    pub qemu: Option<PathBuf>,
    /// The machine type.
    #[serde(default)]
    pub machine: Machine,
    /// What runs the guest's instructions.
    #[serde(default)]
    pub accel: Accel,
    /// Virtual processors.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// Guest RAM in MiB.
    #[serde(default = "default_mem_mib")]
    pub mem_mib: u32,
    /// What the guest starts from.
    pub boot: Boot,
    /// What runs before that.
    #[serde(default)]
    pub firmware: Firmware,
    /// The address of the guest's NIC.
    pub mac: Mac,
    /// A name for people, in QEMU's process title and in messages.
    #[serde(default = "default_name")]
    pub name: String,
    /// The most frames that wait for the guest's NIC; more are refused, as by a NIC's queue.
    #[serde(default = "default_feed_frames")]
    pub feed_frames: u32,
    /// Gives all orders through QEMU's monitor, as where a build of QEMU exports nothing else
    /// (docs/decisions/0013). Slower; for tests of that way.
    #[serde(default)]
    pub monitor_only: bool,
    /// Its disks, in the order in which firmware tries to boot from them.
    #[serde(default)]
    pub disks: Vec<DiskDevice>,
}

fn one() -> u32 {
    1
}

fn default_mem_mib() -> u32 {
    256
}

fn default_name() -> String {
    "plover".into()
}

fn default_feed_frames() -> u32 {
    1024
}

impl QemuConfig {
    /// A guest with defaults for everything that has one.
    pub fn new(boot: Boot, mac: Mac) -> Self {
        Self {
            qemu: None,
            machine: Machine::default(),
            accel: Accel::default(),
            vcpus: one(),
            mem_mib: default_mem_mib(),
            boot,
            firmware: Firmware::default(),
            mac,
            name: default_name(),
            feed_frames: default_feed_frames(),
            monitor_only: false,
            disks: Vec::new(),
        }
    }

    /// Guest RAM in bytes.
    pub fn ram_bytes(&self) -> usize {
        (self.mem_mib as usize) << 20
    }

    /// Guest RAM in pages.
    pub fn ram_pages(&self) -> u32 {
        (self.ram_bytes() / PAGE_BYTES) as u32
    }
}
