//! Benchmarks on the lab: A against B in one run, interleaved, as distributions.
//!
//! Everything goes through the `plover` command, as a user would: a lab is brought up, a client
//! runs in its client namespace, the lab's status is read, the lab is taken down. Machines are
//! shared and noisy, so figures are medians with their spread, and only ratios within one run
//! are compared.

mod failover;
mod lab;
mod machine;
mod quick;
mod stats;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "Measures Plover on this machine")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Redis throughput and latency, `vsmr` against `none`, and syncvm's cost by phase.
    Quick(quick::Options),
    /// The client's gap when the leader is killed under load, by parts.
    Failover(failover::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.bench {
        Bench::Quick(options) => quick::run(&options),
        Bench::Failover(options) => failover::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
