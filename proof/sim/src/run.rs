//! Running seeds of protected groups.

pub use crate::seeds::Outcome;

use crate::panics::without_panic;
use crate::seeds;
use crate::trace::TraceMode;
use crate::world::{Options, World};

/// Runs one seed.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    let ran = without_panic(|| world.run());
    let (violation, coverage) = (world.violation.take(), std::mem::take(&mut world.coverage));
    let passed = (world.plan.now(), world.plan.planned());
    Outcome::new(seed, ran.map(|()| violation), coverage, world.trace, passed)
}

/// Runs a seed again to see its last lines.
pub fn tail_of(seed: u64, options: &Options) -> Vec<String> {
    let trace = TraceMode::Sum;
    run(seed, &Options { trace, ..*options }).tail
}

/// Runs `count` seeds from `start` on `threads` threads; `each` sees every outcome as it comes
/// and returns whether to go on.
pub fn run_many(
    start: u64,
    count: u64,
    threads: usize,
    options: &Options,
    each: impl FnMut(Outcome) -> bool + Send,
) {
    let seeds = start..start + count;
    seeds::run_many(seeds, threads, |seed| run(seed, options), each);
}
