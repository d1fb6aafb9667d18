//! Running seeds: one, or many on several threads.

use super::invariants::Violation;
use super::world::{Options, World};
use plover_sim::panics::without_panic;
use plover_sim::{Coverage, TraceMode};
use plover_types::Micros;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What went wrong, if anything.
    pub violation: Option<Violation>,
    /// What was reached.
    pub coverage: Coverage,
    /// A digest of the trace, if there was one.
    pub trace_sum: u64,
    /// The last lines of the trace, if there was one.
    pub tail: Vec<String>,
    /// How much time went by in it.
    pub simulated: Micros,
    /// How many things happened.
    pub happenings: u64,
}

impl Outcome {
    /// The command that repeats this run, line by line.
    pub fn repeat_with(&self, options: &Options) -> String {
        let canary = super::canary_name(options.canary)
            .map(|name| format!(" --canary {name}"))
            .unwrap_or_default();
        let replicas = options
            .replicas
            .map(|replicas| format!(" --replicas {replicas}"))
            .unwrap_or_default();
        format!(
            "./x sim --group --seed {} --trace{replicas}{canary}",
            self.seed
        )
    }

    /// What went wrong and how to see it again; empty if nothing did.
    pub fn report(&self, options: &Options) -> String {
        self.violation.as_ref().map_or(String::new(), |violation| {
            let repeat = self.repeat_with(options);
            format!(
                "seed {} FAILED: {violation}\n  repeat it with: {repeat}",
                self.seed
            )
        })
    }
}

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let ran = without_panic(|| world.run());
    let mut violation = world.violation.take();
    if let Err(message) = ran {
        violation = Some(Violation {
            invariant: "no_panic",
            section: "STYLE 13",
            message,
        });
    }
    Outcome {
        seed,
        violation,
        coverage: std::mem::take(&mut world.coverage),
        trace_sum: world.trace.sum(),
        simulated: world.plan.now(),
        happenings: world.plan.planned(),
        tail: world.trace.into_tail(),
    }
}

/// Runs a seed again to see its last lines.
pub fn tail_of(seed: u64, options: &Options) -> Vec<String> {
    let trace = TraceMode::Sum;
    run(seed, &Options { trace, ..*options }).tail
}

/// Runs `count` seeds from `start` on `threads` threads; `each` sees every outcome as it comes
/// and says whether to go on.
pub fn run_many(
    start: u64,
    count: u64,
    threads: usize,
    options: &Options,
    each: impl FnMut(Outcome) -> bool + Send,
) {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let each = Mutex::new(each);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count {
                        break;
                    }
                    let outcome = run(start + place, options);
                    let mut each = each.lock().unwrap_or_else(|broken| broken.into_inner());
                    if !each(outcome) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}
