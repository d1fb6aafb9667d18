//! The simulator under test: seeds that must hold, runs that must repeat, bugs that must be
//! caught.
//!
//! The counts are meant for this workspace's profiles, where even `dev` optimises a little.

use apus::Canary;
use plover_consensus_proof::sim::{
    Coverage, Options, Outcome, REACHED, TraceMode, headline, run, run_many, tail_of,
};

/// Seeds that every run of the tests goes through.
const SEEDS: u64 = 2000;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn fail(outcome: &Outcome, options: &Options) -> ! {
    let tail = tail_of(outcome.seed, options).join("\n");
    panic!("{tail}\n\n{}", headline(outcome, options))
}

/// Every invariant holds in every seed; and the seeds reach what they are meant to reach.
#[test]
fn two_thousand_seeds_hold() {
    let options = Options::default();
    let mut coverage = Coverage::default();
    let mut failed = None;
    run_many(0, SEEDS, threads(), &options, |outcome| {
        coverage.merge(&outcome.coverage);
        if outcome.violation.is_some() {
            failed = Some(outcome);
        }
        failed.is_none()
    });
    if let Some(outcome) = failed {
        fail(&outcome, &options);
    }
    println!("{coverage}");
    for reached in REACHED {
        assert!(coverage.of(reached) > 0, "no seed has reached '{reached}'");
    }
    // Most groups must recover, or the property that they do would prove little.
    let serve = coverage.of("end: the group serves");
    assert!(
        serve > SEEDS * 4 / 5,
        "only {serve} of {SEEDS} groups serve in the end"
    );
}

/// The same seed is the same run: every line of its trace is the same.
#[test]
fn a_seed_repeats_itself() {
    let trace = TraceMode::Sum;
    let traced = Options {
        trace,
        ..Options::default()
    };
    for seed in 0..20 {
        let (first, second) = (run(seed, &traced), run(seed, &traced));
        assert_eq!(
            first.trace_sum, second.trace_sum,
            "seed {seed} went two ways"
        );
        assert_eq!(first.coverage, second.coverage);
        let untraced = run(seed, &Options::default());
        assert_eq!(
            first.happenings, untraced.happenings,
            "looking changes seed {seed}"
        );
    }
    assert_ne!(
        run(1, &traced).trace_sum,
        run(2, &traced).trace_sum,
        "seeds differ"
    );
}

/// Puts a known bug back and looks for one of the invariants that it breaks, within `seeds`.
fn catches(canary: Canary, seeds: u64, invariants: &[&str]) {
    let options = Options {
        canary,
        ..Options::default()
    };
    let mut caught = None;
    run_many(0, seeds, threads(), &options, |outcome| {
        let violation = outcome.violation.as_ref();
        if violation.is_some_and(|found| invariants.contains(&found.invariant)) {
            caught = Some(outcome);
        }
        caught.is_none()
    });
    let caught = caught.unwrap_or_else(|| panic!("{canary:?} was not caught in {seeds} seeds"));
    println!("{canary:?}: {}", headline(&caught, &options));
    let healthy = run(caught.seed, &Options::default());
    assert_eq!(
        healthy.violation, None,
        "the seed fails without the bug as well"
    );
}

/// The invariants that a lost entry breaks: a leader lacks it, another entry is delivered in its
/// place, or the core itself asserts that it is asked to drop a committed entry.
const LOSS: [&str; 4] = [
    "committed_not_lost",
    "logs_agree",
    "acknowledged_survive",
    "no_panic",
];

/// A replica that restarts votes with the log that it has forgotten.
#[test]
fn a_vote_after_amnesia_is_caught() {
    catches(Canary::VoteAfterAmnesia, 2000, &LOSS);
}

/// An acceptor acknowledges entries that its disk does not have yet.
#[test]
fn an_acknowledgement_before_the_disk_is_caught() {
    let found_by = ["held_by_a_quorum", "committed_not_lost"];
    catches(Canary::AcknowledgeBeforeDisk, 200, &found_by);
}

/// Majorities are counted by the group's first members, not by its present ones.
#[test]
fn a_quorum_of_the_wrong_group_is_caught() {
    let found_by = [&LOSS[..], &["held_by_a_quorum", "one_leader_a_view"]];
    catches(Canary::FirstMembersForEver, 300, &found_by.concat());
}

/// A candidate is elected by a majority of a group that its merged log knows to be gone.
#[test]
fn an_election_by_the_old_majority_is_caught() {
    catches(Canary::OldMajorityElects, 2000, &LOSS);
}

/// A follower stands for election at once: coming back from a cut, it deposes a healthy leader.
#[test]
fn an_election_without_a_pre_vote_is_caught() {
    catches(Canary::SkipPreVote, 100, &["healthy_leader_stays"]);
}
