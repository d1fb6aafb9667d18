//! `./x drill`: an evening's planned work and two crashes, one after another, under load.
//!
//! ```text
//!   lab up ─▶ clients write ─▶ step ─▶ protected, every client answered ─▶ step ─▶ …
//!                                │                                                │
//!                                └─▶ a row: the gap, what was answered            ▼
//!   table  ◀── lost and reset by row ◀── every acknowledged write is read back ◀──┘
//! ```
//!
//! Each round has a lab of its own. A round is good if no acknowledged write is lost, no connection was reset, and only one
//! host at a time sent as the guest. Work on a host must also never leave one replica alone with the guest because that
//! host left the in-sync set. (Where a machine is short of processors another replica, a healthy one, may be taken for lost;
//! that is no fault of the work.)

pub mod report;
pub mod steps;

use crate::experiment::Experiment;
use crate::load::Pressure;
use anyhow::{Context, Result, ensure};
use plover_lab::options::{DiskImage, Options};
use plover_lab::progress::Progress;
use plover_lab::trace::now_us;
use plover_lab::up::is_interruption;
use report::{Report, Round, Row};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use steps::{STEPS, Step};

/// Clients are watched for so long before each row, so that a row's gap is its own.
const CALM: Duration = Duration::from_millis(500);

/// The guest's disk, for backups, and what it grows to.
const DISK_MIB: u64 = 8;
const GROWN_MIB: u64 = 12;

/// Hosts beside the three of the group: one for each row that replaces a host.
const SPARE_HOSTS: u8 = 2;

/// The steps and rounds to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The lab's name.
    pub name: &'static str,
    /// The `plover` program.
    pub program: PathBuf,
    /// How often all of it is done.
    pub rounds: u32,
    /// If not empty: only the steps with these names.
    pub only: Vec<String>,
    /// A newer QEMU, to which all hosts go one by one.
    pub newer_qemu: Option<PathBuf>,
}

impl Plan {
    /// The steps that it asks for, in their order.
    ///
    /// # Errors
    /// There is no step of such a name, or no such QEMU.
    pub fn steps(&self) -> Result<Vec<&'static Step>> {
        for name in &self.only {
            ensure!(
                STEPS.iter().any(|step| step.name == name),
                "there is no step '{name}'; there are {}",
                STEPS.map(|step| step.name).join(", ")
            );
        }
        if let Some(qemu) = &self.newer_qemu {
            ensure!(
                qemu.is_file(),
                "there is no QEMU at {}: name its binary",
                qemu.display()
            );
        }
        let is_wanted = |step: &&Step| match self.only.is_empty() {
            true => !step.needs_newer_qemu || self.newer_qemu.is_some(),
            false => self.only.iter().any(|name| step.name == name),
        };
        let steps: Vec<_> = STEPS.iter().filter(is_wanted).collect();
        ensure!(
            self.newer_qemu.is_some() || !steps.iter().any(|step| step.needs_newer_qemu),
            "the step upgrade-qemu needs a second QEMU: say --newer-qemu, too"
        );
        Ok(steps)
    }

    fn options(&self, disk: PathBuf) -> Result<Options> {
        let mut options = Options {
            name: self.name.parse().map_err(anyhow::Error::msg)?,
            program: Some(self.program.clone()),
            disks: vec![DiskImage {
                max_size_mib: Some(GROWN_MIB),
                ..disk.into()
            }],
            spare: SPARE_HOSTS,
            ..Options::default()
        };
        if self.newer_qemu.is_some() {
            // A microvm has no versions.
            options.machine = Some("q35".into());
        }
        Ok(options)
    }
}

/// Runs it, and stops after a round that was not good.
///
/// # Errors
/// A lab cannot be made, a step fails, or Ctrl-C. Nothing is left in any case. A lost write is not an error: the
/// [`Report`] says so.
pub fn run(plan: &Plan, progress: &Progress) -> Result<Report> {
    let steps = plan.steps()?;
    let mut report = Report::default();
    for number in 1..=plan.rounds {
        if plan.rounds > 1 {
            progress.say(format!("round {number} of {}", plan.rounds));
        }
        let round = round(plan, &steps, progress)?;
        let is_good = round.is_good();
        report.rounds.push(round);
        if !is_good {
            break;
        }
    }
    Ok(report)
}

