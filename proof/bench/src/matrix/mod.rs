//! `./x bench`: every workload under every policy, in one go.
//!
//! ```text
//!  plan ─▶ turns: a lab each, policies in alternation ─▶ report: JSON after each, terminal
//!            │ up
//!            ├ workloads: client, counters around it
//!            └ down
//! ```
//!
//! A turn begins with a fresh lab, so that no policy inherits what another did to the guest. Rounds
//! repeat the whole, so that a drift of the machine's speed hits all policies alike. Ratios are taken
//! within a round. A cell that cannot be measured is shown with the reason.

mod figures;
mod guests;
mod measure;
mod observe;
mod plan;
mod policies;
mod report;
mod workload;

pub(crate) use guests::build as build_guest;

use crate::children::check;
use crate::lab::Lab;
use crate::machine::Machine;
use crate::variant::Variant;
use anyhow::{Context, Result, ensure};
use figures::{Outcome, Run};
use plan::{Cells, Plan, Turn};
use plover_lab::prerequisites::on_path;
use report::Report;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workload::Workload;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The Redis workloads under the systems of the papers, as many rounds (at most two) as fit
    /// into six minutes; the default.
    #[arg(long)]
    quick: bool,
    /// Every workload under every policy, five rounds.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Only these cells: WORKLOAD, /POLICY or WORKLOAD/POLICY; several may be given. What
    /// `--quick` leaves out can be named too, and a policy with other settings, as
    /// `/vsmr+slot_max_ms=20`.
    #[arg(long, value_name = "CELLS")]
    only: Vec<Cells>,
    /// How often everything is measured.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// How long each measurement takes.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// The folder for report.json [default: bench/matrix beside the program's build].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Further options for `plover lab up`, such as `--machine q35` or `--vcpus 2`.
    #[arg(last = true)]
    lab: Vec<String>,
}

/// The time for `--quick`: it promises six minutes, including its report.
const QUICK_BUDGET: Duration = Duration::from_secs(345);

/// A first guess at how long a lab takes to come up and go down.
const LAB_GUESS: Duration = Duration::from_secs(16);

/// If a lab took this long to fail, it is not tried again in the next round.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut plan = plan(
        options,
        &policies::names(false),
        &policies::names(!options.full),
    )?;
    leave_out_without_client(&mut plan, on_path)?;
    let out = match &options.out {
        Some(out) => out.clone(),
        None => crate::report::folder()?.join("matrix"),
    };
    let scratch = tempfile::tempdir().context("cannot make a folder for temporary files")?;
    let mut bench = Bench {
        plan: &plan,
        refused: policies::refused(),
        out: &out,
        scratch: scratch.path(),
        began: Instant::now(),
        labs: Vec::new(),
        given_up: BTreeMap::new(),
        accels: BTreeSet::new(),
        runs: Vec::new(),
    };
    let done = bench.turns();
    // The report is written even if the run fails.
    if !bench.runs.is_empty() {
        bench.report().print(&out)?;
    }
    done
}

fn plan(options: &Options, known: &[String], chosen: &[String]) -> Result<Plan> {
    for cells in &options.only {
        cells.check(known)?;
    }
    let everything = options.full || !options.only.is_empty();
    let redis = |workload: &&workload::Workload| everything || workload.guest == "redis";
    let mut policies = if everything { known } else { chosen }.to_vec();
    for variant in options.only.iter().filter_map(Cells::variant) {
        if !policies.iter().any(|policy| policy == variant) {
            policies.push(variant.to_owned());
        }
    }
    Ok(Plan {
        rounds: options.rounds.unwrap_or(if options.full { 5 } else { 2 }),
        warm_up_ms: if options.full { 1000 } else { 500 },
        span_ms: options.seconds.unwrap_or(if options.full { 5 } else { 2 }) * 1000,
        workloads: workload::ALL
            .iter()
            .filter(redis)
            .map(|workload| workload.name)
            .collect(),
        policies,
        only: options.only.clone(),
        lab: options.lab.clone(),
        // A user who asks for cells or rounds gets all of them.
        budget: (!everything && options.rounds.is_none()).then_some(QUICK_BUDGET),
    })
}

/// Leaves out the workloads whose client this host lacks. An error if none remains.
fn leave_out_without_client(plan: &mut Plan, has: impl Fn(&str) -> bool) -> Result<()> {
    let lacks = |workload: &&Workload| {
        let client = workload.client.program();
        client.is_some_and(|program| !has(program))
    };
    let asked = plan.turns().into_iter().flat_map(|turn| turn.workloads);
    let left_out: BTreeSet<_> = asked.filter(lacks).map(|it| it.name).collect();
    if left_out.is_empty() {
        return Ok(());
    }
    let names = left_out.iter().copied().collect::<Vec<_>>().join(", ");
    plan.workloads.retain(|name| !left_out.contains(name));
    ensure!(
        !plan.turns().is_empty(),
        "{names}: this host lacks the client: run 'apt-get install wrk'"
    );
    eprintln!("left out, since this host lacks their client ('apt-get install wrk'): {names}");
    Ok(())
}

