//! `./x chaos`: random faults of a real lab under load, and a check of what its clients saw.

use clap::Parser;
use plover_lab::options::PolicyName;
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab_proof::chaos::{self, Plan};
use plover_lab_proof::{Turn, exit_code, program};
use std::path::PathBuf;
use std::process::ExitCode;

/// Breaks a lab of three replicas at random, one fault or two at a time, under load, and checks that what the clients
/// saw is linearizable. Ends at the first violation, with exit code 1.
#[derive(Debug, Parser)]
#[command(name = "./x chaos")]
struct Arguments {
    /// No step begins after this time. A step takes some five seconds.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// The seed of the faults. The same seed gives the same faults; their moments differ.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How the guest is protected: see `plover policy list`.
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: PolicyName,
    /// Only this fault, in the words of a step, such as "hang leader's QEMU" or "reboot guest". Given several times, these in
    /// turn.
    #[arg(long, value_name = "FAULT")]
    only: Vec<String>,
    /// End after so many steps.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Configuration that every replica gets beside the lab's, such as `[group] durability = "disk"`.
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
}

fn main() -> ExitCode {
    exit_code("chaos", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    prerequisites::check_root()?;
    let _turn = Turn::wait_aloud();
    let plan = Plan {
        name: "chaos",
        program: program().to_owned(),
        policy: arguments.policy,
        minutes: arguments.minutes,
        seed: arguments.seed,
        only: arguments.only.clone(),
        steps: arguments.steps,
        overlay: arguments.overlay.clone(),
    };
    let report = chaos::run(&plan, &Progress::interruptible(false)?)?;
    println!("{report}");
    Ok(report.violation.is_none())
}
