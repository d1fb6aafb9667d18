//! Devices that a guest may have or lack, each with a guest of one sector that drives it.

use crate::common::{GUEST_MAC, Guest, Viewer, assert_equal, disk, sync};
use plover_disk::{DiskSpec, Disks};
use plover_types::{DISK_BLOCK_BYTES, PAGE_BYTES, PageNo, PageSet};
use plover_vm::trial::PATIENCE;
use plover_vm::{
    Accel, Boot, DiskBus, DiskDevice, Machine, QemuConfig, VmCommand, VmEvent, Watchdog,
};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Assembles a boot sector of `tests/sectors`.
fn sector(name: &str, dir: &Path) -> Vec<u8> {
    let sectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sectors");
    let out = dir.join(name);
    let built = Command::new("cc")
        .args(["-m32", "-nostdlib", "-static", "-no-pie"])
        .args(["-Wl,--build-id=none", "-Wl,--oformat=binary"])
        .args(["-Wl,-Ttext=0x7c00", "-Wl,-e,0x7c00", "-o"])
        .args([&out, &sectors.join(format!("{name}.S"))])
        .status()
        .expect("there is a C compiler");
    assert!(built.success());
    let code = std::fs::read(out).unwrap();
    assert!(code.len() <= 510);
    code
}

fn guest_of(machine: Machine, disks: Vec<DiskDevice>) -> QemuConfig {
    QemuConfig {
        machine,
        accel: Accel::Tcg,
        mem_mib: 64,
        disks,
        ..QemuConfig::new(Boot::Firmware, GUEST_MAC)
    }
}

/// An ISO image that boots `code`, with `text` in its 20th sector. (El Torito 1.0, 2: a boot record, its catalogue of one
/// entry, and what is loaded.)
fn iso(path: &Path, code: &[u8], text: &str) {
    let image = std::fs::File::create(path).unwrap();
    let write = |sector: u64, at: u64, bytes: &[u8]| {
        image.write_all_at(bytes, sector * 2048 + at).unwrap();
    };
    image.set_len(64 * 2048).unwrap();
    write(17, 0, b"\0CD001\x01EL TORITO SPECIFICATION");
    write(17, 0x47, &18u32.to_le_bytes());
    write(18, 0, &[1]);
    write(18, 28, &[0xaa, 0x55, 0x55, 0xaa]);
    write(18, 32, &[0x88, 0, 0, 0, 0, 0, 4, 0, 19, 0, 0, 0]);
    write(19, 0, code);
    write(20, 0, text.as_bytes());
}

/// The firmware starts from a CD in a drive. After a syncvm the other guest, which has read nothing, reads on from its own
/// host's copy.
#[test]
fn a_guest_reads_its_cd_on_the_other_host() {
    for (machine, bus) in [
        (Machine::Pc, DiskBus::Ide),
        (Machine::Q35, DiskBus::Ide),
        (Machine::Q35, DiskBus::Scsi),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let code = sector("cd", dir.path());
        let new = |name: &str| {
            let path = dir.path().join(name);
            iso(&path, &code, &format!("from {name}!"));
            let spec = DiskSpec {
                path,
                read_only: true,
                bytes: None,
                bytes_max: None,
                delay: Duration::ZERO,
            };
            let journal = dir.path().join("no journal");
            let mut disks = Disks::open(&[spec], &journal).unwrap();
            let device = DiskDevice {
                bus,
                read_only: true,
                cdrom: true,
                serial: None,
            };
            let config = guest_of(machine, vec![device]);
            Guest::start_with(config, Some(disks.attach_to_boot().unwrap()))
        };
        let (mut a, mut b) = (new("a"), new("b"));
        a.order(VmCommand::Resume);
        a.wait_console("from a!");
        b.order(VmCommand::Resume);
        // (Replicas would not come so far, since their machines are told to be different.)
        assert_ne!(a.vm.machine_words().needed, b.vm.machine_words().needed);
        sync(&mut a, &mut b, true);
        assert_equal(&a, &b);
        a.vm.kill();
        b.order(VmCommand::Resume);
        b.wait_console("from b!");
    }
}

