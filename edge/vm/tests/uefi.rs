//! A guest under UEFI: its firmware, with its variables, is in its memory.

use crate::common::{Guest, assert_equal, disk, sync};
use plover_types::DISK_BLOCK_BYTES;
use plover_vm::{Accel, Boot, DiskDevice, Firmware, Machine, QemuConfig, VmCommand};
use std::path::Path;

/// Runs a guest up to the firmware's own shell: its disk is empty.
fn shell(dir: &Path, name: &str, machine: Machine) -> Guest {
    let config = QemuConfig {
        machine,
        accel: Accel::Tcg,
        mem_mib: 128,
        firmware: Firmware::Uefi,
        disks: vec![DiskDevice::default()],
        ..QemuConfig::new(Boot::Firmware, crate::common::GUEST_MAC)
    };
    let mut disks = disk(dir, name, 256 * DISK_BLOCK_BYTES as u64);
    let mut guest = Guest::start_with(config, Some(disks.attach().unwrap()));
    guest.order(VmCommand::Resume);
    guest.wait_console("any other key to continue");
    guest.console.clear();
    guest.vm.console_write(b"\x1b");
    guest.wait_console("Shell>");
    guest
}

/// A variable that was set in one guest's firmware is there in the other's after a syncvm, when the first
/// guest is gone.
fn variables_outlive_a_host(machine: Machine) {
    if !Path::new(Firmware::OVMF).exists() {
        eprintln!(
            "skipped: there is no {}, of the package ovmf",
            Firmware::OVMF
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut a = shell(dir.path(), "a", machine);
    let mut b = shell(dir.path(), "b", machine);
    a.console.clear();
    a.vm.console_write(b"set plover forty-two\r");
    a.wait_console("Shell>");
    for full in [true, false] {
        sync(&mut a, &mut b, full);
        assert_equal(&a, &b);
        a.order(VmCommand::Resume);
        b.order(VmCommand::Resume);
    }
    a.vm.kill();
    drop(a);
    b.console.clear();
    b.vm.console_write(b"set\r");
    // Only the answer comes in one piece: the echo of typed bytes comes letter by letter.
    b.wait_console("plover");
    b.wait_console("forty-two");
}

#[test]
fn uefi_variables_outlive_a_host_on_q35() {
    variables_outlive_a_host(Machine::Q35);
}

#[test]
fn uefi_variables_outlive_a_host_on_pc() {
    variables_outlive_a_host(Machine::Pc);
}
