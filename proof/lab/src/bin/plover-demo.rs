//! `./x demo`: clients write to a replicated Redis, and two leaders are killed under them.

use clap::Parser;
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab_proof::{Turn, demo, exit_code, program};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Shows it: clients write to a replicated Redis, and two leaders are killed under them.
#[derive(Debug, Parser)]
#[command(name = "./x demo")]
struct Arguments {
    /// The result as one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Show it on a page for a browser, which stays after the end until Ctrl-C if this runs in a terminal.
    #[arg(long)]
    dash: bool,
}

fn main() -> ExitCode {
    exit_code("demo", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    prerequisites::check_root()?;
    let turn = Turn::wait_aloud();
    let progress = Progress::interruptible(false)?;
    let (report, page) = demo::run(program().to_owned(), arguments.dash, &progress)?;
    // The lab is down. The page alone may stay.
    drop(turn);
    if arguments.json {
        // For people all the same, but apart from the one line that programs read.
        let _ = writeln!(std::io::stderr(), "{report}");
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    if let Some(page) = page.filter(|_| std::io::stdout().is_terminal()) {
        progress.say(format!("the page stays at {} until Ctrl-C", page.url()));
        while progress.sleep(Duration::from_secs(1)).is_ok() {}
    }
    Ok(report.ok)
}
