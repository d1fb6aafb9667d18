//! How a guest is to be run.

use crate::{GuestEnd, Identity};
use plover_agent::Op;
#[cfg(doc)]
use plover_types::Frame;
use plover_types::{Mac, PAGE_BYTES};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

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

    /// Whether device state can be loaded only onto freshly reset devices. PCI machines refuse it
    /// otherwise: virtio-pci checks the loaded ring indices against the live rings.
    pub fn needs_reset(self) -> bool {
        self != Self::Microvm
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The accelerator: it executes the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM if it can run a guest kernel at speed on this host, else TCG.
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

/// The source from which the guest boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A Linux kernel, loaded by QEMU.
    Kernel {
        /// The kernel image (`vmlinuz`).
        kernel: PathBuf,
        /// The initial RAM disk.
        initrd: Option<PathBuf>,
        /// The kernel's command line. Empty: [`Boot::DEFAULT_CMDLINE`].
        cmdline: String,
    },
    /// The machine's firmware, which starts the first of [`QemuConfig::disks`] that it can. Not on
    /// [`Machine::Microvm`], which has no firmware for disks.
    Firmware,
}

/// The firmware of a PC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Firmware {
    /// SeaBIOS, which comes with QEMU.
    #[default]
    Bios,
    /// OVMF (package `ovmf`), which keeps its variables in flash memory (docs/firmware.md). Not on `microvm`.
    Uefi,
    /// OVMF with Secure Boot and Microsoft's keys, which only code in system management mode can change. On `q35`.
    UefiSecure,
}

impl Firmware {
    /// Bytes of the flash memory that holds the variables of UEFI, in the images of 4 MiB.
    pub const FLASH_BYTES: usize = 528 << 10;

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bios => "bios",
            Self::Uefi => "uefi",
            Self::UefiSecure => "uefi-secure",
        }
    }

    /// Whether it keeps variables in flash memory.
    pub fn is_uefi(self) -> bool {
        self.code().is_some()
    }

    /// The file with its code, in the place where Debian and Ubuntu have it. `None`: QEMU knows.
    pub fn code(self) -> Option<&'static Path> {
        let file = match self {
            Self::Bios => return None,
            Self::Uefi => "/usr/share/OVMF/OVMF_CODE_4M.fd",
            Self::UefiSecure => "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
        };
        Some(Path::new(file))
    }

    /// The file with the variables of a new machine.
    pub fn new_variables(self) -> Option<&'static Path> {
        let file = match self {
            Self::Bios => return None,
            Self::Uefi => "/usr/share/OVMF/OVMF_VARS_4M.fd",
            Self::UefiSecure => "/usr/share/OVMF/OVMF_VARS_4M.ms.fd",
        };
        Some(Path::new(file))
    }
}

/// A timer that resets a guest which no longer restarts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Watchdog {
    /// The one in the chip set of `q35`.
    Itco,
    /// Intel's 6300ESB, a PCI device. Not on `microvm`.
    I6300esb,
}

impl Watchdog {
    /// Its name in a configuration, which is libvirt's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Itco => "itco",
            Self::I6300esb => "i6300esb",
        }
    }
}

/// The kind of a NIC, for which the guest needs a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicModel {
    /// virtio-net, by far the fastest.
    #[default]
    Virtio,
    /// Intel's 82574L, which Windows has a driver for. On `q35` and `pc`.
    E1000e,
    /// Intel's 82540EM, for older systems. On `q35` and `pc`.
    E1000,
    /// Realtek's 8139, for systems that know no other. On `q35` and `pc`.
    Rtl8139,
}

impl NicModel {
    /// Its name in a configuration, which is libvirt's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Rtl8139 => "rtl8139",
        }
    }
}

/// A NIC as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicDevice {
    /// Its address.
    pub mac: Mac,
    /// Its kind.
    pub model: NicModel,
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
    /// An IDE disk on `pc`, a SATA disk on `q35`. Not on `microvm`.
    Ide,
}

/// What becomes of a guest that ends by itself; the words are libvirt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtEnd {
    /// It boots again.
    Restart,
    /// It is off until an operator starts it.
    Destroy,
}

/// What becomes of the guest, by the way in which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// It reboots.
    pub on_reboot: AtEnd,
    /// It powers off.
    pub on_poweroff: AtEnd,
    /// Its kernel crashes and says so (pvpanic, on `q35` and `pc`).
    pub on_crash: AtEnd,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            on_reboot: AtEnd::Restart,
            on_poweroff: AtEnd::Destroy,
            on_crash: AtEnd::Restart,
        }
    }
}

impl Ends {
    /// What becomes of a guest that has ended so.
    pub(crate) fn after(&self, how: GuestEnd) -> AtEnd {
        match how {
            GuestEnd::PowerOff => self.on_poweroff,
            GuestEnd::Reboot => self.on_reboot,
            GuestEnd::Crash => self.on_crash,
        }
    }
}

