//! A whole Debian on a replicated disk: PostgreSQL under TPC-B while leaders are killed; booted from a
//! kernel, and by UEFI from the disk; its clock kept by chrony. On an emulated processor, building and booting the image takes
//! minutes, so this runs on demand:
//!
//! ```text
//! ./x guests debian postgres
//! ./x test -p plover-lab-proof debian:: -- --ignored --nocapture
//! ./x test -p plover-lab-proof debian:: -- --ignored --nocapture by_uefi
//! apt-get install chrony
//! ./x test -p plover-lab-proof debian:: -- --ignored --nocapture chrony
//! ```

use anyhow::{Context, Result, ensure};
use plover_lab::guests::Guest;
use plover_lab::image::Image;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::state::LabDir;
use plover_lab::{Fault, Lab};
use plover_lab_proof::pgbench::Clients;
use plover_lab_proof::{
    ask_guest, filesystem, kill_leader, prove_on, restart_as_witness, role, wait_for,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

/// The shell's names for a UEFI variable and for its folder.
const EFI_VARIABLE: &str =
    "E=/sys/firmware/efi/efivars; V=$E/Plover-9a5b2c9e-2f0d-4a55-8d0e-5b1c6b1f7c11";

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
        let mount = "mountpoint -q $E || mount -t efivarfs efivarfs $E";
        let set =
            format!("{EFI_VARIABLE}; {mount}; printf '\\7\\0\\0\\0forty-''two' > $V; echo to''ld");
        ask_guest(lab, &set, "told")?;
        under_load(lab, &programs, (UEFI_SECONDS, 1), progress)?;
        // All hosts are lost now.
        for id in lab.ids().collect::<Vec<_>>() {
            lab.restart(id, progress)?;
        }
        lab.bootstrap(progress)?;
        wait_for(progress, "an answer of the guest", || {
            Ok(lab.guest_answers(Duration::from_secs(1)))
        })?;
        let get = format!("{EFI_VARIABLE}; {mount}; cat $V; echo to''ld");
        let got = ask_guest(lab, &get, "told")?;
        ensure!(got.contains("forty-two"), "the variable is lost: {got}");
        Ok(())
    });
}

/// Leaders killed under a guest whose clock chrony keeps.
const CHRONY_KILLS: u32 = 10;

/// Readings between two kills, a second apart.
const READINGS: u32 = 15;

/// How far the guest's clock may be from the server's once leaders die, in seconds: a third of what it would lose if it
/// stood still while one dies.
const NEAR: f64 = 0.03;

/// An NTP server on the lab's client host, which serves this host's clock and never sets it.
struct NtpServer(Child);

impl NtpServer {
    fn start(lab: &Lab, dir: &Path) -> Result<Self> {
        let mut command = Command::new("chronyd");
        let pid_file = format!("pidfile {}", dir.join("pid").display());
        command.args([
            "-d",
            "-x",
            "-u",
            "root",
            "local stratum 1",
            "allow",
            "cmdport 0",
        ]);
        command
            .args(["bindcmdaddress /", &pid_file])
            .stderr(Stdio::null());
        let mut command = lab.topology().client().exec_in(command)?;
        let child = command
            .spawn()
            .context("chronyd: is the package `chrony` installed?")?;
        Ok(Self(child))
    }
}

impl Drop for NtpServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The guest's clock in chrony's words: offsets in seconds, and its rate.
struct Tracking {
    /// How far the clock was from the server's at the last answer.
    last_offset: f64,
    /// By how much it would be wrong without chrony's corrections.
    frequency_ppm: f64,
    synchronised: bool,
}

impl Tracking {
    fn ask(lab: &Lab) -> Result<Self> {
        let said = ask_guest(lab, "chronyc -c tracking; echo to''ld", "told")?;
        let line = said.lines().find(|line| line.matches(',').count() == 13);
        let line = line.with_context(|| format!("no tracking in {said:?}"))?;
        let fields: Vec<&str> = line.trim().split(',').collect();
        Ok(Self {
            last_offset: fields[5].parse()?,
            frequency_ppm: fields[7].parse()?,
            synchronised: fields[13] == "Normal",
        })
    }
}

#[test]
#[ignore = "builds and boots a whole Debian, which takes minutes"]
fn chrony_keeps_the_clock_while_ten_leaders_die() {
    let programs = programs();
    prove_on("t-chrony", options(Guest::Debian), |lab, progress| {
        let dir = tempfile::tempdir()?;
        let _server = NtpServer::start(lab, dir.path())?;
        let start = "systemctl start chrony; chronyc waitsync 60 0 0 1; echo syn''ced";
        ask_guest(lab, start, "synced")?;
        let clients = Clients::in_lab(lab, programs);
        clients.fill(1)?;
        let load = clients.start(dir.path(), CLIENTS, 600)?;
        let mut worst = 0.0_f64;
        for kill in 0..=CHRONY_KILLS {
            for _ in 0..READINGS {
                progress.sleep(Duration::from_secs(1))?;
                let tracking = Tracking::ask(lab)?;
                let Tracking {
                    last_offset,
                    frequency_ppm,
                    ..
                } = tracking;
                eprintln!("{kill} kills: {last_offset:.6} s, rate {frequency_ppm:.1} ppm");
                ensure!(tracking.synchronised, "chrony has lost its server");
                // Before, chrony still finds out how far away the clock is that the guest has booted with.
                if kill > 0 {
                    worst = worst.max(last_offset.abs());
                }
            }
            if kill < CHRONY_KILLS {
                let killed = kill_leader(lab, progress)?;
                restart_as_witness(lab, killed, progress)?;
            }
        }
        drop(load);
        ensure!(worst < NEAR, "the guest's clock was {worst} s away");
        Ok(())
    });
}
