//! Benchmarks: A against B in one run, interleaved, as distributions.
//!
//! What concerns guests goes through the `plover` command, as a user would: a lab is brought up,
//! a client runs in its client namespace, the lab's status is read, the lab is taken down; what
//! concerns the log alone is in `consensus`. Machines are shared and noisy, so figures are
//! medians with their spread, and only ratios within one run are compared.

mod consensus;
mod counting;
mod failover;
mod lab;
mod machine;
mod quick;
mod stats;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

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
    /// The log alone: latency, throughput and CPU of an entry, beside the raw fabrics, etcd,
    /// ZooKeeper and an in-process Raft.
    Consensus(consensus::Options),
    /// One replica of `consensus`; started by it.
    #[command(hide = true)]
    ConsensusReplica(consensus::ReplicaOptions),
    /// Keeps the cores awake for `consensus`; started by it.
    #[command(hide = true)]
    KeepAwake,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.bench {
        Bench::Quick(options) => quick::run(&options),
        Bench::Failover(options) => failover::run(&options),
        Bench::Consensus(options) => consensus::run(&options),
        Bench::ConsensusReplica(options) => consensus::run_replica(&options),
        Bench::KeepAwake => consensus::keep_awake(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