/// Disks of each kind, from which the firmware reads all the time: every page that changes is reported, also where the
/// controller writes without marking it (AHCI).
#[test]
fn every_page_that_changes_is_reported() {
    for (machine, bus) in [
        (Machine::Q35, DiskBus::Ide),
        (Machine::Q35, DiskBus::Scsi),
        (Machine::Pc, DiskBus::Ide),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let code = sector("sweep", dir.path());
        let device = DiskDevice {
            bus,
            ..DiskDevice::default()
        };
        let mut guest = booting(dir.path(), "disk", &code, guest_of(machine, vec![device]));
        let count = |guest: &Guest| {
            let mut page = [0; PAGE_BYTES];
            guest.vm.read_page(COUNT, &mut page);
            u32::from_le_bytes([page[0], page[1], page[2], page[3]])
        };
        let runs = |guest: &Guest| {
            let mut page = [0; PAGE_BYTES];
            guest.vm.read_page(PageNo(7), &mut page);
            page[0xc00..0xc10] == code[..16]
        };
        let reads_on = |guest: &mut Guest| {
            guest.order(VmCommand::Resume);
            let (before, begun) = (count(guest), Instant::now());
            while !runs(guest) || count(guest) == before {
                assert!(
                    begun.elapsed() < PATIENCE,
                    "{machine} {bus:?} reads nothing"
                );
                guest.run_for(Duration::from_millis(5));
            }
            guest.order(VmCommand::Pause);
        };
        let mut changed = PageSet::new(guest.vm.layout().pages());
        for _ in 0..10 {
            reads_on(&mut guest);
            let mut written = PageSet::new(guest.vm.layout().pages());
            guest.scan(&mut written).unwrap();
            let before = memory(&guest);
            reads_on(&mut guest);
            written.clear();
            guest.scan(&mut written).unwrap();
            let now = memory(&guest);
            let pages = before.chunks(PAGE_BYTES).zip(now.chunks(PAGE_BYTES));
            let differ = pages.enumerate().filter(|(_, (before, now))| before != now);
            let mut missed: PageSet = PageSet::new(guest.vm.layout().pages());
            differ.for_each(|(i, _)| missed.insert(PageNo(i as u32)));
            changed.union_with(&missed);
            missed.subtract(&written);
            assert!(
                missed.is_empty(),
                "{machine} {bus:?}: {:?}",
                missed.to_runs()
            );
            assert!(
                written.len() < 1000,
                "{machine} {bus:?}: {} pages",
                written.len()
            );
        }
        assert!(changed.contains(COUNT));
        let is_ahci = machine == Machine::Q35 && bus == DiskBus::Ide;
        assert!(changed.contains(RECEIVED_FIS) || !is_ahci);
    }
}

/// The pages in which `sweep.S` counts, and in which it has an AHCI controller write.
const COUNT: PageNo = PageNo(0x9);
const RECEIVED_FIS: PageNo = PageNo(0x20);

/// The whole memory of a guest that stands.
fn memory(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 20];
    for (i, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        guest.vm.read_page(PageNo(i as u32), page);
    }
    bytes
}

/// A guest that boots `code` from a small disk.
fn booting(dir: &Path, name: &str, code: &[u8], config: QemuConfig) -> Guest {
    let mut disks = disk(dir, name, 256 * DISK_BLOCK_BYTES as u64);
    let file = std::fs::File::options()
        .write(true)
        .open(dir.join(name))
        .unwrap();
    file.write_all_at(code, 0).unwrap();
    file.write_all_at(&[0x55, 0xaa], 510).unwrap();
    Guest::start_with(config, Some(disks.attach_to_boot().unwrap()))
}

