//! `./x bench`: every workload under every policy, in one go.
//!
//! ```text
//!  plan ─▶ turns: a lab each, policies in alternation ─▶ state: each figure on disk at once
//!            │ up                                          │
//!            ├ workloads: client, counters around it       ▼
//!            └ down                                      report: terminal, JSON
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
mod state;
mod variant;
mod workload;

pub(crate) use guests::build as build_guest;

use crate::interrupt::{self, Interrupted};
use crate::lab::{self, Lab, plover};
use crate::machine::Machine;
use anyhow::{Context, Result};
use plan::{Cells, Plan, Turn};
use state::{Outcome, Run, State};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use variant::Variant;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The Redis workloads under the systems of the papers, as many rounds (at most two) as fit
    /// into six minutes; the default.
    #[arg(long)]
    quick: bool,
    /// Every workload under every policy, five rounds. One that was stopped goes on where it
    /// stopped; `--anew` begins again.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Do not go on with an earlier run.
    #[arg(long)]
    anew: bool,
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
    /// The folder for report.json and measurements.jsonl [default: bench/matrix
    /// beside the program's build].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Further options for `plover lab up`, such as `--machine q35` or `--vcpus 2`.
    #[arg(last = true)]
    lab: Vec<String>,
}

/// The time for `--quick`: it promises six minutes, including its report.
const QUICK_BUDGET: Duration = Duration::from_secs(345);

/// A first guess at how long a lab takes to come up and go down, to estimate the time left.
const LAB_GUESS: Duration = Duration::from_secs(16);

