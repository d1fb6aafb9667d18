//! Guests with disks: a real QEMU, its disks served from here. Two guests are synced while they write.

use crate::common::{Guest, assert_equal, disk, linux, sync};
use plover_types::{DISK_BLOCK_BYTES, PageSet};
use plover_vm::{Accel, Boot, DiskBus, DiskDevice, Machine, QemuConfig, VmCommand, VmEvent};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const DISK_BYTES: u64 = 32 << 20;
const SYNCS: usize = 15;

fn with_disk(machine: Machine, bus: DiskBus) -> QemuConfig {
    let disk = DiskDevice {
        bus,
        ..DiskDevice::default()
    };
    QemuConfig {
        disks: vec![disk],
        ..linux(machine, 1)
    }
}

/// Writes at many places, some of them with a flush, and reads back what it wrote.
const LOAD: &str = "i=0; while :; do i=$((i+1)); \
    dd if=/dev/urandom of=/dev/vda bs=4k count=$((i%16+1)) seek=$((i*37%7900)) conv=notrunc,fsync; \
    dd if=/dev/vda of=/dev/null bs=64k count=8 skip=$((i%400)); done >/dev/null 2>&1 &";

fn synced_guests_have_equal_disks(machine: Machine) {
    let dir = tempfile::tempdir().unwrap();
    let (mut left, mut right) = (
        disk(dir.path(), "a", DISK_BYTES),
        disk(dir.path(), "b", DISK_BYTES),
    );
    let config = with_disk(machine, DiskBus::Virtio);
    let mut a = Guest::start_with(config.clone(), Some(left.attach_to_boot().unwrap()));
    let mut b = Guest::start_with(config, Some(right.attach_to_boot().unwrap()));
    assert_eq!(
        u64::from(a.vm.layout().pages()),
        ((256 << 20) + DISK_BYTES) >> 12,
        "RAM, then blocks"
    );
    a.order(VmCommand::Resume);
    a.wait_console("plover-guest: ready");
    b.order(VmCommand::Resume);
    b.run_for(Duration::from_millis(300));
    sync(&mut a, &mut b, true);
    assert_equal(&a, &b);
    for guest in [&mut a, &mut b] {
        guest.order(VmCommand::Resume);
        guest.type_line(&format!("{LOAD} echo load $((40+2))"));
        guest.wait_console("load 42");
    }
    let layout = a.vm.layout();
    let mut written = 0;
    for _ in 0..SYNCS {
        a.run_for(Duration::from_millis(100));
        b.run_for(Duration::from_millis(100));
        let mut scanned = PageSet::new(layout.pages());
        // This scan takes the written pages from the sync, so `by_load` hands them back to it.
        a.order(VmCommand::Pause);
        a.scan(&mut scanned).unwrap();
        written += scanned.iter().filter(|page| layout.is_disk(*page)).count();
        a.order(VmCommand::Resume);
        b.by_load.union_with(&scanned);
        sync(&mut a, &mut b, false);
        assert_equal(&a, &b);
        a.order(VmCommand::Resume);
        b.order(VmCommand::Resume);
    }
    assert!(written > 50, "the load was none: {written} blocks");
    // The first guest dies. The other one goes on with its own disk.
    a.vm.kill();
    drop(a);
    b.type_line("sync; dd if=/dev/vda of=/dev/null bs=1M && echo read $((40+2))");
    b.wait_console("read 42");
    b.type_line("dmesg | grep -ciE 'i/o error|bug:|stall|hung'; echo end $((1+1))");
    b.wait_console("end 2");
    assert!(b.console.contains("\n0\r\n"), "it complains: {}", b.console);
}

#[test]
fn microvm_disks_are_equal_after_each_sync() {
    synced_guests_have_equal_disks(Machine::Microvm);
}

#[test]
fn q35_disks_are_equal_after_each_sync() {
    synced_guests_have_equal_disks(Machine::Q35);
}