/// Two guests with a small disk each. The first boots `code`; the other does nothing until it is overwritten.
fn pair(dir: &Path, code: &[u8], config: &QemuConfig) -> (Guest, Guest) {
    // (hlt; jmp)
    let nothing = [0xf4, 0xeb, 0xfd];
    let new = |name, code: &[u8]| booting(dir, name, code, config.clone());
    (new("a", code), new("b", &nothing))
}

/// A watchdog that was started in one guest reboots the other one, which has its state from a syncvm only.
fn a_started_watchdog_goes_on(machine: Machine, watchdog: Watchdog) {
    let dir = tempfile::tempdir().unwrap();
    let code = sector(watchdog.name(), dir.path());
    let config = QemuConfig {
        watchdog: Some(watchdog),
        ..guest_of(machine, vec![DiskDevice::default()])
    };
    let (mut a, mut b) = pair(dir.path(), &code, &config);
    a.order(VmCommand::Resume);
    a.wait_console("armed");
    b.order(VmCommand::Resume);
    sync(&mut a, &mut b, true);
    a.vm.kill();
    b.order(VmCommand::Resume);
    b.expect(VmEvent::GuestReset);
}

#[test]
fn a_watchdog_of_the_chip_set_goes_on() {
    a_started_watchdog_goes_on(Machine::Q35, Watchdog::Itco);
}

#[test]
fn a_watchdog_on_pci_goes_on() {
    a_started_watchdog_goes_on(Machine::Q35, Watchdog::I6300esb);
    a_started_watchdog_goes_on(Machine::Pc, Watchdog::I6300esb);
}

/// After a syncvm the other guest's display shows the same picture when the first guest is gone, and its keyboard goes on.
#[test]
fn a_display_goes_on_on_another_host() {
    for machine in [Machine::Pc, Machine::Q35] {
        let dir = tempfile::tempdir().unwrap();
        let code = sector("display", dir.path());
        let config = QemuConfig {
            display: true,
            ..guest_of(machine, vec![DiskDevice::default()])
        };
        let (mut a, mut b) = pair(dir.path(), &code, &config);
        a.order(VmCommand::Resume);
        a.wait_console("drawn");
        b.order(VmCommand::Resume);
        let mut viewer = look_at(&mut a);
        let first = colour(&mut viewer, None);
        let second = press(&mut a, &mut viewer, first);
        for full in [true, false] {
            sync(&mut a, &mut b, full);
            assert_equal(&a, &b);
            a.order(VmCommand::Resume);
            b.order(VmCommand::Resume);
        }
        a.vm.kill();
        assert!(viewer.picture().is_err(), "its guest is gone");
        let mut viewer = look_at(&mut b);
        assert_eq!(colour(&mut viewer, None), second);
        press(&mut b, &mut viewer, second);
    }
}

fn look_at(guest: &mut Guest) -> Viewer<UnixStream> {
    let (viewer, server) = UnixStream::pair().unwrap();
    guest.vm.show_display(server.into()).unwrap();
    Viewer::new(viewer).unwrap()
}

/// Waits until the picture is of one colour, another than before. (It follows the guest's memory a little later.)
fn colour(viewer: &mut Viewer<UnixStream>, before: Option<[u8; 4]>) -> [u8; 4] {
    let begin = Instant::now();
    loop {
        let picture = viewer.picture().unwrap();
        let mut points = picture.chunks_exact(4);
        let first = points.next().unwrap();
        if points.all(|point| point == first) && before.is_none_or(|before| before != first) {
            return first.try_into().unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no new colour");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Presses a key. Returns the colour that the guest has drawn then.
fn press(guest: &mut Guest, viewer: &mut Viewer<UnixStream>, before: [u8; 4]) -> [u8; 4] {
    guest.console.clear();
    viewer.press(u32::from(b'x')).unwrap();
    guest.wait_console("drawn");
    colour(viewer, Some(before))
}
