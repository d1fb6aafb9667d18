//! `plover-consensus-proof`: many simulated seeds, or one with its trace; or the model checker.

use apus::Canary;
use clap::{Parser, Subcommand};
use plover_consensus_proof::model::{self, Bounds, Group};
use plover_consensus_proof::sim::{CANARIES, Options};
use plover_sim::seeds::{self, known_bug};
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
    #[command(flatten)]
    seeds: seeds::Arguments,
    /// Replicas in each group; by default 3 to 9, mostly 5.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
    replicas: Option<u8>,
    /// Put a known bug back; a wrong name lists them.
    #[arg(long, value_parser = |name: &str| known_bug(&CANARIES, name))]
    canary: Option<Canary>,
}

#[derive(Debug, clap::Args)]
struct ModelArguments {
    /// Steps on the longest path.
    #[arg(long, default_value_t = Bounds::default().depth, value_parser = clap::value_parser!(u8).range(1..))]
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
    /// The group replicates a guest.
    #[arg(long)]
    guest: bool,
    /// Give up after so many seconds, and fail: some paths were not looked at.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Put a known bug back; a wrong name lists them.
    #[arg(long, value_parser = |name: &str| known_bug(&CANARIES, name))]
    canary: Option<Canary>,
}

fn main() -> ExitCode {
    match Arguments::parse().what {
        What::Sim(arguments) => simulate(&arguments),
        What::Model(arguments) => explore(&arguments),
    }
}

fn simulate(arguments: &Sim) -> ExitCode {
    arguments.seeds.obey(&Options {
        replicas: arguments.replicas.map(usize::from),
        canary: arguments.canary.unwrap_or_default(),
        ..Options::default()
    })
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
        canary: arguments.canary.unwrap_or_default(),
        guest: arguments.guest,
    };
    let patience = Duration::from_secs(arguments.seconds);
    let report = model::explore(group, patience);
    println!("{report}");
    if !report.broken.is_empty() {
        return ExitCode::FAILURE;
    }
    if !report.complete {
        eprintln!(
            "some paths were not looked at in {} s: give the model more --seconds, or a smaller --depth",
            arguments.seconds
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
