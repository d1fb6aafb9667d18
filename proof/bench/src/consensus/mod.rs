//! `./x bench consensus`: the cost of an entry of the log, beside its limits and its peers.
//!
//! Everything is measured in one run and in rounds. Each round puts every system under every load once,
//! for a second or less, and every other round goes backwards, so that a change of the machine's speed
//! hits all alike. Figures are the medians of the rounds, with the least and the greatest. Ratios are
//! taken round by round.
//!
//! ```text
//!   plan      which systems, which loads
//!   subject   a system that runs: ours (`ours`), others' (`peers`), the limits (`floors`)
//!   measured  latencies and CPU time of one load
//!   report    table, JSON, and what must hold
//! ```
//!
//! A system that cannot run here is named, with the reason, and left out.

mod awake;
mod core_alone;
mod floors;
mod load;
mod measured;
mod ours;
mod peers;
mod plan;
mod report;
mod subject;

pub(crate) use awake::run as keep_awake;
pub(crate) use ours::ReplicaOptions;
pub(crate) use ours::replica::run as run_replica;

use crate::children::{Scratch, check};
use anyhow::{Context, Result, bail};
use load::Spans;
use plan::{FabricKind, Medium, Plan, Series, Setup, System};
use report::Report;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use subject::Subject;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What the claims need, in a few minutes.
    #[arg(long)]
    quick: bool,
    /// Only systems with one of these words in their description, such as
    /// `--only 'etcd;plover shm, memory'`.
    #[arg(long, value_delimiter = ';')]
    only: Vec<String>,
    /// Only loads with one of these words in their description, such as `--load '64 B, 1 con'`.
    #[arg(long, value_delimiter = ';')]
    load: Vec<String>,
    /// How often everything is measured.
    #[arg(long)]
    rounds: Option<usize>,
    /// The folder for report.json [default: bench/consensus beside the program's
    /// build].
    #[arg(long)]
    out: Option<PathBuf>,
    /// A folder on the disk that is measured [default: beside the program's build].
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Let idle cores sleep. By default a spinner of the lowest class keeps them awake, so that
    /// no figure hangs on whether a wake-up met a sleeping core.
    #[arg(long)]
    let_sleep: bool,
}

/// A tmpfs of every Linux.
const MEMORY: &str = "/dev/shm";

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut fabrics = vec![FabricKind::Tcp, FabricKind::Shm];
    if cfg!(feature = "ofi") {
        fabrics.extend([FabricKind::Ofi, FabricKind::OfiSealed]);
    }
    let mut plan = match options.quick {
        true => Plan::quick(&fabrics),
        false => Plan::full(&fabrics),
    };
    plan.rounds = options.rounds.unwrap_or(plan.rounds);
    plan.keep(&options.only, &options.load);
    if plan.series.is_empty() {
        bail!(
            "--only names no system, or --load no load of it: try 'plover', 'floor', 'etcd' or \
             'zookeeper', and '64 B' or '24 con'"
        );
    }
    let built = crate::report::folder()?;
    let disk = options.disk.clone().unwrap_or_else(|| built.clone());
    if is_tmpfs(&disk)? {
        bail!(
            "{} lies in memory: name a folder on a disk with --disk",
            disk.display()
        );
    }
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| built.join("consensus"));
    let mut bench = Bench {
        memory: Scratch::new(Path::new(MEMORY))?,
        disk: Scratch::new(&disk)?,
        kept: BTreeMap::new(),
        failures: BTreeMap::new(),
        report: Report::new(&plan, &disk, !options.let_sleep),
    };
    eprintln!(
        "{} series, {} rounds, at least {:.0} s",
        plan.series.len(),
        plan.rounds,
        plan.seconds_at_least()
    );
    if !cfg!(feature = "ofi") {
        let why = "built without the feature 'ofi': install libfabric-dev";
        bench.report.leave_out("plover ofi".into(), why.into());
    }
    for batch in [1, 24] {
        bench.report.add_core(core_alone::measure(batch)?);
    }
    let awake = match options.let_sleep {
        true => None,
        false => Some(awake::keep(&bench.memory.folder("awake")?)?),
    };
    let done = bench.rounds(&plan);
    drop(awake);
    let Bench { report, kept, .. } = bench;
    drop(kept);
    // Of a run that was ended, too.
    report.write(&out)?;
    done
}