/// A disk as the guest sees it. [`plover_disk::Disks`] serves its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskDevice {
    /// How it is connected.
    pub bus: DiskBus,
    /// The guest cannot write it.
    pub read_only: bool,
    /// It is a medium in a CD drive. Read only, on SCSI or IDE.
    pub cdrom: bool,
    /// Its serial number. Without it, `plover-N` by its place in the list.
    pub serial: Option<String>,
}

impl Boot {
    /// Console on the first serial port; a panic reboots at once.
    pub const DEFAULT_CMDLINE: &str = "console=ttyS0 quiet panic=-1";
}

/// One guest under QEMU. All replicas of a group must use the same machine, identity, vCPUs, memory, MAC
/// and kernel; `qemu` and the firmware must be the same version on all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuConfig {
    /// The QEMU binary. Without it, `qemu-system-x86_64` on the path.
    pub qemu: Option<PathBuf>,
    /// The machine type.
    pub machine: Machine,
    /// What the guest reads of its machine.
    pub identity: Identity,
    /// The accelerator.
    pub accel: Accel,
    /// Virtual processors.
    pub vcpus: u32,
    /// Guest RAM in MiB.
    pub mem_mib: u32,
    /// The source from which the guest boots.
    pub boot: Boot,
    /// The firmware of a PC.
    pub firmware: Firmware,
    /// The content of UEFI's flash memory when the guest starts: [`Firmware::FLASH_BYTES`], or nothing for the variables
    /// of a new machine.
    pub flash: Vec<u8>,
    /// The guest's NICs: one to [`Frame::NICS_MAX`].
    pub nics: Vec<NicDevice>,
    /// Whether the guest may leave checksums and the cutting of TCP segments to its host.
    pub offloads: bool,
    /// Whether the machine has a source of random bytes, which each host has its own of.
    pub rng: bool,
    /// The watchdog, if the machine has one. A guest that it resets reboots, which [`Ends::on_reboot`] decides on.
    pub watchdog: Option<Watchdog>,
    /// Whether the machine has a display: a VGA card, and a USB tablet that points at places on it. Not on `microvm`.
    pub display: bool,
    /// Whether the machine has a channel to an agent in the guest: the virtio-serial port `org.qemu.guest_agent.0`.
    pub agent: bool,
    /// A name for people, in QEMU's process title and in messages.
    pub name: String,
    /// What becomes of a guest that ends by itself.
    pub ends: Ends,
    /// Its disks, in the order in which firmware tries to boot from them.
    pub disks: Vec<DiskDevice>,
}

impl QemuConfig {
    /// A guest of one virtio NIC, with defaults for everything that has one.
    pub fn new(boot: Boot, mac: Mac) -> Self {
        Self {
            qemu: None,
            machine: Machine::default(),
            identity: Identity::default(),
            accel: Accel::default(),
            vcpus: 1,
            mem_mib: 256,
            boot,
            firmware: Firmware::default(),
            flash: Vec::new(),
            nics: vec![NicDevice {
                mac,
                model: NicModel::Virtio,
            }],
            offloads: true,
            rng: false,
            watchdog: None,
            display: false,
            agent: false,
            name: "plover".into(),
            ends: Ends::default(),
            disks: Vec::new(),
        }
    }

    /// Bytes of the machine's RAM.
    pub(crate) fn machine_ram_bytes(&self) -> usize {
        (self.mem_mib as usize) << 20
    }

    /// Bytes of the flash memory that the guest writes.
    pub(crate) fn flash_bytes(&self) -> usize {
        if self.firmware.is_uefi() {
            Firmware::FLASH_BYTES
        } else {
            0
        }
    }

    /// Where in the guest's memory the machine's RAM is.
    pub(crate) fn machine_ram(&self) -> Range<u64> {
        0..self.machine_ram_bytes() as u64
    }

    /// Where in the guest's memory, behind the machine's RAM, that of devices is, and the request that gives it to them: the
    /// flash memory of UEFI, and the display's.
    pub(crate) fn device_memory(&self) -> Vec<(Op, Range<u64>)> {
        let display = if self.display { DISPLAY_BYTES } else { 0 };
        let mut end = self.machine_ram().end;
        let parts = [(Op::Flash, self.flash_bytes()), (Op::Display, display)];
        let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
        let place = |(op, bytes)| {
            let start = end;
            end += bytes as u64;
            (op, start..end)
        };
        parts.map(place).collect()
    }

    /// Pages of the guest's memory: the machine's RAM, and behind it that of devices.
    pub fn ram_pages(&self) -> u32 {
        let devices = self.device_memory();
        let last = devices.last().map(|(_, part)| part.end);
        (last.unwrap_or(self.machine_ram().end) / PAGE_BYTES as u64) as u32
    }
}

/// Bytes of the memory of QEMU's VGA card (its `vgamem_mb`).
const DISPLAY_BYTES: usize = 16 << 20;
