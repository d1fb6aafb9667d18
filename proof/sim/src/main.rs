//! `plover-sim`: many seeds, or one with its trace.

use clap::Parser;
use plover_policy::Preset;
use plover_sim::run::tail_of;
use plover_sim::seeds::{Batch, conclude};
use plover_sim::{Canary, Options, Outcome, TraceMode, run};
use plover_types::Micros;
use std::process::ExitCode;

/// Simulates whole groups under faults. Every seed is one run that repeats itself exactly.
#[derive(Debug, Parser)]
#[command(name = "plover-sim")]
struct Arguments {
    /// Run this one seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print everything that happens in it.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run this many seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// Start with this one.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Replicas in each group.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=5))]
    replicas: u8,
    /// Let links fail in groups of two as well: two may lead at once then, and what clients were
    /// promised is not looked at any more.
    #[arg(long)]
    cuts: bool,
    /// Protect the guest so (`plover policy list`); by default each seed chooses.
    #[arg(long, value_parser = policy)]
    policy: Option<&'static Preset>,
    /// Let faults come for this many simulated minutes instead of a few seconds.
    #[arg(long)]
    minutes: Option<f64>,
    /// Put a known bug back; a wrong name lists them.
    #[arg(long, value_parser = canary)]
    canary: Option<Canary>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Print a digest of each seed's trace: a change that leaves all of them alone has changed no
    /// behaviour.
    #[arg(long)]
    sums: bool,
    /// Threads; by default one for each core.
    #[arg(long)]
    threads: Option<usize>,
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

/// Known bugs by name.
const CANARIES: [(&str, Canary); 13] = [
    ("vote-after-amnesia", Canary::VoteAfterAmnesia),
    ("release-before-ack", Canary::ReleaseBeforeAck),
    ("dirty-bits-lost", Canary::DirtyBitsLost),
    ("subpage-missed", Canary::SubpageMissed),
    ("ack-before-disks", Canary::AckBeforeDisks),
    ("release-without-match", Canary::ReleaseWithoutMatch),
    ("ignore-acks", Canary::IgnoreAcks),
    ("trust-old-generation", Canary::TrustOldGeneration),
    ("warm-forgets-syncs", Canary::WarmForgetsSyncs),
    ("forget-numbers", Canary::ForgetNumbers),
    ("never-doubt", Canary::NeverDoubt),
    ("clock-alone", Canary::ClockAlone),
    ("stale-compare", Canary::StaleCompare),
];

fn canary(name: &str) -> Result<Canary, String> {
    let found = CANARIES.iter().find(|(known, _)| *known == name);
    let names = || CANARIES.map(|(known, _)| known).join(", ");
    found
        .map(|(_, canary)| *canary)
        .ok_or_else(|| format!("there is no canary '{name}': {}", names()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let faults_for = arguments
        .minutes
        .map(|minutes| Micros((minutes * 60e6) as u64));
    let mut options = Options {
        replicas: arguments.replicas,
        cuts: arguments.cuts,
        policy: arguments.policy,
        faults_for,
        canary: arguments.canary.unwrap_or_default(),
        trace: if arguments.sums {
            TraceMode::Sum
        } else {
            TraceMode::Off
        },
    };
    if arguments.trace {
        options.trace = TraceMode::Print;
    }
    let told = |outcome: &Outcome| headline(outcome, &arguments);
    let ends = |outcomes: &[Outcome]| {
        let tail = |seed| tail_of(seed, &options);
        conclude(outcomes, (!arguments.trace).then_some(tail), told)
    };
    if let Some(seed) = arguments.seed {
        let outcome = run(seed, &options);
        println!(
            "seed {seed}: {} simulated, {} happenings, trace {:016x}",
            outcome.simulated, outcome.happenings, outcome.trace_sum
        );
        return ends(&[outcome]);
    }
    let batch = Batch {
        seeds: arguments.start..arguments.start + arguments.seeds,
        threads: arguments.threads,
        keep_going: arguments.keep_going,
        sums: arguments.sums,
    };
    ends(&batch.run(|seed| run(seed, &options), told))
}

fn headline(outcome: &Outcome, arguments: &Arguments) -> String {
    let mut repeat = format!("./x sim --seed {} --trace", outcome.seed);
    if arguments.replicas != 3 {
        repeat += &format!(" --replicas {}", arguments.replicas);
    }
    if arguments.cuts {
        repeat += " --cuts";
    }
    if let Some(preset) = arguments.policy {
        repeat += &format!(" --policy {}", preset.name);
    }
    if let Some(minutes) = arguments.minutes {
        repeat += &format!(" --minutes {minutes}");
    }
    let put_back = |(_, canary): &&(&str, Canary)| Some(*canary) == arguments.canary;
    if let Some((name, _)) = CANARIES.iter().find(put_back) {
        repeat += &format!(" --canary {name}");
    }
    outcome.headline(&repeat)
}
