//! The findings of a run: rows, what was left out, and how both are shown.

mod claims;
mod table;

use super::core_alone::CoreAlone;
use super::measured::Measured;
use super::plan::{Load, Plan, Setup};
use crate::claims::Claim;
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// One setup under one load, round by round.
#[derive(Debug, Serialize)]
struct Row {
    setup: Setup,
    load: Load,
    rounds: BTreeMap<usize, Measured>,
}

impl Row {
    fn sample(&self, figure: impl Fn(&Measured) -> f64) -> Sample {
        self.rounds.values().map(figure).collect()
    }

    fn p50_us(&self) -> Sample {
        self.sample(|measured| measured.p50_us)
    }

    fn p99_us(&self) -> Sample {
        self.sample(|measured| measured.p99_us)
    }

    fn entries_per_s(&self) -> Sample {
        self.sample(|measured| measured.entries_per_s)
    }

    /// A figure that some systems do not have.
    fn known(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Option<Sample> {
        self.rounds.values().map(figure).collect()
    }

    fn cpu_us(&self) -> Option<Sample> {
        self.known(|measured| measured.cpu_us)
    }

    fn allocations(&self) -> Option<Sample> {
        self.known(|measured| measured.allocations)
    }

    fn entries_per_sync(&self) -> Option<Sample> {
        self.known(|measured| measured.entries_per_sync)
    }
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    /// Whether spinners of the lowest class kept idle cores awake.
    cores_kept_awake: bool,
    /// The folder that stood for the disk, and its file system.
    disk: String,
    versions: BTreeMap<&'static str, String>,
    rounds: usize,
    warm_up_ms: u64,
    span_ms: u64,
    core_alone: Vec<CoreAlone>,
    rows: Vec<Row>,
    /// The systems and loads that could not be measured, and why.
    left_out: BTreeMap<String, String>,
    claims: Vec<Claim>,
}

impl Report {
    /// The state of idle cores during the run.
    fn idle_cores(&self) -> &'static str {
        match self.cores_kept_awake {
            true => "kept awake by spinners of the idle class",
            false => "may sleep",
        }
    }

    pub fn new(plan: &Plan, disk: &Path, cores_kept_awake: bool) -> Self {
        let versions = [
            ("etcd", version("etcd-server")),
            ("ZooKeeper", version("zookeeper")),
        ];
        Self {
            machine: Machine::this(""),
            cores_kept_awake,
            disk: format!("{} ({})", disk.display(), file_system(disk)),
            versions: versions.into(),
            rounds: plan.rounds,
            warm_up_ms: plan.warm_up.as_millis() as u64,
            span_ms: plan.span.as_millis() as u64,
            core_alone: Vec::new(),
            rows: Vec::new(),
            left_out: BTreeMap::new(),
            claims: Vec::new(),
        }
    }

    pub fn add_core(&mut self, core: CoreAlone) {
        self.core_alone.push(core);
    }

    pub fn add(&mut self, setup: Setup, load: Load, round: usize, measured: Measured) {
        let same = |row: &&mut Row| row.setup == setup && row.load == load;
        match self.rows.iter_mut().find(same) {
            Some(row) => drop(row.rounds.insert(round, measured)),
            None => self.rows.push(Row {
                setup,
                load,
                rounds: [(round, measured)].into(),
            }),
        }
    }

    /// Notes that a system or load failed, or sometimes failed. Figures of other rounds are kept.
    pub fn leave_out(&mut self, what: String, why: String) {
        self.left_out.insert(what, why);
    }

    fn row(&self, setup: Setup, load: Load) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.setup == setup && row.load == load)
    }

    /// Prints the table and the claims. Writes `report.json` into `folder`.
    pub fn write(mut self, folder: &Path) -> Result<()> {
        // The systems ran in the plan's order. The report groups them for reading.
        self.rows.sort_by_key(|row| {
            (
                row.setup.medium,
                row.load,
                row.setup.system,
                row.setup.replicas,
            )
        });
        self.claims = claims::all(&self);
        print!("{}", table::text(&self));
        println!("{}", crate::report::save(folder, &self)?.display());
        Ok(())
    }
}

/// The installed version of a Debian package.
fn version(package: &str) -> String {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${Version}", package])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map_or_else(
            || "not installed".into(),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
}

/// The type of the file system that holds `folder`, as `/proc/self/mounts` says.
fn file_system(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let holding = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        folder.starts_with(place).then_some((place.len(), kind))
    });
    holding
        .max()
        .map_or_else(|| "unknown".into(), |(_, kind)| kind.to_owned())
}
