//! Running seeds of groups.

use super::world::{Options, World};
use plover_sim::TraceMode;
use plover_sim::panics::without_panic;
use plover_sim::seeds::{self, Outcome};

/// The violation of a seed and the command that repeats it; empty if there was none.
pub fn headline(outcome: &Outcome, options: &Options) -> String {
    let mut repeat = format!("./x sim --group --seed {} --trace", outcome.seed);
    if let Some(replicas) = options.replicas {
        repeat += &format!(" --replicas {replicas}");
    }
    if let Some(name) = super::canary_name(options.canary) {
        repeat += &format!(" --canary {name}");
    }
    outcome.headline(&repeat)
}

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
