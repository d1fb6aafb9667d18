//! Running seeds: one, or many on several threads.

use super::coverage::Coverage;
use super::invariants::Violation;
use super::trace::TraceMode;
use super::world::{Options, World};
use plover_types::Micros;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

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

thread_local! {
    /// The message of a panic inside a simulated world, for its report.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
}

/// A panic in a simulated world is a finding: it is kept for the report. Panics elsewhere are
/// none of our business.
fn catch_panics_quietly() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if SIMULATING.get() {
                PANIC.set(Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
}

/// What `work` returns, or the message of its panic, which is not printed.
pub(crate) fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_panics_quietly();
    SIMULATING.set(true);
    let worked = panic::catch_unwind(AssertUnwindSafe(work));
    SIMULATING.set(false);
    worked.map_err(|_| {
        let message = PANIC.take();
        let message = message.unwrap_or_else(|| "a panic without a message".to_string());
        message.replace('\n', " ")
    })
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
