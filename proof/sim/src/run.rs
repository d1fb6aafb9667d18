//! Running seeds: one, or many on several threads.

use crate::coverage::Coverage;
use crate::invariants::Violation;
use crate::panics::without_panic;
use crate::trace::TraceMode;
use crate::world::{Options, World};
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

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let ran = without_panic(|| world.run());
    let mut violation = world.violation.take();
    if let Err(message) = ran {
        violation = Some(Violation {
            invariant: "no_panic",
            section: "style 13",
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
    run(
        seed,
        &Options {
            trace: TraceMode::Sum,
            ..*options
        },
    )
    .tail
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
