//! `plover-sim`: many seeds, or one with its trace.

use clap::Parser;
use plover_policy::Preset;
use plover_sim::run::tail_of;
use plover_sim::{Canary, Coverage, Options, Outcome, TraceMode, run, run_many};
use plover_types::Micros;
use std::process::ExitCode;
use std::time::{Duration, Instant};

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
    ("block-missed", Canary::BlockMissed),
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
    if let Some(seed) = arguments.seed {
        if arguments.trace {
            options.trace = TraceMode::Print;
        }
        let outcome = run(seed, &options);
        println!(
            "seed {seed}: {} simulated, {} happenings, trace {:016x}",
            outcome.simulated, outcome.happenings, outcome.trace_sum
        );
        return conclude(&[outcome], &options, &arguments);
    }
    many(&arguments, &options)
}

fn many(arguments: &Arguments, options: &Options) -> ExitCode {
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let begun = Instant::now();
    let mut spoken = Instant::now();
    let mut coverage = Coverage::default();
    let (mut done, mut simulated) = (0, 0);
    let mut failed = Vec::new();
    run_many(
        arguments.start,
        arguments.seeds,
        threads,
        options,
        |outcome| {
            done += 1;
            simulated += outcome.simulated.0;
            coverage.merge(&outcome.coverage);
            if arguments.sums {
                println!("{} {:016x}", outcome.seed, outcome.trace_sum);
            }
            if outcome.violation.is_some() {
                println!("{}", headline(&outcome, arguments));
                failed.push(outcome);
            }
            if spoken.elapsed() > Duration::from_secs(5) {
                spoken = Instant::now();
                let rate = done as f64 / begun.elapsed().as_secs_f64();
                let left = (arguments.seeds - done) as f64 / rate;
                eprintln!(
                    "{done} of {} seeds, {rate:.0} a second, {left:.0} s left",
                    arguments.seeds
                );
            }
            failed.is_empty() || arguments.keep_going
        },
    );
    let span = begun.elapsed().as_secs_f64();
    println!("{coverage}");
    println!(
        "{done} seeds from {} on, {:.1} h of simulated time in {span:.1} s ({:.0} seeds/s, {threads} \
         threads): {} failed",
        arguments.start,
        simulated as f64 / 3.6e9,
        done as f64 / span,
        failed.len()
    );
    conclude(&failed, options, arguments)
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
    let why = outcome
        .violation
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    format!(
        "seed {} FAILED: {why}\n  repeat it with: {repeat}",
        outcome.seed
    )
}

fn conclude(outcomes: &[Outcome], options: &Options, arguments: &Arguments) -> ExitCode {
    let Some(first) = outcomes.iter().find(|outcome| outcome.violation.is_some()) else {
        return ExitCode::SUCCESS;
    };
    if !arguments.trace {
        println!("\nthe last that happened in seed {}:", first.seed);
        for line in tail_of(first.seed, options) {
            println!("{}", line.chars().take(220).collect::<String>());
        }
    }
    println!("\n{}", headline(first, arguments));
    ExitCode::FAILURE
}
