//! A whole Debian on a replicated disk: PostgreSQL under TPC-B while leaders are killed; booted from a
//! kernel, and by UEFI from the disk. On an emulated processor, building and booting the image takes
//! minutes, so this runs on demand:
//!
//! ```text
//! ./x guests debian postgres
//! ./x test -p plover-lab-proof debian:: -- --ignored --nocapture
//! ./x test -p plover-lab-proof debian:: -- --ignored --nocapture by_uefi
//! ```

use anyhow::{Result, ensure};
use plover_lab::guests::Guest;
use plover_lab::image::Image;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::state::LabDir;
use plover_lab::{Fault, Lab};
use plover_lab_proof::pgbench::Clients;
use plover_lab_proof::{ask_guest, filesystem, kill_leader, prove_on, restart_as_witness, role};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of clients that the project has set for this check.
const CLIENTS: u32 = 8;

/// Long enough for the kills below on an idle machine.
const SECONDS: u64 = 120;

/// Long enough for the one kill after a boot by UEFI.
const UEFI_SECONDS: u64 = 40;

/// The time between two kills.
const LOADED: Duration = Duration::from_secs(10);

/// `PLOVER_KILLS`, or the number that the project has set for this check.
fn kills() -> u32 {
    let given = std::env::var("PLOVER_KILLS").ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(5)
}

/// TPC-B for `seconds`, with `kills` leaders killed under it.
fn under_load(
    lab: &mut Lab,
    programs: &Path,
    (seconds, kills): (u64, u32),
    progress: &Progress,
) -> Result<()> {
    let clients = Clients::in_lab(lab, programs.to_owned());
    clients.fill(1)?;
    let dir = tempfile::tempdir()?;
    let load = clients.start(dir.path(), CLIENTS, seconds)?;
    for _ in 0..kills {
        std::thread::sleep(LOADED);
        let killed = kill_leader(lab, progress)?;
        restart_as_witness(lab, killed, progress)?;
    }
    clients.settle(load)?;

    // The leader's disk, as a crash of all would leave it.
    let leader = lab.find(&role("leader"))?;
    for id in lab.ids().collect::<Vec<_>>() {
        // This fails for a replica that is down already.
        let _ = lab.fault(Fault::Kill, id);
    }
    let disk = LabDir::of(lab.name()).disk(leader, 0);
    filesystem::check(&disk, filesystem::PARTITION_BYTES, dir.path())
}

fn options(guest: Guest) -> Options {
    Options {
        guest,
        ..Options::default()
    }
}

fn programs() -> PathBuf {
    let image = Image::find(&options(Guest::Postgres)).expect("run ./x guests postgres");
    image.kernel.with_file_name("client")
}

#[test]
#[ignore = "builds and boots a whole Debian, which takes minutes"]
fn commits_on_disk_survive_their_leaders() {
    let programs = programs();
    prove_on("t-debian", options(Guest::Debian), |lab, progress| {
        under_load(lab, &programs, (SECONDS, kills()), progress)
    });
}

/// From the guest's own disk, as on any host: OVMF, GRUB from the EFI system partition, Debian.
#[test]
#[ignore = "builds and boots a whole Debian, which takes minutes"]
fn a_debian_that_was_booted_by_uefi_survives_its_leader() {
    let programs = programs();
    let options = Options {
        uefi: true,
        ..options(Guest::Debian)
    };
    prove_on("t-uefi", options, |lab, progress| {
        let told = ask_guest(lab, "ls /sys/firmware/efi; echo to''ld", "told")?;
        ensure!(told.contains("runtime"), "no UEFI has started it: {told}");
        under_load(lab, &programs, (UEFI_SECONDS, 1), progress)
    });
}