fn round(plan: &Plan, steps: &[&'static Step], progress: &Progress) -> Result<Round> {
    let scratch = tempfile::tempdir()?;
    let disk = scratch.path().join("disk.raw");
    std::fs::File::create(&disk)?.set_len(DISK_MIB << 20)?;
    let mut options = plan.options(disk)?;
    let overlay = scratch.path().join("overlay.toml");
    if plan.newer_qemu.is_some() {
        std::fs::write(&overlay, steps::SAME_MACHINE)?;
        options.overlay = Some(overlay);
    }
    plover_lab::down::down(&options.name)?;
    let lab = Experiment::begin(&options, Pressure::default(), progress)?;
    let mut scene = Scene {
        lab,
        rows: Vec::new(),
        scratch: scratch.path().into(),
        newer_qemu: plan.newer_qemu.clone(),
        spares: (options.replicas()..).take(SPARE_HOSTS.into()).collect(),
    };
    for step in steps {
        progress.say(format!("step {}: {}", step.name, step.what));
        if let Err(error) = (step.run)(&mut scene) {
            if is_interruption(&error) {
                return Err(error);
            }
            scene.lab.keep_evidence();
            let what = format!("the step {} failed; {}", step.name, repeat(plan, step));
            return Err(error.context(what));
        }
    }
    let Scene { lab, rows, .. } = scene;
    Ok(Round::new(rows, lab.finish()?))
}

/// How to run a step once more.
fn repeat(plan: &Plan, step: &Step) -> String {
    let more = match plan.newer_qemu {
        Some(_) => " --newer-qemu",
        None => "",
    };
    format!("./x drill --only {}{more} runs it alone", step.name)
}

/// A lab in the middle of a round.
#[derive(Debug)]
pub struct Scene {
    lab: Experiment,
    rows: Vec<Row>,
    scratch: PathBuf,
    newer_qemu: Option<PathBuf>,
    /// Hosts on which no replica was started yet.
    spares: Vec<u8>,
}

impl Scene {
    fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Does one thing, waits until the guest is protected and every client is answered, and notes what the clients saw of
    /// it. `host` is the one on which planned work is done.
    fn row(
        &mut self,
        name: &'static str,
        host: Option<u8>,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.lab.wait_until_protected()?;
        self.lab.wait_for_answers(now_us())?;
        self.lab.progress().sleep(CALM)?;
        let (begun_us, before) = (now_us(), self.lab.counts()?);
        work(self).context(name)?;
        self.lab.wait_until_protected()?;
        let done_us = now_us();
        self.lab.wait_for_answers(done_us)?;
        let (gap, after) = (self.lab.gap(begun_us)?, self.lab.counts()?);
        let row = Row {
            name,
            begun_us,
            took_us: done_us - begun_us,
            silence_us: gap.silence_us,
            slowest_us: gap.slowest_us,
            requests: after.acked - before.acked,
            lost: 0,
            alone: host.map(|host| self.alone(host, begun_us)),
            resets: after.resets.len() - before.resets.len(),
        };
        self.lab.progress().say(format!("done: {row}"));
        self.rows.push(row);
        Ok(())
    }

    /// How many in-sync sets with one member were committed since then, which `host` had left. Each replica tells of them.
    fn alone(&mut self, host: u8, since_us: u64) -> usize {
        let sets = self.lab.events().iter().filter(|event| {
            let number = |key| event.number(key).unwrap_or_default();
            let has_left = number("gone") & (1 << host) != 0;
            event.mono_us > since_us
                && event.what == "in_sync"
                && has_left
                && number("in_sync").count_ones() < 2
        });
        let entries: BTreeSet<_> = sets.map(|event| event.number("at")).collect();
        entries.len()
    }

    /// Does something that waits by itself, on a thread: meanwhile the events of the lab are told, and Ctrl-C is heard.
    fn aside<T: Send + 'static>(
        &mut self,
        what: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let thread = std::thread::spawn(work);
        self.lab.wait(what, |_| Ok(thread.is_finished()))?;
        thread.join().expect("no panic")
    }
}
