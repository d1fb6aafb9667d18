//! `./x programs demo`: an unmodified Redis on three hosts, and two leaders that die.

use clap::{Parser, ValueEnum};
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab_proof::{Turn, exit_code, program, programs};
use std::process::ExitCode;

/// Shows it: clients write to a replicated, unmodified Redis, and two leaders die under them.
#[derive(Debug, Parser)]
#[command(name = "./x programs")]
struct Arguments {
    /// What to do.
    #[arg(value_enum)]
    what: What,
    /// The result as one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Kill two leaders under load, and read back what was acknowledged.
    Demo,
}

fn main() -> ExitCode {
    exit_code("programs", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let What::Demo = arguments.what;
    prerequisites::check_root()?;
    let _turn = Turn::wait();
    let report = programs::demo("programs", program(), "", &Progress::interruptible(false)?)?;
    if arguments.json {
        eprintln!("{report}");
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(report.is_good())
}