/// If a lab took this long to fail, it is not tried again in the next round.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(options: &Options) -> Result<()> {
    let plan = plan(
        options,
        &policies::names(false),
        &policies::names(!options.full),
    )?;
    let out = match &options.out {
        Some(out) => out.clone(),
        None => beside_the_build("bench/matrix")?,
    };
    let go_on = options.full && !options.anew;
    let mut state = State::open(&out.join("measurements.jsonl"), &plan, &plover(), go_on)?;
    if !state.runs.is_empty() {
        eprintln!(
            "going on with a run that has {} measurements",
            state.runs.len()
        );
    }
    interrupt::watch()?;
    take_down_what_was_left(&out);
    let scratch = out.join("scratch");
    std::fs::create_dir_all(&scratch)
        .with_context(|| format!("cannot make {}", scratch.display()))?;
    let mut bench = Bench {
        plan: &plan,
        refused: policies::refused(),
        out: &out,
        began: Instant::now(),
        spent: Spent::default(),
        given_up: BTreeMap::new(),
        accel: String::new(),
    };
    let done = bench.turns(&mut state);
    let accel = bench.accel;
    // The scratch folder holds nothing that is needed later.
    let _ = std::fs::remove_dir_all(&scratch);
    // The report is written even if the run fails.
    if !state.runs.is_empty() {
        report::write(&plan, &state.runs, &Machine::this(&accel), &out)?;
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

/// A folder in the build folder that this program lies in.
fn beside_the_build(name: &str) -> Result<PathBuf> {
    let me = std::env::current_exe().context("cannot find the program that is running")?;
    let target = me.ancestors().nth(2).context("this program lies nowhere")?;
    Ok(target.join(name))
}

/// How long turns took. The time left is estimated from it.
#[derive(Debug, Default)]
struct Spent {
    labs: Vec<Duration>,
}

impl Spent {
    fn lab(&self) -> Duration {
        match self.labs.len() {
            0 => LAB_GUESS,
            count => self.labs.iter().sum::<Duration>() / count as u32,
        }
    }

    fn turn(&self, turn: &Turn, plan: &Plan) -> Duration {
        let each = Duration::from_millis(plan.warm_up_ms + plan.span_ms + 100);
        self.lab() + each * turn.workloads.len() as u32
    }
}

struct Bench<'a> {
    plan: &'a Plan,
    refused: BTreeMap<String, String>,
    out: &'a Path,
    began: Instant,
    spent: Spent,
    /// Guests and policies whose lab does not come up.
    given_up: BTreeMap<(&'static str, String), String>,
    accel: String,
}

impl Bench<'_> {
    /// Measures the cells that are not measured yet.
    fn turns(&mut self, state: &mut State) -> Result<()> {
        let mut turns = self.plan.turns();
        turns.retain_mut(|turn| {
            let (round, policy) = (turn.round, turn.policy.clone());
            turn.workloads
                .retain(|workload| !state.has(round, workload.name, &policy));
            !turn.workloads.is_empty()
        });
        for (place, turn) in turns.iter().enumerate() {
            interrupt::check()?;
            if let Some(why) = self.hopeless(turn) {
                for workload in &turn.workloads {
                    self.missing(state, turn, workload.name, why.clone())?;
                }
                continue;
            }
            let next = self.spent.turn(turn, self.plan);
            let budget = self.plan.budget.filter(|_| turn.round > 1);
            if budget.is_some_and(|budget| self.began.elapsed() + next > budget) {
                eprintln!(
                    "six minutes hold no more: {} labs are left out",
                    turns.len() - place
                );
                break;
            }
            let ahead = turns[place..]
                .iter()
                .filter(|turn| self.hopeless(turn).is_none());
            let left: Duration = ahead.map(|turn| self.spent.turn(turn, self.plan)).sum();
            eprintln!(
                "[{}/{}] round {}/{}: {}, {}; {} left",
                place + 1,
                turns.len(),
                turn.round,
                self.plan.rounds,
                turn.guest,
                turn.policy,
                minutes(left.min(self.budget_left().unwrap_or(left)))
            );
            self.turn(turn, state)?;
        }
        Ok(())
    }

    fn budget_left(&self) -> Option<Duration> {
        Some(self.plan.budget?.saturating_sub(self.began.elapsed()))
    }

    fn hopeless(&self, turn: &Turn) -> Option<String> {
        let tried = self.given_up.get(&(turn.guest, turn.policy.clone()));
        self.refused.get(base(&turn.policy)).or(tried).cloned()
    }

    /// One lab, one workload after the other.
    fn turn(&mut self, turn: &Turn, state: &mut State) -> Result<()> {
        let began = Instant::now();
        let variant = Variant::parse(&turn.policy)?;
        let options = [
            &["--guest".to_owned(), turn.guest.to_owned()],
            &variant.options(&self.out.join("scratch/settings.toml"))?[..],
            &self.plan.lab[..],
        ]
        .concat();
        // If we are killed, the next run takes this lab down.
        let _ = std::fs::write(self.out.join("lab"), lab::own_name());
        let up = guests::build(turn.guest).and_then(|()| Lab::up(variant.policy, &options));
        let lab = match up {
            Ok(lab) => lab,
            Err(error) => return self.no_lab(turn, state, began.elapsed(), error),
        };
        if let Some(accel) = lab
            .leader()
            .ok()
            .and_then(|l| l["more"]["accel"].as_str().map(Into::into))
        {
            self.accel = accel;
        }
        let (up, scratch) = (began.elapsed(), self.out.join("scratch"));
        for workload in &turn.workloads {
            let measured = measure::measure(&lab, workload, self.plan.spans(), &scratch);
            match measured {
                Ok(figures) => state.add(Run {
                    round: turn.round,
                    workload: workload.name.into(),
                    policy: turn.policy.clone(),
                    outcome: Outcome::Measured(Box::new(figures)),
                })?,
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => self.missing(state, turn, workload.name, format!("{error:#}"))?,
            }
        }
        let down = Instant::now();
        drop(lab);
        let _ = std::fs::remove_file(self.out.join("lab"));
        self.spent.labs.push(up + down.elapsed());
        Ok(())
    }

    fn no_lab(
        &mut self,
        turn: &Turn,
        state: &mut State,
        took: Duration,
        error: anyhow::Error,
    ) -> Result<()> {
        if error.is::<Interrupted>() {
            return Err(error);
        }
        let why = format!("{error:#}");
        for workload in &turn.workloads {
            self.missing(state, turn, workload.name, why.clone())?;
        }
        if took > PATIENCE {
            self.given_up.insert((turn.guest, turn.policy.clone()), why);
        }
        Ok(())
    }

    fn missing(&self, state: &mut State, turn: &Turn, workload: &str, why: String) -> Result<()> {
        if !self.refused.contains_key(base(&turn.policy)) {
            eprintln!("{workload} under {}: {why}", turn.policy);
        }
        state.add(Run {
            round: turn.round,
            workload: workload.into(),
            policy: turn.policy.clone(),
            outcome: Outcome::Missing(why),
        })
    }
}

/// The policy itself, or the policy of which it is a variant.
fn base(policy: &str) -> &str {
    policy.split('+').next().unwrap_or(policy)
}

/// Takes down the lab of a run that was killed: its name is in a file, and the process whose number is
/// in the name has ended.
fn take_down_what_was_left(out: &Path) {
    let note = out.join("lab");
    let Ok(name) = std::fs::read_to_string(&note) else {
        return;
    };
    let owner = name
        .strip_prefix("bench")
        .and_then(|pid| pid.parse::<u32>().ok());
    if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
        eprintln!("taking down the lab of a run that was killed");
        lab::down(&name);
        let _ = std::fs::remove_file(note);
    }
}

fn minutes(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests;
