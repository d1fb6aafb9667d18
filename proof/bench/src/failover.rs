//! `./x bench failover`: the client's gap when the leader is killed, by parts.
//!
//! Each round is one run of `plover demo --json`, which kills two leaders under load; so the
//! figures come with the demo's own audit of every acknowledged write.

mod warm;

use crate::lab::plover;
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::{Command, Stdio};

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

const PARTS: [&str; 4] = ["detect_ms", "elect_ms", "client_gap_ms", "reprotect_ms"];

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.warm {
        return warm::run(options.rounds);
    }
    let mut parts: Vec<Sample> = PARTS.iter().map(|_| Sample::default()).collect();
    let (mut acked, mut failovers) = (0, 0);
    for round in 0..options.rounds {
        eprintln!("round {}/{}: plover demo", round + 1, options.rounds);
        let output = Command::new(plover())
            .args(["demo", "--json"])
            .stderr(Stdio::null())
            .output()
            .context("cannot run plover; build it with ./x")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let last = printed.lines().last().unwrap_or_default();
        let result: Value = serde_json::from_str(last)
            .with_context(|| format!("the demo's last line is no JSON: {last}"))?;
        if result["ok"] != true {
            bail!("the demo failed: {last}");
        }
        acked += result["acked_writes"].as_u64().unwrap_or(0);
        for failover in result["failovers"].as_array().into_iter().flatten() {
            failovers += 1;
            for (part, sample) in PARTS.iter().zip(&mut parts) {
                if let Some(value) = failover[*part].as_f64() {
                    sample.push(value);
                }
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
