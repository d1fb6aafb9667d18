//! The simulator under test: seeds that must hold, runs that must repeat, bugs that must be
//! caught.
//!
//! The counts are meant for this workspace's profiles, where even `dev` optimises a little: on
//! two cores the whole file takes about 14 s in `release` and 18 s in `dev`.

use plover_sim::run::tail_of;
use plover_sim::{Canary, Coverage, Options, Outcome, TraceMode, run, run_many};

/// Seeds that every run of the tests goes through.
const SEEDS: u64 = 2000;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn fail(outcome: &Outcome, options: &Options) -> ! {
    let violation = outcome
        .violation
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let tail = tail_of(outcome.seed, options).join("\n");
    panic!(
        "{tail}\n\nseed {0}: {violation}\nrepeat it with: ./x sim --seed {0} --trace",
        outcome.seed
    )
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
    assert_eq!(coverage.of("healed"), SEEDS, "every group recovers");
    for reached in REACHED {
        assert!(coverage.of(reached) > 0, "no seed has reached '{reached}'");
    }
}

/// Moments without which the seeds would prove little.
const REACHED: [&str; 24] = [
    "failover: a deposed leader came back as witness",
    "failover: a deposed leader won again",
    "failover: a new leader serves",
    "fault: process killed",
    "fault: process stopped",
    "fault: hypervisor killed",
    "fault: cut one way",
    "guest: lost",
    "join: failed",
    "join: more rounds",
    "join: the guest is protected",
    "life: begun by the operator's word",
    "recovery: a replica recovered its log",
    "release: late, the lease had run out",
    "release: on acknowledgement",
    "release: solo",
    "sync: done (idle)",
    "sync: done (log full)",
    "sync: done (retry)",
    "sync: failed on the leader in Exchange",
    "sync: failed on the leader in Apply",
    "sync: reset with a fetch",
    "sync: applied after its leader was lost",
    "process: killed in a sync, in Apply",
];

/// The same seed is the same run: every line of its trace is the same.
#[test]
fn a_seed_repeats_itself() {
    let traced = Options {
        trace: TraceMode::Sum,
        ..Options::default()
    };
    for seed in 0..20 {
        let (first, second) = (run(seed, &traced), run(seed, &traced));
        assert_eq!(
            first.trace_sum, second.trace_sum,
            "seed {seed} went two ways"
        );
        assert_eq!(first.happenings, second.happenings);
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
        let found = outcome
            .violation
            .as_ref()
            .is_some_and(|v| invariants.contains(&v.invariant));
        if found {
            caught = Some(outcome);
        }
        caught.is_none()
    });
    let caught = caught.unwrap_or_else(|| panic!("{canary:?} was not caught in {seeds} seeds"));
    println!(
        "{canary:?}: seed {}, {}",
        caught.seed,
        caught.violation.clone().unwrap()
    );
    let healthy = run(caught.seed, &Options::default());
    assert_eq!(
        healthy.violation, None,
        "the seed fails without the bug as well"
    );
}

/// A replica that restarts votes with the log it has forgotten.
#[test]
fn a_vote_after_amnesia_is_caught() {
    catches(
        Canary::VoteAfterAmnesia,
        600,
        &["committed_not_lost", "external_consistency"],
    );
}

/// Outputs leave before the secondary has acknowledged their state.
#[test]
fn a_release_before_the_acknowledgement_is_caught() {
    catches(Canary::ReleaseBeforeAck, 20, &["external_consistency"]);
}

/// A sync that failed forgets the pages whose dirty bits it had cleared.
#[test]
fn lost_dirty_bits_are_caught() {
    let found_by = ["debt_never_forgotten", "memory_equal_after_sync"];
    catches(Canary::DirtyBitsLost, 200, &found_by);
}

/// Larger groups, fewer seeds.
#[test]
fn five_replicas_hold() {
    let options = Options {
        replicas: 5,
        ..Options::default()
    };
    run_many(0, 100, threads(), &options, |outcome| {
        if outcome.violation.is_some() {
            fail(&outcome, &options);
        }
        true
    });
}
