//! `./x demo`: clients write to a replicated Redis, and two leaders are killed under them.

use clap::Parser;
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab_proof::{demo, exit_code, program};
use std::io::Write;
use std::process::ExitCode;

/// Shows it: clients write to a replicated Redis, and two leaders are killed under them.
#[derive(Debug, Parser)]
#[command(name = "./x demo")]
struct Arguments {
    /// The result as one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit_code("demo", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    prerequisites::check_root()?;
    let report = demo::run(program().to_owned(), &Progress::interruptible(false)?)?;
    if arguments.json {
        // For people all the same, but apart from the one line that programs read.
        let _ = writeln!(std::io::stderr(), "{report}");
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(report.ok)
}
