//! `plover-programs-proof`: many simulated seeds, or one with its trace.

use clap::Parser;
use plover_program::Canary;
use plover_programs_proof::{CANARIES, Options};
use plover_sim::seeds::{self, known_bug};
use std::process::ExitCode;

/// Looks for broken promises of replicated programs.
#[derive(Debug, Parser)]
#[command(name = "plover-programs-proof")]
struct Arguments {
    #[command(flatten)]
    seeds: seeds::Arguments,
    /// Put a known bug back; a wrong name lists them.
    #[arg(long, value_parser = |name: &str| known_bug(&CANARIES, name))]
    canary: Option<Canary>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    arguments.seeds.obey(&Options {
        canary: arguments.canary.unwrap_or_default(),
        ..Options::default()
    })
}
