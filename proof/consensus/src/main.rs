//! `plover-consensus-proof`: many simulated seeds, or one with its trace; or the model checker.

use clap::{Parser, Subcommand};
use plover_consensus_proof::model::{self, Bounds, Group};
use plover_consensus_proof::sim::{self, Options, Outcome, TraceMode};
use plover_sim::seeds::{Batch, conclude};
use std::process::ExitCode;
use std::time::Duration;

/// Looks for broken promises of the consensus core.
#[derive(Debug, Parser)]
#[command(name = "plover-consensus-proof")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Simulates whole groups under faults. Every seed is one run that repeats itself exactly.
    Sim(Sim),
    /// Explores every state of three replicas that a few steps can reach.
    Model(ModelArguments),
}

#[derive(Debug, clap::Args)]
struct Sim {
    /// Run this one seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print everything that happens in it.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run this many seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// Start with this one.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Replicas in each group; by default 3 to 9, mostly 5.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
    replicas: Option<u8>,
    /// Put a known bug back.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(sim::CANARIES.map(|(name, _)| name)))]
    canary: Option<String>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Threads; by default one for each core.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, clap::Args)]
struct ModelArguments {
    /// Steps on the longest path.
    #[arg(long, default_value_t = Bounds::default().depth)]
    depth: u8,
    /// Proposals on one path.
    #[arg(long, default_value_t = Bounds::default().proposals)]
    proposals: u8,
    /// Timeouts on one path.
    #[arg(long, default_value_t = Bounds::default().timeouts)]
    timeouts: u8,
    /// Processes that lose their memory on one path.
    #[arg(long, default_value_t = Bounds::default().forgets)]
    forgets: u8,
    /// Records that arrive twice on one path.
    #[arg(long, default_value_t = Bounds::default().doubles)]
    doubles: u8,
    /// Give up after so many seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Put a known bug back.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(sim::CANARIES.map(|(name, _)| name)))]
    canary: Option<String>,
}

fn main() -> ExitCode {
    match Arguments::parse().what {
        What::Sim(arguments) => simulate(&arguments),
        What::Model(arguments) => explore(&arguments),
    }
}

fn simulate(arguments: &Sim) -> ExitCode {
    let mut options = Options {
        replicas: arguments.replicas.map(usize::from),
        canary: canary(arguments.canary.as_deref()),
        trace: TraceMode::Off,
    };
    if arguments.trace {
        options.trace = TraceMode::Print;
    } else if arguments.seed.is_some() {
        options.trace = TraceMode::Sum;
    }
    let headline = |outcome: &Outcome| sim::headline(outcome, &options);
    let conclude = |outcomes: &[Outcome]| {
        let tail = |seed| sim::tail_of(seed, &options);
        conclude(outcomes, (!arguments.trace).then_some(tail), headline)
    };
    if let Some(seed) = arguments.seed {
        let outcome = sim::run(seed, &options);
        println!(
            "seed {seed}: {} simulated, {} happenings, trace {:016x}",
            outcome.simulated, outcome.happenings, outcome.trace_sum
        );
        return conclude(&[outcome]);
    }
    let batch = Batch {
        seeds: arguments.start..arguments.start + arguments.seeds,
        threads: arguments.threads,
        keep_going: arguments.keep_going,
        sums: false,
    };
    conclude(&batch.run(|seed| sim::run(seed, &options), headline))
}

fn canary(name: Option<&str>) -> apus::Canary {
    let mut canaries = sim::CANARIES.iter();
    let canary = canaries.find(|(known, _)| name == Some(*known));
    canary.map(|(_, canary)| *canary).unwrap_or_default()
}

fn explore(arguments: &ModelArguments) -> ExitCode {
    let bounds = Bounds {
        depth: arguments.depth,
        proposals: arguments.proposals,
        timeouts: arguments.timeouts,
        forgets: arguments.forgets,
        doubles: arguments.doubles,
    };
    let group = Group {
        bounds,
        canary: canary(arguments.canary.as_deref()),
    };
    let patience = Duration::from_secs(arguments.seconds);
    let report = model::explore(group, patience);
    println!("{report}");
    if report.broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
