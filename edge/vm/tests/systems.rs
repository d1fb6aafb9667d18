//! Systems that Debian ships beside Linux, each booted from its CD, without a network or a disk. Their packages are downloaded, so
//! this runs on demand:
//!
//! ```text
//! ./x test -p plover-vm systems:: -- --ignored --nocapture
//! ```

use crate::common::{GUEST_MAC, Guest, Viewer, assert_equal, sync};
use plover_disk::{DiskSpec, Disks};
use plover_vm::{Accel, Boot, DiskBus, DiskDevice, Machine, QemuConfig, VmCommand};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Packages, and the CDs in them.
const SYSTEMS: [(&str, &str); 3] = [
    (
        "grub-rescue-pc",
        "usr/lib/grub-rescue/grub-rescue-cdrom.iso",
    ),
    ("memtest86+", "usr/lib/memtest86+/memtest86+x64.iso"),
    ("ipxe", "usr/lib/ipxe/ipxe.iso"),
];

/// Differing bytes of two pictures up to which they are the same: QEMU lets the cursor of a text mode blink.
const CURSOR: usize = 1000;

/// A system that shows nothing new for so long hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// Downloads a package, and unpacks it. Returns the CD in it, padded as a disk has to be.
fn cd(package: &str, iso: &str, dir: &Path) -> PathBuf {
    let run = |program: &str, words: &[&str]| {
        let status = Command::new(program).args(words).current_dir(dir).status();
        assert!(status.unwrap().success(), "{program} {words:?}");
    };
    run("apt-get", &["download", "-qq", package]);
    run("sh", &["-c", &format!("dpkg -x {package}_*.deb .")]);
    let cd = dir.join(iso);
    run("truncate", &["-s", "%4096", cd.to_str().unwrap()]);
    cd
}

fn start(machine: Machine, cd: &Path, journal: &Path) -> Guest {
    let spec = DiskSpec {
        path: cd.to_owned(),
        read_only: true,
        bytes: None,
        bytes_max: None,
        delay: Duration::ZERO,
    };
    let device = DiskDevice {
        bus: DiskBus::Ide,
        read_only: true,
        cdrom: true,
        serial: None,
    };
    let config = QemuConfig {
        machine,
        accel: Accel::Tcg,
        mem_mib: 64,
        display: true,
        disks: vec![device],
        ..QemuConfig::new(Boot::Firmware, GUEST_MAC)
    };
    let mut disks = Disks::open(&[spec], journal).unwrap();
    let mut guest = Guest::start_with(config, Some(disks.attach_to_boot().unwrap()));
    guest.order(VmCommand::Resume);
    guest
}

/// A picture that is being drawn in a new size never becomes whole.
const DRAWN_WITHIN: Duration = Duration::from_secs(2);

fn look_at(guest: &mut Guest) -> Viewer<UnixStream> {
    let (viewer, server) = UnixStream::pair().unwrap();
    viewer.set_read_timeout(Some(DRAWN_WITHIN)).unwrap();
    guest.vm.show_display(server.into()).unwrap();
    Viewer::new(viewer).unwrap()
}

/// The present picture, for a viewer that looks anew, since its size may have changed.
fn picture(guest: &mut Guest) -> Vec<u8> {
    loop {
        if let Ok(picture) = look_at(guest).picture() {
            return picture;
        }
        guest.run_for(Duration::from_millis(100));
    }
}

fn differing(one: &[u8], other: &[u8]) -> usize {
    let longer = one.len().abs_diff(other.len());
    longer + one.iter().zip(other).filter(|(a, b)| a != b).count()
}

/// Runs the guest until its picture is one that `is_it`.
fn wait_picture(guest: &mut Guest, what: &str, mut is_it: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let begin = Instant::now();
    loop {
        let picture = picture(guest);
        if is_it(&picture) {
            return picture;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        guest.run_for(Duration::from_millis(500));
    }
}

/// After a syncvm the other guest, which had booted to another place, shows the same, and goes on when the first is gone.
#[test]
#[ignore = "downloads packages"]
fn systems_of_debian_go_on_on_another_host() {
    for (package, iso) in SYSTEMS {
        for machine in [Machine::Pc, Machine::Q35] {
            let dir = tempfile::tempdir().unwrap();
            let cd = cd(package, iso, dir.path());
            let new = || start(machine, &cd, &dir.path().join("no journal"));
            let (mut a, mut b) = (new(), new());
            let first = picture(&mut a);
            wait_picture(&mut a, "it does not boot", |now| {
                differing(now, &first) > CURSOR
            });
            a.run_for(Duration::from_secs(8));
            for full in [true, false] {
                sync(&mut a, &mut b, full);
                assert_equal(&a, &b);
                let shown = picture(&mut a);
                wait_picture(&mut b, "the other picture is another", |now| {
                    differing(now, &shown) <= CURSOR
                });
                a.order(VmCommand::Resume);
                b.order(VmCommand::Resume);
            }
            a.vm.kill();
            let then = picture(&mut b);
            let mut viewer = look_at(&mut b);
            wait_picture(&mut b, "it does not go on", |now| {
                // A key that each of them shows or acts on.
                viewer.press(u32::from(b'c')).unwrap();
                differing(now, &then) > CURSOR
            });
            eprintln!("{package} on {machine}: goes on");
        }
    }
}