fn is_tmpfs(folder: &Path) -> Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let found = rustix::fs::statfs(folder)
        .with_context(|| format!("cannot look at {}", folder.display()))?;
    Ok(found.f_type == TMPFS_MAGIC)
}

struct Bench {
    memory: Scratch,
    disk: Scratch,
    /// Systems that live through all rounds.
    kept: BTreeMap<Setup, Box<dyn Subject>>,
    /// How often a system failed. Its earlier figures stay in the report.
    failures: BTreeMap<Setup, u32>,
    report: Report,
}

/// A system that fails is started anew in the next round, until it has failed this often. Then it is
/// left out.
const FAILURES_MAX: u32 = 2;

impl Bench {
    /// All rounds. An error if it was ended by a signal.
    fn rounds(&mut self, plan: &Plan) -> Result<()> {
        let start = Instant::now();
        for round in 0..plan.rounds {
            let mut series: Vec<_> = plan.series.iter().collect();
            if round % 2 == 1 {
                series.reverse();
            }
            for (number, series) in series.iter().enumerate() {
                if self.failures.get(&series.setup) >= Some(&FAILURES_MAX) {
                    continue;
                }
                eprintln!(
                    "{:>4.0} s  round {}/{}, {}/{}: {}",
                    start.elapsed().as_secs_f64(),
                    round + 1,
                    plan.rounds,
                    number + 1,
                    plan.series.len(),
                    series.setup
                );
                let done = self.series(plan, series, round);
                check()?;
                if let Err(error) = done {
                    eprintln!("        failed: {error:#}");
                    let failed = self.failures.entry(series.setup).or_default();
                    *failed += 1;
                    let why = format!("failed {failed} times, at last: {error:#}");
                    self.report.leave_out(series.setup.to_string(), why);
                }
            }
        }
        Ok(())
    }

    fn series(&mut self, plan: &Plan, series: &Series, round: usize) -> Result<()> {
        let mut subject = match self.kept.remove(&series.setup) {
            Some(subject) => subject,
            None => self.start(series.setup)?,
        };
        let spans = Spans {
            warm_up: plan.warm_up,
            span: plan.span,
        };
        for &load in &series.loads {
            check()?;
            let measured = subject
                .measure(load, spans)
                .with_context(|| load.to_string())?;
            if measured.entries == 0 {
                // For example while it elects a leader. There is no median of nothing.
                let what = format!("{}, {load}, round {}", series.setup, round + 1);
                self.report.leave_out(what, "not one entry in time".into());
                continue;
            }
            self.report.add(series.setup, load, round, measured);
        }
        if subject.outlives_the_round() {
            self.kept.insert(series.setup, subject);
        }
        Ok(())
    }

    fn start(&self, setup: Setup) -> Result<Box<dyn Subject>> {
        let name = setup.to_string().replace([' ', ','], "-");
        let folder = match setup.medium {
            Medium::Memory => self.memory.folder(&name),
            Medium::Disk => self.disk.folder(&name),
        }?;
        Ok(match setup.system {
            System::PingPong(kind) | System::Floor(kind) => floors::start(setup, kind, &folder)?,
            System::Echo => floors::echo(),
            System::Fdatasync => floors::fdatasync(&folder)?,
            System::Plover(kind) => Box::new(ours::Group::start(setup, kind, &folder)?),
            System::PloverClients => Box::new(ours::clients::Served::start(setup, &folder)?),
            System::Etcd => Box::new(peers::etcd::Etcd::start(&folder)?),
            System::ZooKeeper => Box::new(peers::zookeeper::ZooKeeper::start(&folder)?),
        })
    }
}