/// The firmware finds a boot sector on every bus, and the guest reads the disk's content.
#[test]
fn firmware_boots_from_every_bus() {
    /// Prints "disk!" on the first serial port and stops: `mov si, text; next: lodsb; test al, al; jz
    /// end; mov dx, 0x3f8; out dx, al; jmp next; end: hlt; jmp end`.
    const CODE: &[u8] = &[
        0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x17, 0x7c, 0xac, 0x84, 0xc0, 0x74, 0x06, 0xba, 0xf8,
        0x03, 0xee, 0xeb, 0xf5, 0xf4, 0xeb, 0xfd, 0x90, b'd', b'i', b's', b'k', b'!', 0,
    ];
    for (machine, bus) in [
        (Machine::Q35, DiskBus::Virtio),
        (Machine::Pc, DiskBus::Scsi),
        (Machine::Q35, DiskBus::Ide),
        (Machine::Pc, DiskBus::Ide),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut disks = disk(dir.path(), "disk", 256 * DISK_BLOCK_BYTES as u64);
        let path = dir.path().join("disk");
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(CODE, 0).unwrap();
        file.write_all_at(&[0x55, 0xaa], 510).unwrap();
        let config = QemuConfig {
            machine,
            accel: Accel::Tcg,
            mem_mib: 64,
            disks: vec![DiskDevice {
                bus,
                ..DiskDevice::default()
            }],
            ..QemuConfig::new(Boot::Firmware, crate::common::GUEST_MAC)
        };
        let mut guest = Guest::start_with(config, Some(disks.attach_to_boot().unwrap()));
        guest.order(VmCommand::Resume);
        guest.wait_console("disk!");
    }
}

/// A failing disk stops the guest, and the replica reports the failure. The guest does not see it.
#[test]
fn a_disk_that_fails_ends_the_guest() {
    let dir = tempfile::tempdir().unwrap();
    let mut disks = disk(dir.path(), "a", DISK_BYTES);
    let config = with_disk(Machine::Microvm, DiskBus::Virtio);
    let mut guest = Guest::start_with(config, Some(disks.attach_to_boot().unwrap()));
    guest.order(VmCommand::Resume);
    guest.wait_console("plover-guest: ready");
    // Blocks beyond the new end cannot be read any more.
    let image = std::fs::File::options()
        .write(true)
        .open(dir.path().join("a"))
        .unwrap();
    image.set_len(1 << 20).unwrap();
    guest.type_line("dd if=/dev/vda of=/dev/null bs=1M skip=8; echo went on $((1+1))");
    match guest.event() {
        VmEvent::Died(why) => {
            assert!(
                why.contains("cannot read the disk") && why.contains("mend"),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(!guest.console.contains("went on 2"));
}

/// The guest hears of a larger disk while it runs, and uses the room.
#[test]
fn a_disk_grows_under_its_guest() {
    const GROWN: u64 = 48 << 20;
    for (machine, bus, name) in [
        (Machine::Microvm, DiskBus::Virtio, "vda"),
        (Machine::Q35, DiskBus::Virtio, "vda"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut disks = crate::common::disk_that_grows(dir.path(), "a", DISK_BYTES, 2 * GROWN);
        let mut guest = Guest::start_with(
            with_disk(machine, bus),
            Some(disks.attach_to_boot().unwrap()),
        );
        guest.order(VmCommand::Resume);
        guest.wait_console("plover-guest: ready");
        // Requests are open all the time.
        guest.type_line(&format!(
            "while :; do dd if=/dev/urandom of=/dev/{name} bs=64k count=64 conv=notrunc,fsync; done >/dev/null 2>&1 &"
        ));
        guest.run_for(Duration::from_millis(200));
        let (done, made) = std::sync::mpsc::channel();
        let attachment = guest.vm.disks().unwrap();
        attachment.resize(0, GROWN, move |connection| {
            let _ = done.send(connection);
        });
        let connection = made.recv().unwrap().unwrap();
        let began = std::time::Instant::now();
        guest.vm.resize_disk(0, GROWN, connection);
        guest.expect(VmEvent::DiskResized {
            disk: 0,
            result: Ok(()),
        });
        eprintln!(
            "{machine}: QEMU has the new size after {:?}",
            began.elapsed()
        );
        assert_eq!(guest.vm.told_sizes(), [GROWN]);
        guest.type_line(&format!("echo sec''tors $(cat /sys/block/{name}/size)"));
        guest.wait_console(&format!("sectors {}", GROWN / 512));
        guest.type_line(&format!(
            "dd if=/dev/urandom of=/tmp/r bs=4k count=32 2>/dev/null; \
             dd if=/tmp/r of=/dev/{name} bs=4k seek=12000 oflag=direct 2>/dev/null; \
             dd if=/dev/{name} of=/tmp/s bs=4k skip=12000 count=32 iflag=direct 2>/dev/null; \
             cmp /tmp/r /tmp/s && echo ro''om"
        ));
        guest.wait_console("room");
        // The size is a part of its state.
        guest.order(VmCommand::Pause);
        let state = guest.save();
        assert_eq!(plover_vm::QemuVm::sizes_in(&state), [GROWN]);
    }
}
