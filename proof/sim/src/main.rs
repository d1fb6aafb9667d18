//! `plover-sim`: many seeds, or one with its trace.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use plover_policy::Preset;
use plover_sim::run::CANARIES;
use plover_sim::seeds::{self, known_bug};
use plover_sim::{Canary, Options};
use plover_types::Micros;
use std::process::ExitCode;

/// Simulates whole groups under faults. Every seed is one run that repeats itself exactly.
#[derive(Debug, Parser)]
#[command(name = "plover-sim")]
struct Arguments {
    #[command(flatten)]
    seeds: seeds::Arguments,
    /// Replicas in each group.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=5))]
    replicas: u8,
    /// Let links fail in groups of two as well: two may lead at once then, and what clients were
    /// promised is not looked at any more.
    #[arg(long, conflicts_with = "fencing")]
    cuts: bool,
    /// Let links fail in groups of two, and let neither go on alone before the other one is known to be off.
    #[arg(long, conflicts_with = "replicas")]
    fencing: bool,
    /// Protect the guest so (`plover policy list`); by default each seed chooses.
    #[arg(long, value_parser = policy)]
    policy: Option<&'static Preset>,
    /// Let faults come for this many simulated minutes instead of a few seconds.
    #[arg(long)]
    minutes: Option<f64>,
    /// Put a known bug back; a wrong name lists them.
    #[arg(long, value_parser = |name: &str| known_bug(&CANARIES, name))]
    canary: Option<Canary>,
}

fn policy(name: &str) -> Result<&'static Preset, String> {
    let preset = Preset::find(name).ok_or_else(|| {
        let names: Vec<_> = Preset::names().collect();
        format!("there is no policy '{name}': {}", names.join(", "))
    })?;
    match preset.policy.check() {
        Ok(()) => Ok(preset),
        Err(error) => Err(error.to_string()),
    }
}

impl Arguments {
    /// Why these options do not go together.
    fn refusal(&self) -> Option<String> {
        if self.cuts && self.replicas != 2 {
            return Some(format!(
                "--cuts is for two replicas, and the group has {}: say --replicas 2",
                self.replicas
            ));
        }
        let is_pair = self.replicas == 2 && !self.fencing;
        let policy = &self.policy.filter(|_| is_pair)?.policy;
        policy.check_pair().err().map(|error| error.to_string())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(why) = arguments.refusal() {
        Arguments::command()
            .error(ErrorKind::ArgumentConflict, why)
            .exit();
    }
    let options = Options {
        replicas: if arguments.fencing {
            2
        } else {
            arguments.replicas
        },
        cuts: arguments.cuts,
        fencing: arguments.fencing,
        policy: arguments.policy,
        faults_for: arguments
            .minutes
            .map(|minutes| Micros((minutes * 60e6) as u64)),
        canary: arguments.canary.unwrap_or_default(),
        ..Options::default()
    };
    arguments.seeds.obey(&options)
}