struct Bench<'a> {
    plan: &'a Plan,
    refused: BTreeMap<String, String>,
    /// Where the report goes.
    out: &'a Path,
    /// For files of clients and labs.
    scratch: &'a Path,
    began: Instant,
    /// How long each lab took to come up and go down.
    labs: Vec<Duration>,
    /// Guests and policies whose lab does not come up.
    given_up: BTreeMap<(&'static str, String), String>,
    /// The accelerators of the guests.
    accels: BTreeSet<String>,
    runs: Vec<Run>,
}

impl Bench<'_> {
    fn turns(&mut self) -> Result<()> {
        let turns = self.plan.turns();
        for (place, turn) in turns.iter().enumerate() {
            check()?;
            if let Some(why) = self.hopeless(turn) {
                self.missing(turn, &why);
                continue;
            }
            let budget = self.plan.budget.filter(|_| turn.round > 1);
            if budget.is_some_and(|budget| self.began.elapsed() + self.time_of(turn) > budget) {
                eprintln!(
                    "six minutes hold no more: {} labs are left out",
                    turns.len() - place
                );
                break;
            }
            eprintln!(
                "[{}/{}] round {}/{}: {}, {}",
                place + 1,
                turns.len(),
                turn.round,
                self.plan.rounds,
                turn.guest,
                turn.policy
            );
            self.turn(turn)?;
            // So that a run that is killed leaves what it had.
            self.report().save(self.out)?;
        }
        Ok(())
    }

    /// An estimate, from the labs so far.
    fn time_of(&self, turn: &Turn) -> Duration {
        let lab = match self.labs.len() {
            0 => LAB_GUESS,
            count => self.labs.iter().sum::<Duration>() / count as u32,
        };
        let each = Duration::from_millis(self.plan.warm_up_ms + self.plan.span_ms + 100);
        lab + each * turn.workloads.len() as u32
    }

    fn report(&self) -> Report<'_> {
        let accels: Vec<_> = self.accels.iter().map(String::as_str).collect();
        Report::new(self.plan, &self.runs, Machine::this(&accels.join(" and ")))
    }

    fn hopeless(&self, turn: &Turn) -> Option<String> {
        let tried = self.given_up.get(&(turn.guest, turn.policy.clone()));
        self.refused.get(base(&turn.policy)).or(tried).cloned()
    }

    /// One lab, one workload after the other.
    fn turn(&mut self, turn: &Turn) -> Result<()> {
        let began = Instant::now();
        let variant = Variant::parse(&turn.policy)?;
        let asked = self.plan.lab.iter().any(|word| word.starts_with("--accel"));
        let accel = turn.accel().filter(|_| !asked);
        let accel = accel.map(|accel| vec!["--accel".to_owned(), accel.to_owned()]);
        let options = [
            &["--guest".to_owned(), turn.guest.to_owned()][..],
            &accel.unwrap_or_default()[..],
            &variant.options(&self.scratch.join("settings.toml"))?[..],
            &self.plan.lab[..],
        ]
        .concat();
        let up = guests::build(turn.guest).and_then(|()| Lab::up(variant.policy, &options));
        let lab = match up {
            Ok(lab) => lab,
            Err(error) => {
                check()?;
                let why = format!("{error:#}");
                self.missing(turn, &why);
                if began.elapsed() > PATIENCE {
                    self.given_up.insert((turn.guest, turn.policy.clone()), why);
                }
                return Ok(());
            }
        };
        if let Some(accel) = lab
            .leader()
            .ok()
            .and_then(|l| l["more"]["accel"].as_str().map(Into::into))
        {
            self.accels.insert(accel);
        }
        let up = began.elapsed();
        for workload in &turn.workloads {
            let measured = measure::measure(&lab, workload, self.plan.spans(), self.scratch);
            check()?;
            let outcome = match measured {
                Ok(figures) => Outcome::Measured(Box::new(figures)),
                Err(error) => Outcome::Missing(format!("{error:#}")),
            };
            self.note(turn, workload.name, outcome);
        }
        let down = Instant::now();
        drop(lab);
        self.labs.push(up + down.elapsed());
        Ok(())
    }

    /// Nothing of a turn could be measured.
    fn missing(&mut self, turn: &Turn, why: &str) {
        for workload in &turn.workloads {
            self.note(turn, workload.name, Outcome::Missing(why.to_owned()));
        }
    }

    fn note(&mut self, turn: &Turn, workload: &str, outcome: Outcome) {
        if let Outcome::Missing(why) = &outcome {
            if !self.refused.contains_key(base(&turn.policy)) {
                eprintln!("{workload} under {}: {why}", turn.policy);
            }
        }
        self.runs.push(Run {
            round: turn.round,
            workload: workload.into(),
            policy: turn.policy.clone(),
            outcome,
        });
    }
}

/// The policy itself, or the policy of which it is a variant.
fn base(policy: &str) -> &str {
    policy.split('+').next().unwrap_or(policy)
}

#[cfg(test)]
mod tests;
