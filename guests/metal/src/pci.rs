//! PCI's configuration, through its two ports. A microvm has none, and reads all ones there.

use crate::net::Metal;
use core::arch::asm;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{Command, ConfigurationAccess, DeviceFunction, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

fn select(place: DeviceFunction, register: u8) {
    let device =
        u32::from(place.bus) << 16 | u32::from(place.device) << 11 | u32::from(place.function) << 8;
    // SAFETY: writing to this port selects a register, and touches no memory.
    unsafe {
        asm!("out dx, eax", in("dx") ADDRESS, in("eax") ENABLE | device | u32::from(register),
            options(nomem, nostack, preserves_flags));
    }
}

struct Ports;

impl ConfigurationAccess for Ports {
    fn read_word(&self, place: DeviceFunction, register: u8) -> u32 {
        select(place, register);
        let word;
        // SAFETY: reading a device's configuration changes nothing.
        unsafe {
            asm!("in eax, dx", in("dx") DATA, out("eax") word,
                options(nomem, nostack, preserves_flags));
        }
        word
    }

    fn write_word(&mut self, place: DeviceFunction, register: u8, word: u32) {
        select(place, register);
        // SAFETY: the firmware has placed all devices, and only registers of the NIC are written.
        unsafe {
            asm!("out dx, eax", in("dx") DATA, in("eax") word,
                options(nomem, nostack, preserves_flags));
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self
    }
}

/// Whether the machine has PCI: the first device is its host's bridge.
pub fn is_there() -> bool {
    let bridge = DeviceFunction {
        bus: 0,
        device: 0,
        function: 0,
    };
    Ports.read_word(bridge, 0) != u32::MAX
}

/// The first NIC, as the firmware has placed it.
pub fn nic() -> Option<PciTransport> {
    let mut root = PciRoot::new(Ports);
    let is_nic = |(_, info): &(_, _)| virtio_device_type(info) == Some(DeviceType::Network);
    let (place, _) = root.enumerate_bus(0).find(is_nic)?;
    root.set_command(place, Command::MEMORY_SPACE | Command::BUS_MASTER);
    PciTransport::new::<Metal, _>(&mut root, place).ok()
}
