//! `./x bench failover`: the client's gap when the leader is killed, by parts.
//!
//! Each round is one run of the demo, which kills two leaders under load; so the figures come with
//! the demo's own audit of every acknowledged write.

mod warm;

use crate::children::progress;
use crate::lab::plover;
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::{Result, ensure};
use plover_lab_proof::demo;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Runs of the demo, two failovers each.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Instead, the time until protected again with a warm witness and with a cold one: a guest of
    /// 1 GiB with a disk of 2 GiB, of which 5% changed. Needs 8 GiB in /var/tmp.
    #[arg(long)]
    warm: bool,
}

const PARTS: [&str; 4] = ["detect", "elect", "client gap", "protected again"];

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.warm {
        return warm::run(options.rounds);
    }
    let mut parts: Vec<Sample> = PARTS.iter().map(|_| Sample::default()).collect();
    let (mut acked, mut failovers) = (0, 0);
    for round in 0..options.rounds {
        eprintln!("round {}/{}: the demo", round + 1, options.rounds);
        let report = demo::run(plover(), &progress())?;
        ensure!(report.ok, "the demo failed:\n{report}");
        acked += report.acked_writes;
        for failover in &report.failovers {
            failovers += 1;
            let of = [
                failover.detect_ms,
                failover.elect_ms,
                failover.client_gap_ms,
                failover.reprotect_ms,
            ];
            for (value, sample) in of.into_iter().zip(&mut parts) {
                sample.push(value);
            }
        }
    }
    println!("{}", Machine::this("as chosen by the lab"));
    println!("{failovers} leaders killed under load, {acked} acknowledged writes, none lost\n");
    for (part, sample) in PARTS.iter().zip(&parts) {
        let (low, high) = sample.spread();
        println!(
            "{part:<16} {:>8.0} ms ({low:.0} to {high:.0})",
            sample.median()
        );
    }
    Ok(())
}
