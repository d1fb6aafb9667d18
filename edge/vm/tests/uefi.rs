//! A guest under UEFI: the firmware's variables are part of its memory.

use crate::common::{Guest, assert_equal, disk, sync};
use plover_types::DISK_BLOCK_BYTES;
use plover_vm::{Accel, Boot, DiskDevice, Firmware, Machine, QemuConfig, VmCommand};
use std::path::Path;

/// A guest whose disk is empty, so that the firmware finds nothing to start.
fn start(dir: &Path, name: &str, machine: Machine, firmware: Firmware, flash: Vec<u8>) -> Guest {
    let config = QemuConfig {
        machine,
        accel: Accel::Tcg,
        mem_mib: 128,
        firmware,
        flash,
        disks: vec![DiskDevice::default()],
        ..QemuConfig::new(Boot::Firmware, crate::common::GUEST_MAC)
    };
    let mut disks = disk(dir, name, 256 * DISK_BLOCK_BYTES as u64);
    let mut guest = Guest::start_with(config, Some(disks.attach_to_boot().unwrap()));
    guest.order(VmCommand::Resume);
    guest
}

/// Waits until the firmware has found nothing to start: it ends in its own shell, which Secure Boot keeps it from.
fn wait_menu(guest: &mut Guest, firmware: Firmware) {
    guest.wait_console(match firmware {
        Firmware::UefiSecure => "enter the Boot Manager Menu",
        _ => "Shell>",
    });
}

/// Boots the machine once more.
fn reset(guest: &mut Guest, firmware: Firmware) {
    guest.console.clear();
    guest.vm.command(VmCommand::HardReset);
    wait_menu(guest, firmware);
}

/// How often the firmware has started with these variables, by its variable `MTC`, whose upper half it counts up each time.
/// (EDK2, `AUTHENTICATED_VARIABLE_HEADER`: mark and state, 60 bytes in all, the name in UTF-16, the data.)
fn starts(flash: &[u8]) -> u32 {
    let name: Vec<u8> = "MTC\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let is_valid = |at: &usize| flash[*at - 60..*at - 57] == [0xaa, 0x55, 0x3f];
    let mut found = (60..flash.len() - 12).filter(|at| flash[*at..].starts_with(&name));
    let at = found.find(is_valid).expect("a variable MTC") + name.len();
    u32::from_le_bytes(flash[at..at + 4].try_into().unwrap())
}

/// Variables that one guest's firmware has written are the other's after a syncvm, when the first guest is gone; they
/// outlive a reset; and a new machine has them that starts with the flash memory of the last one.
fn variables_last(machine: Machine, firmware: Firmware) {
    if let Some(missing) = firmware.code().filter(|file| !file.exists()) {
        eprintln!("skipped: no {} (package ovmf)", missing.display());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let new = |name, flash| {
        let mut guest = start(dir.path(), name, machine, firmware, flash);
        wait_menu(&mut guest, firmware);
        guest
    };
    let (mut a, mut b) = (new("a", Vec::new()), new("b", Vec::new()));
    let once = starts(&a.vm.flash());
    assert_eq!(starts(&b.vm.flash()), once);
    reset(&mut a, firmware);
    reset(&mut a, firmware);
    assert_eq!(starts(&a.vm.flash()), once + 2);
    for full in [true, false] {
        sync(&mut a, &mut b, full);
        // A join loads twice before its guest goes on.
        sync(&mut a, &mut b, false);
        assert_equal(&a, &b);
        a.order(VmCommand::Resume);
        b.order(VmCommand::Resume);
    }
    a.vm.kill();
    drop(a);
    assert_eq!(starts(&b.vm.flash()), once + 2);
    reset(&mut b, firmware);
    let flash = b.vm.flash();
    assert_eq!(starts(&flash), once + 3);
    drop(b);
    let c = new("c", flash);
    assert_eq!(starts(&c.vm.flash()), once + 4);
}

#[test]
fn uefi_variables_last_on_q35() {
    variables_last(Machine::Q35, Firmware::UefiSecure);
}

#[test]
fn uefi_variables_last_on_pc() {
    variables_last(Machine::Pc, Firmware::Uefi);
}
