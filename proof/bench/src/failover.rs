//! `./x bench failover`: the client's gap when the leader is killed, by parts.
//!
//! Each round is two runs of the demo, each of which kills two leaders under load: their hosts, then only
//! their processes. So the figures come with the demo's own audit of every acknowledged write.

mod switchover;
mod warm;

use crate::children::spoken_progress;
use crate::lab::{name, plover};
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::{Result, ensure};
use plover_lab::Fault;
use plover_lab_proof::demo::{self, Report};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Runs of the demo with each kind of death, two failovers each.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Instead, the time until protected again with a warm witness and with a cold one: a guest of
    /// 1 GiB with a disk of 2 GiB, of which 5% changed. Needs 8 GiB in /var/tmp.
    #[arg(long)]
    warm: bool,
    /// Instead, the clients' gap when the lead is moved under load with nothing at fault, in one lab.
    #[arg(long, conflicts_with = "warm")]
    switchover: bool,
    /// With --switchover: how often the lead is moved.
    #[arg(long, default_value_t = 40, requires = "switchover")]
    moves: u32,
}

/// The parts of a failover. `elect` and `serve` begin where the part before ends; the others with the kill.
const PARTS: [&str; 6] = [
    "detect",
    "elect",
    "serve",
    "client gap",
    "slowest client",
    "protected again",
];

/// The two ways in which a leader dies.
const DEATHS: [(Fault, &str); 2] = [
    (Fault::Kill, "host killed: plover and QEMU, nothing is left"),
    (Fault::Crash, "process killed: its host reports the death"),
];

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.warm {
        return warm::run(options.rounds);
    }
    if options.switchover {
        return switchover::run(options.moves);
    }
    let mut figures: [Figures; 2] = Default::default();
    let done = measure_all(options.rounds, &mut figures);
    // The figures are printed even if the run fails.
    if figures.iter().any(|figures| figures.failovers > 0) {
        println!("{}", Machine::this("as chosen by the lab"));
    }
    for ((_, how), figures) in DEATHS.iter().zip(&figures) {
        if figures.failovers > 0 {
            figures.print(how);
        }
    }
    done
}

fn measure_all(rounds: u32, figures: &mut [Figures; 2]) -> Result<()> {
    for round in 0..rounds {
        for ((fault, _), figures) in DEATHS.iter().zip(figures.iter_mut()) {
            eprintln!("round {}/{rounds}: the demo, {fault}", round + 1);
            let report = demo::run_with(name(), *fault, plover(), &spoken_progress())?;
            ensure!(report.ok, "the demo failed:\n{report}");
            figures.take(&report);
        }
    }
    Ok(())
}

/// The figures of one way to die.
#[derive(Default)]
struct Figures {
    parts: [Sample; PARTS.len()],
    acked: u64,
    failovers: usize,
}

impl Figures {
    fn take(&mut self, report: &Report) {
        self.acked += report.acked_writes;
        self.failovers += report.failovers.len();
        for failover in &report.failovers {
            let of = [
                failover.detect_ms,
                failover.elect_ms,
                failover.serve_ms,
                failover.client_gap_ms,
                failover.slowest_connection_ms,
                failover.reprotect_ms,
            ];
            for (value, sample) in of.into_iter().zip(&mut self.parts) {
                sample.push(value);
            }
        }
    }

    fn print(&self, how: &str) {
        println!(
            "\n{how}\n{} leaders killed under load, {} acknowledged writes, none lost",
            self.failovers, self.acked
        );
        for (part, sample) in PARTS.iter().zip(&self.parts) {
            let (low, high) = sample.spread();
            println!(
                "{part:<16} {:>8.1} ms ({low:.1} to {high:.1})",
                sample.median()
            );
        }
    }
}
