//! The expectations of a simulator's tests: seeds hold, runs repeat, known bugs are caught.

use crate::coverage::Coverage;
use crate::seeds::Simulation;
use crate::trace::TraceMode;
use std::ops::Range;

/// Every invariant holds in every seed. Returns what they reached.
///
/// # Panics
/// One does not: with the end of its trace, and the command that repeats it.
pub fn holds(simulation: &impl Simulation, seeds: Range<u64>) -> Coverage {
    let mut coverage = Coverage::default();
    let mut failed = None;
    simulation.run_many(seeds, None, |outcome| {
        coverage.merge(&outcome.coverage);
        if outcome.violation.is_some() {
            failed = Some(outcome);
        }
        failed.is_none()
    });
    if let Some(outcome) = failed {
        let tail = simulation.tail_of(outcome.seed).join("\n");
        panic!("{tail}\n\n{}", simulation.headline(&outcome));
    }
    println!("{coverage}");
    coverage
}

/// The seeds have reached each of these moments.
///
/// # Panics
/// They have not.
pub fn reaches(coverage: &Coverage, moments: &[&str]) {
    for moment in moments {
        assert!(coverage.of(moment) > 0, "no seed has reached '{moment}'");
    }
}

/// The same seed is the same run: every line of its trace is the same.
///
/// # Panics
/// It is not.
pub fn repeats(simulation: impl Simulation) {
    let (traced, untraced) = (
        simulation.traced(TraceMode::Sum),
        simulation.traced(TraceMode::Off),
    );
    for seed in 0..20 {
        let (first, second) = (traced.run(seed), traced.run(seed));
        assert_eq!(
            first.trace_sum, second.trace_sum,
            "seed {seed} went two ways"
        );
        assert_eq!(first.happenings, second.happenings);
        assert_eq!(first.coverage, second.coverage);
        assert_eq!(
            first.happenings,
            untraced.run(seed).happenings,
            "looking changes seed {seed}"
        );
    }
    assert_ne!(
        traced.run(1).trace_sum,
        traced.run(2).trace_sum,
        "seeds differ"
    );
}

/// With a known bug put back, one of the invariants that it breaks is found broken within `seeds`. The
/// same seed holds without the bug.
///
/// # Panics
/// The bug was not caught.
pub fn catches(simulation: &impl Simulation, seeds: u64, invariants: &[&str]) {
    let mut caught = None;
    simulation.run_many(0..seeds, None, |outcome| {
        let violation = outcome.violation.as_ref();
        if violation.is_some_and(|found| invariants.contains(&found.invariant)) {
            caught = Some(outcome);
        }
        caught.is_none()
    });
    let caught = caught.unwrap_or_else(|| {
        panic!("{}was not caught in {seeds} seeds", simulation.words());
    });
    println!("{}", simulation.headline(&caught));
    assert_eq!(
        simulation.healthy().run(caught.seed).violation,
        None,
        "the seed fails without the bug as well"
    );
}
