//! The simulator under test: seeds that must hold, runs that must repeat, bugs that must be
//! caught.
//!
//! The counts are meant for this workspace's profiles, where even `dev` optimises a little.

use apus::Canary;
use plover_consensus_proof::sim::{Options, REACHED};
use plover_sim::expect::{self, holds, reaches, repeats};

/// Seeds that every run of the tests goes through.
const SEEDS: u64 = 2000;

/// Every invariant holds in every seed; and the seeds reach what they are meant to reach.
#[test]
fn two_thousand_seeds_hold() {
    let coverage = holds(&Options::default(), 0..SEEDS);
    reaches(&coverage, &REACHED);
    // Most groups must recover, or the property that they do would prove little.
    let serve = coverage.of("end: the group serves");
    assert!(
        serve > SEEDS * 4 / 5,
        "only {serve} of {SEEDS} groups serve in the end"
    );
}

#[test]
fn a_seed_repeats_itself() {
    repeats(Options::default());
}

/// Puts a known bug back and looks for one of the invariants that it breaks, within `seeds`.
fn catches(canary: Canary, seeds: u64, invariants: &[&str]) {
    let options = Options {
        canary,
        ..Options::default()
    };
    expect::catches(&options, seeds, invariants);
}

/// The invariants that a lost entry breaks: a leader lacks it, another entry is delivered in its
/// place, or a replica refuses a leader that asks it to drop a committed entry.
const LOSS: [&str; 4] = [
    "committed_not_lost",
    "logs_agree",
    "acknowledged_survive",
    "nobody_is_refused",
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

/// A replica that forgot its log counts as recovered before its disk has the log that a leader sent.
#[test]
fn a_recovery_before_the_disk_is_caught() {
    let found_by = ["recovered_logs_are_stored"];
    catches(Canary::RecoverBeforeDisk, 2000, &found_by);
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

/// A report of the death of one process counts for the replica's next process, which leads.
#[test]
fn a_report_of_an_older_process_that_counts_is_caught() {
    catches(Canary::MournTheLiving, 2000, &["lease_exclusive"]);
}

/// A process that only stands still is reported dead: its lease is still valid when another leads.
#[test]
fn a_report_before_the_death_is_caught() {
    catches(Canary::ReportBeforeDeath, 300, &["lease_exclusive"]);
}

/// A leader has asked the voters for a short span, and counts the long one.
#[test]
fn a_lease_by_the_wrong_span_is_caught() {
    catches(Canary::CountTheTimeout, 2000, &["lease_exclusive"]);
}
