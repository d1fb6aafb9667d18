//! `./x drill`: planned work and crashes, one after another, under load.

use clap::Parser;
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab_proof::drill::{self, Plan};
use plover_lab_proof::{Turn, exit_code, program};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Does an evening's planned work on a lab under load: moves the lead, drains, backs up and restores, grows the disk, restarts all hosts,
/// replaces two, and kills two leaders. Ends with a table of what clients saw of each, and exit code 1 if an acknowledged
/// write is lost or a connection was reset.
#[derive(Debug, Parser)]
#[command(
    name = "./x drill",
    after_help = "Examples:\n  ./x drill\n  ./x drill --rounds 10 --json\n  ./x drill --only switchover --only crash\n  \
                  ./x drill --newer-qemu --only upgrade-qemu"
)]
struct Arguments {
    /// Do all of it so often, each time on a new lab. A round takes about a minute.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only this step: switchover, drain, backup, grow, restart, upgrade-qemu, replace, crash. May be repeated.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// The result as one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// The guest has a versioned machine type, and all hosts go to a newer QEMU, too: this binary, or Debian 13's, which is
    /// fetched once.
    #[arg(long, value_name = "FILE")]
    newer_qemu: Option<PathBuf>,
}

fn main() -> ExitCode {
    exit_code("drill", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    prerequisites::check_root()?;
    let plan = Plan {
        name: "drill",
        program: program().to_owned(),
        rounds: arguments.rounds,
        only: arguments.only.clone(),
        newer_qemu: arguments.newer_qemu.clone(),
    };
    // Before another lab is waited for.
    plan.steps()?;
    let _turn = Turn::wait_aloud();
    let report = drill::run(&plan, &Progress::interruptible(false)?)?;
    if arguments.json {
        let _ = writeln!(std::io::stderr(), "{report}");
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    Ok(report.is_good())
}
