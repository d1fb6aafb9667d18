//! `./x bench disk`: the cost of protection for a guest that writes to its disk.
//!
//! Two loads, each on a fresh guest with a disk of which every replica has a copy: random writes of 4 to
//! 64 KiB with flushes, and PostgreSQL under TPC-B with its data on that disk. Rounds alternate between
//! `none` (the same guest and disk, unreplicated) and `vsmr`, so that a drift of the machine's speed
//! hits both. Every acknowledged write is read back each time, because a figure is worth nothing if
//! writes were lost.

use crate::children::spoken_progress;
use crate::lab::{name, plover};
use crate::machine::Machine;
use crate::matrix::build_guest;
use crate::stats::Sample;
use anyhow::{Context, Result, ensure};
use plover_lab::Lab;
use plover_lab::guests::Guest;
use plover_lab::image::Image;
use plover_lab::options::{Options as LabOptions, PolicyName};
use plover_lab::progress::Progress;
use plover_lab_proof::pgbench::Clients;
use plover_lab_proof::storm::writers::Storm;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds of each policy.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// How long each load runs.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The size of the disk.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..))]
    disk_mib: u64,
}

/// Connections that write, and clients of `pgbench`.
const WRITERS: u64 = 4;
const CLIENTS: u32 = 8;

const POLICIES: [&str; 2] = ["none", "vsmr"];

/// The load on the guest.
#[derive(Clone, Copy, Debug)]
enum Load {
    Storm,
    Pgbench,
}

impl Load {
    const ALL: [Self; 2] = [Self::Storm, Self::Pgbench];

    /// The unit of the rate.
    const fn unit(self) -> &'static str {
        match self {
            Self::Storm => "writes acknowledged/s",
            Self::Pgbench => "transactions/s",
        }
    }

    const fn guest(self) -> Guest {
        match self {
            Self::Storm => Guest::Storm,
            Self::Pgbench => Guest::Postgres,
        }
    }
}

/// Rates of each policy of [`POLICIES`].
type Rates = [Sample; 2];

pub(crate) fn run(options: &Options) -> Result<()> {
    for load in Load::ALL {
        build_guest(load.guest().name())?;
    }
    let mut rates: [Rates; 2] = Default::default();
    let mut accel = String::new();
    let done = measure_all(options, &mut rates, &mut accel);
    // The figures are printed even if the run fails.
    if rates.iter().flatten().any(|sample| !sample.is_empty()) {
        print_table(options, &rates, &Machine::this(&accel));
    }
    if done.is_ok() {
        println!("\nAll that was acknowledged was read back: nothing lost, nothing torn.");
    }
    done
}

fn measure_all(options: &Options, rates: &mut [Rates; 2], accel: &mut String) -> Result<()> {
    let progress = spoken_progress();
    let scratch = tempfile::tempdir_in("/var/tmp").context("making a place for the disk")?;
    for round in 0..options.rounds {
        for (load, rates) in Load::ALL.into_iter().zip(rates.iter_mut()) {
            for (policy, rates) in POLICIES.into_iter().zip(rates) {
                let turn = format!("round {}/{}: {policy}", round + 1, options.rounds);
                eprintln!("{turn}, {}", load.unit());
                let disk = make_disk(scratch.path(), options.disk_mib, load)?;
                let lab = up(load, policy, disk, &progress)?;
                *accel = accelerator(&lab);
                let rate = measure(&lab, load, options.seconds, scratch.path(), &progress);
                lab.down()?;
                rates.push(rate.with_context(|| format!("{policy}, {}", load.unit()))?);
            }
        }
    }
    Ok(())
}

/// An empty disk, for PostgreSQL with a file system.
fn make_disk(dir: &Path, mib: u64, load: Load) -> Result<PathBuf> {
    let path = dir.join("disk.raw");
    std::fs::File::create(&path)?.set_len(mib << 20)?;
    if matches!(load, Load::Pgbench) {
        // All of it now, so that the guest's kernel does not write by itself later.
        let made = Command::new("/sbin/mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&path)
            .status()
            .context("cannot run mke2fs: install the package e2fsprogs")?;
        ensure!(made.success(), "mke2fs failed ({made})");
    }
    Ok(path)
}

fn up(load: Load, policy: &str, disk: PathBuf, progress: &Progress) -> Result<Lab> {
    let policy: Result<PolicyName, _> = policy.parse();
    let options = LabOptions {
        name: name(),
        policy: policy.map_err(anyhow::Error::msg)?,
        guest: load.guest(),
        disks: vec![disk.into()],
        program: Some(plover()),
        ..LabOptions::default()
    };
    Lab::up(&options, progress)
}

fn accelerator(lab: &Lab) -> String {
    let status = lab.status();
    let said = status.leader().and_then(|leader| leader.more.get("accel"));
    let said = said.and_then(serde_json::Value::as_str);
    said.unwrap_or("unknown").to_owned()
}

/// The guest's rate, per second.
fn measure(
    lab: &Lab,
    load: Load,
    seconds: u64,
    scratch: &Path,
    progress: &Progress,
) -> Result<f64> {
    let dir = tempfile::tempdir_in(scratch)?;
    match load {
        Load::Storm => storm(lab, seconds, dir.path(), progress),
        Load::Pgbench => pgbench(lab, seconds, dir.path()),
    }
}

fn storm(lab: &Lab, seconds: u64, dir: &Path, progress: &Progress) -> Result<f64> {
    let began = Instant::now();
    let storm = Storm::in_lab(lab, WRITERS, &dir.join("record"))?;
    progress.sleep(Duration::from_secs(seconds))?;
    let rate = storm.durable() as f64 / began.elapsed().as_secs_f64();
    storm.settle(lab)?;
    Ok(rate)
}

fn pgbench(lab: &Lab, seconds: u64, dir: &Path) -> Result<f64> {
    let image = Image::find(&LabOptions {
        guest: Guest::Postgres,
        ..LabOptions::default()
    });
    let image = image.map_err(anyhow::Error::msg)?;
    let clients = Clients::in_lab(lab, image.kernel.with_file_name("client"));
    clients.fill(1)?;
    let commits = clients.settle(clients.start(dir, CLIENTS, seconds)?)?;
    Ok(commits.in_time as f64 / seconds as f64)
}

fn print_table(options: &Options, rates: &[Rates; 2], machine: &Machine) {
    println!(
        "{machine}; at most {} rounds of {} s, a disk of {} MiB; medians (least to greatest)\n",
        options.rounds, options.seconds, options.disk_mib
    );
    let line = |what: &str, none: &str, vsmr: &str, ratio: &str| {
        println!("{what:<24} {none:>26} {vsmr:>26} {ratio:>22}");
    };
    line("", "none", "vsmr", "vsmr / none");
    for (load, [none, vsmr]) in Load::ALL.into_iter().zip(rates) {
        if none.is_empty() || vsmr.is_empty() {
            continue;
        }
        let ratio = vsmr.ratio(none).words(2);
        line(load.unit(), &none.words(1), &vsmr.words(1), &ratio);
    }
}
