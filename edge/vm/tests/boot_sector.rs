//! Two guests of 512 bytes of real-mode code, synced under KVM and under TCG.
//!
//! KVM cannot run Linux on every machine that has `/dev/kvm`, but it runs this code everywhere. So KVM's
//! way of writing guest memory is tested too: the processor itself writes, through KVM's own page tables.
//! The code counts up a word in each of 128 pages, for ever.

use crate::common::{Guest, assert_equal, disk, have_kvm, sync};
use plover_types::{PAGE_BYTES, PageNo, PageSet};
use plover_vm::{Accel, Boot, DiskDevice, Machine, QemuConfig, VmCommand};
use std::path::Path;
use std::time::Duration;

/// ```text
///          cli
///          xor  ax, ax
///          mov  ds, ax
///          mov  ss, ax
///          mov  sp, 0x7c00
///  again:  mov  bx, 0x1000           ; the segment of page 0x10
///  page:   mov  es, bx
///          inc  dword [es:0]
///          add  bx, 0x100
///          cmp  bx, 0x9000           ; up to page 0x90
///          jb   page
///          jmp  again
/// ```
const CODE: &[u8] = &[
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0xbb, 0x00, 0x10, 0x8e, 0xc3, 0x26,
    0x66, 0xff, 0x06, 0x00, 0x00, 0x81, 0xc3, 0x00, 0x01, 0x81, 0xfb, 0x00, 0x90, 0x72, 0xee, 0xeb,
    0xe9,
];
const PAGES: std::ops::Range<u32> = 0x10..0x90;
const SYNCS: usize = 20;

fn count(guest: &Guest, page: u32) -> u32 {
    let mut bytes = [0; PAGE_BYTES];
    guest.vm.read_page(PageNo(page), &mut bytes);
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Lets a guest run until its counters have moved since they were `before`.
fn run_past(guest: &mut Guest, before: u32) {
    let mut code = [0; PAGE_BYTES];
    // The firmware runs first, and uses those pages itself.
    while code[0xc00..0xc00 + CODE.len()] != *CODE {
        guest.run_for(Duration::from_millis(5));
        guest.vm.read_page(PageNo(7), &mut code);
    }
    while count(guest, PAGES.start) <= before {
        guest.run_for(Duration::from_millis(5));
    }
}

/// A guest that boots the code from a floppy-sized disk in `dir`.
fn start(dir: &Path, name: &str, accel: Accel, machine: Machine) -> Guest {
    let mut sector = CODE.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(1_474_560, 0);
    std::fs::write(dir.join(name), &sector).unwrap();
    let mut disks = disk(dir, name, sector.len() as u64);
    let config = QemuConfig {
        machine,
        accel,
        mem_mib: 64,
        disks: vec![DiskDevice::default()],
        ..QemuConfig::new(Boot::Firmware, crate::common::GUEST_MAC)
    };
    Guest::start_with(config, Some(disks.attach_to_boot().unwrap()))
}

fn counters_go_on(accel: Accel, machine: Machine) {
    let dir = tempfile::tempdir().unwrap();
    let mut a = start(dir.path(), "a", accel, machine);
    let mut b = start(dir.path(), "b", accel, machine);
    a.order(VmCommand::Resume);
    b.order(VmCommand::Resume);
    run_past(&mut a, 1000);
    let first = sync(&mut a, &mut b, true);
    assert_equal(&a, &b);
    // Firmware has moved the borders of RAM, and most of it was not written.
    let few = a.vm.layout().pages() / 8;
    for dirty in [first.dirty_a, first.dirty_b] {
        assert!(dirty < few, "{dirty} pages seen");
    }

    for _ in 0..SYNCS {
        let before = count(&a, PAGES.start);
        for guest in [&mut a, &mut b] {
            guest.order(VmCommand::Resume);
            run_past(guest, before);
        }
        let synced = sync(&mut a, &mut b, false);
        assert_equal(&a, &b);
        // Both guests wrote all their pages, and the scan saw it.
        for dirty in [synced.dirty_a, synced.dirty_b] {
            assert!(dirty >= PAGES.len() as u32, "{dirty} pages seen");
        }
        // The guest goes on where the other one stopped: its counters are those of one loop.
        let counts: Vec<u32> = PAGES.map(|page| count(&b, page)).collect();
        let (low, high) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(high - low <= 1 && *low > before, "{counts:?}");
    }

    a.vm.kill();
    let before = count(&b, PAGES.start);
    b.order(VmCommand::Resume);
    run_past(&mut b, before);
    b.order(VmCommand::Pause);
    let mut dirty = PageSet::new(b.vm.layout().pages());
    b.scan(&mut dirty).unwrap();
    dirty.clear();
    b.scan(&mut dirty).unwrap();
    assert!(
        dirty.is_empty(),
        "a guest that stands writes nothing: {:?}",
        dirty.to_runs()
    );
}

#[test]
fn guest_counters_go_on_under_kvm() {
    if have_kvm() {
        counters_go_on(Accel::Kvm, Machine::Q35);
    }
}

#[test]
fn guest_counters_go_on_under_tcg() {
    counters_go_on(Accel::Tcg, Machine::Q35);
    counters_go_on(Accel::Tcg, Machine::Pc);
}
