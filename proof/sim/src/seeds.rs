//! Runs many seeds on several threads and reports their outcomes. The simulators of protected guests
//! and of consensus alone share this.

use crate::coverage::Coverage;
use crate::invariants::Violation;
use crate::trace::Trace;
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

    /// The violation and the command that repeats it; empty if there was none.
    pub fn headline(&self, repeat: &str) -> String {
        let seed = self.seed;
        let told = |violation: &Violation| {
            format!("seed {seed} FAILED: {violation}\n  repeat it with: {repeat}")
        };
        self.violation.as_ref().map(told).unwrap_or_default()
    }
}

/// Runs `seeds` on `threads` threads; `each` sees every outcome as it comes and returns whether to
/// go on.
pub fn run_many(
    seeds: Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> Outcome + Sync,
    each: impl FnMut(Outcome) -> bool + Send,
) {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let each = Mutex::new(each);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let outcome = run(seed);
                    let mut each = each.lock().unwrap_or_else(|broken| broken.into_inner());
                    if !each(outcome) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// How a program runs many seeds.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Threads; by default one for each core.
    pub threads: Option<usize>,
    /// Go on after a failure.
    pub keep_going: bool,
    /// Print a digest of each seed's trace.
    pub sums: bool,
}

impl Batch {
    /// Runs all of them, prints failures as they come and a summary in the end. Returns the
    /// outcomes that failed.
    pub fn run(
        &self,
        run: impl Fn(u64) -> Outcome + Sync,
        headline: impl Fn(&Outcome) -> String + Sync,
    ) -> Vec<Outcome> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or_else(cores);
        let count = self.seeds.end - self.seeds.start;
        let begun = Instant::now();
        let mut spoken = Instant::now();
        let mut coverage = Coverage::default();
        let (mut done, mut simulated) = (0, 0);
        let mut failed = Vec::new();
        run_many(self.seeds.clone(), threads, run, |outcome| {
            done += 1;
            simulated += outcome.simulated.0;
            coverage.merge(&outcome.coverage);
            if self.sums {
                println!("{} {:016x}", outcome.seed, outcome.trace_sum);
            }
            if outcome.violation.is_some() {
                println!("{}", headline(&outcome));
                failed.push(outcome);
            }
            if spoken.elapsed() > Duration::from_secs(5) {
                spoken = Instant::now();
                let rate = done as f64 / begun.elapsed().as_secs_f64();
                let left = (count - done) as f64 / rate;
                eprintln!("{done} of {count} seeds, {rate:.0} a second, {left:.0} s left");
            }
            failed.is_empty() || self.keep_going
        });
        let span = begun.elapsed().as_secs_f64();
        println!("{coverage}");
        println!(
            "{done} seeds from {} on, {:.1} h of simulated time in {span:.1} s ({:.0} seeds/s, \
             {threads} threads): {} failed",
            self.seeds.start,
            simulated as f64 / 3.6e9,
            done as f64 / span,
            failed.len()
        );
        failed
    }
}

/// Ends a program: with the `tail` of the first failure's trace, if it was not printed yet, and
/// the command that repeats it.
pub fn conclude(
    outcomes: &[Outcome],
    tail: Option<impl FnOnce(u64) -> Vec<String>>,
    headline: impl Fn(&Outcome) -> String,
) -> ExitCode {
    let Some(first) = outcomes.iter().find(|outcome| outcome.violation.is_some()) else {
        return ExitCode::SUCCESS;
    };
    if let Some(tail) = tail {
        println!("\nthe last that happened in seed {}:", first.seed);
        for line in tail(first.seed) {
            println!("{}", line.chars().take(220).collect::<String>());
        }
    }
    println!("\n{}", headline(first));
    ExitCode::FAILURE
}
