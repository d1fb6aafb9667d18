//! Waiting for the NIC or for the timer, with the interrupt controllers of the machine.

use crate::pci;
use core::ptr::{read_volatile, write_volatile};

/// The processor's own controller.
const LOCAL: usize = 0xfee0_0000;
const END_OF_INTERRUPT: usize = LOCAL + 0xb0;
const SPURIOUS: usize = LOCAL + 0xf0;
const TIMER: usize = LOCAL + 0x320;
const TIMER_COUNT: usize = LOCAL + 0x380;
const TIMER_DIVISOR: usize = LOCAL + 0x3e0;

/// The controllers to which PCI's devices are wired, and a microvm's virtio devices.
const OF_PCI: usize = 0xfec0_0000;
const OF_MICROVM: usize = 0xfec1_0000;
const WINDOW: usize = 0x10;
const VERSION: u32 = 1;
/// The pins of the first one that PCI's devices have: on q35 the last eight; on pc those of the old interrupts to which
/// the firmware routes them.
const PCI_PINS: [u32; 10] = [10, 11, 16, 17, 18, 19, 20, 21, 22, 23];
const FIRST_PIN: u32 = 0x10;

const DEVICE_VECTOR: u32 = 0x41;
const TIMER_VECTOR: u32 = 0x40;
const SPURIOUS_VECTOR: u32 = 0xff;

/// QEMU's timer counts at 1 GHz, under TCG and under KVM; by its divisor, here 1.
const COUNTS_PER_US: u64 = 1000;
const DIVIDE_BY_1: u32 = 0xb;

unsafe extern "C" {
    /// In `boot.S`: lets one interrupt in, and returns its vector.
    fn wait() -> u32;
}

fn write(register: usize, value: u32) {
    // SAFETY: the callers name registers of the two controllers, which are mapped and are no memory of Rust's.
    unsafe { write_volatile(register as *mut u32, value) }
}

fn read(register: usize) -> u32 {
    // SAFETY: as above.
    unsafe { read_volatile(register as *const u32) }
}

/// Sends the interrupts of all devices to this processor, and sets the timer up.
pub fn enable() {
    write(SPURIOUS, 0x100 | SPURIOUS_VECTOR);
    write(TIMER_DIVISOR, DIVIDE_BY_1);
    write(TIMER, TIMER_VECTOR);
    let on_pci = pci::is_there();
    let devices = if on_pci { OF_PCI } else { OF_MICROVM };
    write(devices, VERSION);
    let pins = ((read(devices + WINDOW) >> 16) & 0xff) + 1;
    assert!(
        pins == 24,
        "no interrupt controller for devices at {devices:#x}: is this a microvm with ACPI?"
    );
    for pin in (0..pins).filter(|pin| !on_pci || PCI_PINS.contains(pin)) {
        write(devices, FIRST_PIN + 2 * pin + 1);
        write(devices + WINDOW, 0);
        write(devices, FIRST_PIN + 2 * pin);
        // On the rising edge. The interrupt's cause is acknowledged before queues are read.
        write(devices + WINDOW, DEVICE_VECTOR);
    }
}

/// Waits for an interrupt, for at most so many microseconds. The processor is halted meanwhile.
pub fn wait_for(us: u64) {
    let counts = (us * COUNTS_PER_US).clamp(1, u64::from(u32::MAX));
    write(TIMER_COUNT, counts as u32);
    // SAFETY: ring 0 changes nothing but the registers that a call may change.
    let vector = unsafe { wait() };
    if vector != SPURIOUS_VECTOR {
        write(END_OF_INTERRUPT, 0);
    }
}
