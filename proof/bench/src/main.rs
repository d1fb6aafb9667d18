//! Benchmarks: A against B in one run, interleaved, as distributions.
//!
//! Without a subcommand: every workload under every policy (`matrix`).
//!
//! Benchmarks of guests go through the `plover` command, as a user would: a lab is brought up, a client
//! runs in its client namespace, the lab's status is read, the lab is taken down. Benchmarks of the log
//! alone are in `consensus`. Machines are shared and noisy, so figures are medians with their spread,
//! and only ratios within one run are compared.

mod children;
mod claims;
mod client;
mod consensus;
mod counting;
mod disk;
mod failover;
mod lab;
mod machine;
mod matrix;
mod programs;
mod quick;
mod report;
mod stats;
mod stock_colo;
mod variant;

use anyhow::Result;
use clap::{Parser, Subcommand};
use plover_lab::up::is_interruption;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

#[derive(Debug, Parser)]
#[command(name = "./x bench", args_conflicts_with_subcommands = true)]
/// Measures Plover on this machine: without a subcommand every workload under every policy.
struct Arguments {
    #[command(flatten)]
    matrix: matrix::Options,
    #[command(subcommand)]
    bench: Option<Bench>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Redis throughput and latency under a policy against `none`, and syncvm's cost by phase.
    Quick(quick::Options),
    /// The client's gap when the leader is killed under load, by parts.
    Failover(failover::Options),
    /// Random writes, and PostgreSQL, on a replicated disk, `vsmr` against `none`.
    Disk(disk::Options),
    /// The log alone: latency, throughput and CPU of an entry, beside the raw fabrics, etcd and
    /// ZooKeeper.
    Consensus(consensus::Options),
    /// An unmodified Redis under `plover run`, by each way that clients can reach it, beside the same Redis alone.
    Programs(programs::Options),
    /// One replica of `consensus`; started by it.
    #[command(hide = true)]
    ConsensusReplica(consensus::ReplicaOptions),
    /// The client of a lab's guest; started by the other benchmarks.
    #[command(hide = true)]
    Client(client::Options),
    /// Keeps the cores awake for `consensus`; started by it.
    #[command(hide = true)]
    KeepAwake,
}

fn main() -> ExitCode {
    #[cfg(feature = "ofi")]
    plover_fabric::ofi::forget_signal_handlers();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !is_interruption(&error) {
                eprintln!("bench: {error:#}");
            }
            if children::check().is_err() {
                eprintln!("bench: ended by a signal; what was measured is kept");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    // Parts of a bench that has its turn.
    match &arguments.bench {
        Some(Bench::ConsensusReplica(options)) => return consensus::run_replica(options),
        Some(Bench::Client(options)) => return client::run(options),
        Some(Bench::KeepAwake) => return consensus::keep_awake(),
        _ => {}
    }
    let _turn = lab::turn()?;
    children::watch_signals()?;
    match arguments.bench {
        None => matrix::run(&arguments.matrix),
        Some(Bench::Quick(options)) => quick::run(&options),
        Some(Bench::Failover(options)) => failover::run(&options),
        Some(Bench::Disk(options)) => disk::run(&options),
        Some(Bench::Consensus(options)) => consensus::run(&options),
        Some(Bench::Programs(options)) => programs::run(&options),
        Some(Bench::ConsensusReplica(_) | Bench::Client(_) | Bench::KeepAwake) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        for words in [
            &[
                "bench",
                "--only",
                "redis/vsmr",
                "--rounds",
                "1",
                "--",
                "--vcpus",
                "2",
            ][..],
            &["bench", "quick", "--rounds", "1"],
            &["bench", "failover", "--warm", "--rounds", "1"],
            &["bench", "failover", "--switchover", "--moves", "3"],
            &["bench", "disk", "--rounds", "1", "--seconds", "5"],
            &["bench"],
        ] {
            assert!(Arguments::try_parse_from(words).is_ok(), "{words:?}");
        }
        assert!(Arguments::try_parse_from(["bench", "--quick", "--full"]).is_err());
    }
}
