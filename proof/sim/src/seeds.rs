//! Runs many seeds on several threads and reports their outcomes. The simulators of protected guests
//! and of consensus alone share this.

use crate::coverage::Coverage;
use crate::invariants::Violation;
use crate::trace::{Trace, TraceMode};
use plover_types::Micros;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The violation, if there was one.
    pub violation: Option<Violation>,
    /// How often each interesting moment was reached.
    pub coverage: Coverage,
    /// A digest of the trace, if there was one.
    pub trace_sum: u64,
    /// The last lines of the trace, if there was one.
    pub tail: Vec<String>,
    /// The simulated time.
    pub simulated: Micros,
    /// How many happenings there were.
    pub happenings: u64,
}

impl Outcome {
    /// The outcome of a seed whose run ended as `ran`. A panic is a violation, too.
    pub fn new(
        seed: u64,
        ran: Result<Option<Violation>, String>,
        coverage: Coverage,
        trace: Trace,
        (simulated, happenings): (Micros, u64),
    ) -> Self {
        Self {
            seed,
            violation: ran.unwrap_or_else(|message| {
                Some(Violation {
                    invariant: "no_panic",
                    section: "STYLE 13",
                    message,
                })
            }),
            coverage,
            trace_sum: trace.sum(),
            tail: trace.into_tail(),
            simulated,
            happenings,
        }
    }
}

/// What a simulator can be told, and how it runs a seed.
pub trait Simulation: Copy + Sync {
    /// Runs one seed.
    fn run(&self, seed: u64) -> Outcome;

    /// The same with this use of the trace.
    fn traced(self, trace: TraceMode) -> Self;

    /// The same without a known bug.
    fn healthy(self) -> Self;

    /// The options that tell `./x sim` the same, each with a space behind it.
    fn words(&self) -> String;

    /// The violation and the command that repeats it; empty if there was none.
    fn headline(&self, outcome: &Outcome) -> String {
        let (seed, words) = (outcome.seed, self.words());
        let told = |violation: &Violation| {
            format!(
                "seed {seed} FAILED: {violation}\n  repeat it with: ./x sim {words}--seed {seed} --trace"
            )
        };
        outcome.violation.as_ref().map(told).unwrap_or_default()
    }

    /// Runs a seed again to see its last lines.
    fn tail_of(&self, seed: u64) -> Vec<String> {
        self.traced(TraceMode::Sum).run(seed).tail
    }

    /// Runs `seeds` on `threads` threads, by default one for each core. `each` sees every outcome as it
    /// comes and returns whether to go on.
    fn run_many(
        &self,
        seeds: Range<u64>,
        threads: Option<usize>,
        each: impl FnMut(Outcome) -> bool + Send,
    ) {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicU64::new(seeds.start);
        let stop = AtomicBool::new(false);
        let each = Mutex::new(each);
        std::thread::scope(|scope| {
            for _ in 0..threads.unwrap_or_else(cores).max(1) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            break;
                        }
                        let outcome = self.run(seed);
                        let mut each = each.lock().unwrap_or_else(|broken| broken.into_inner());
                        if !each(outcome) {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    }
}

/// The known bug of this name, to put back.
///
/// # Errors
/// There is none; the error lists them.
pub fn known_bug<C: Copy>(bugs: &[(&str, C)], name: &str) -> Result<C, String> {
    let found = bugs.iter().find(|(known, _)| *known == name);
    let names: Vec<_> = bugs.iter().map(|(known, _)| *known).collect();
    found
        .map(|(_, bug)| *bug)
        .ok_or_else(|| format!("there is no canary '{name}': {}", names.join(", ")))
}

/// The option that puts this bug back, with a space behind it; empty if it is none.
pub fn option_of<C: PartialEq>(bugs: &[(&str, C)], bug: C) -> String {
    let named = bugs.iter().find(|(_, known)| *known == bug);
    named.map_or_else(String::new, |(name, _)| format!("--canary {name} "))
}

/// Which seeds a program runs, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Run this one seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print everything that happens in it.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run this many seeds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Start with this one.
    #[arg(long, default_value_t = 0)]
    start: u64,
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

impl Arguments {
    /// Runs the seeds, prints failures as they come, and at last the end of the first failure's trace,
    /// if it was not printed yet, and the command that repeats it.
    pub fn obey(&self, simulation: &impl Simulation) -> ExitCode {
        let simulation = simulation.traced(match (self.trace, self.sums || self.seed.is_some()) {
            (true, _) => TraceMode::Print,
            (_, true) => TraceMode::Sum,
            _ => TraceMode::Off,
        });
        let failed = match self.seed {
            Some(seed) => {
                let outcome = simulation.run(seed);
                println!(
                    "seed {seed}: {} simulated, {} happenings, trace {:016x}",
                    outcome.simulated, outcome.happenings, outcome.trace_sum
                );
                Some(outcome).filter(|outcome| outcome.violation.is_some())
            }
            None => self.run_all(&simulation),
        };
        let Some(first) = failed else {
            return ExitCode::SUCCESS;
        };
        if !self.trace {
            println!("\nthe last that happened in seed {}:", first.seed);
            for line in simulation.tail_of(first.seed) {
                println!("{}", line.chars().take(220).collect::<String>());
            }
        }
        println!("\n{}", simulation.headline(&first));
        ExitCode::FAILURE
    }

    /// Prints a summary in the end. Returns the first outcome that failed.
    fn run_all(&self, simulation: &impl Simulation) -> Option<Outcome> {
        let begun = Instant::now();
        let mut spoken = Instant::now();
        let mut coverage = Coverage::default();
        let (mut done, mut simulated) = (0, 0);
        let (mut first, mut failed) = (None, 0);
        let seeds = self.start..self.start + self.seeds;
        simulation.run_many(seeds, self.threads, |outcome| {
            done += 1;
            simulated += outcome.simulated.0;
            coverage.merge(&outcome.coverage);
            if self.sums {
                println!("{} {:016x}", outcome.seed, outcome.trace_sum);
            }
            if outcome.violation.is_some() {
                println!("{}", simulation.headline(&outcome));
                failed += 1;
                first.get_or_insert(outcome);
            }
            if spoken.elapsed() > Duration::from_secs(5) {
                spoken = Instant::now();
                let rate = done as f64 / begun.elapsed().as_secs_f64();
                let left = (self.seeds - done) as f64 / rate;
                eprintln!(
                    "{done} of {} seeds, {rate:.0} a second, {left:.0} s left",
                    self.seeds
                );
            }
            failed == 0 || self.keep_going
        });
        let span = begun.elapsed().as_secs_f64();
        println!("{coverage}");
        println!(
            "{done} seeds from {} on, {:.1} h of simulated time in {span:.1} s ({:.0} seeds/s): \
             {failed} failed",
            self.start,
            simulated as f64 / 3.6e9,
            done as f64 / span,
        );
        first
    }
}
