//! The simulator under test: seeds that must hold, runs that must repeat, bugs that must be caught.

use plover_program::Canary;
use plover_programs_proof::{Options, REACHED};
use plover_sim::expect::{self, holds, reaches, repeats};

#[test]
fn four_hundred_seeds_hold() {
    let coverage = holds(&Options::default(), 0..400);
    reaches(&coverage, &REACHED);
}

#[test]
fn a_seed_repeats_itself() {
    repeats(Options::default());
}

fn catches(canary: Canary, invariants: &[&str]) {
    catches_within(200, canary, invariants);
}

fn catches_within(seeds: u64, canary: Canary, invariants: &[&str]) {
    let options = Options {
        canary,
        ..Options::default()
    };
    expect::catches(&options, seeds, invariants);
}

/// A client gets a reply that the group may forget.
#[test]
fn a_reply_before_the_commit_is_caught() {
    let found_by = ["programs_agree", "replies_are_committed"];
    catches(Canary::ReplyBeforeCommit, &found_by);
}

#[test]
fn a_skipped_entry_is_caught() {
    catches(Canary::SkipEntry, &["programs_agree"]);
}

#[test]
fn a_leader_that_has_diverged_is_caught() {
    catches(Canary::LeadDiverged, &["heals"]);
}

#[test]
fn a_start_from_what_was_found_wrong_is_caught() {
    // One seed in four hundred has it.
    catches_within(1000, Canary::StartWrong, &["wrong_is_restored"]);
}

#[test]
fn input_on_two_connections_at_once_is_caught() {
    catches(Canary::FeedTogether, &["programs_agree"]);
}

#[test]
fn connections_of_a_former_leader_are_caught() {
    catches(Canary::KeepConnections, &["connections_end"]);
}

#[test]
fn a_log_that_is_trimmed_too_early_is_caught() {
    catches(Canary::TrimEarly, &["trim_is_held"]);
}

/// A deposed leader goes on although its program has executed what is lost.
#[test]
fn a_leader_that_stands_while_it_is_ahead_is_caught() {
    let found_by = ["programs_agree", "replies_are_committed", "heals"];
    catches(Canary::StandAhead, &found_by);
}

/// A checkpoint is taken in the middle of a request, and its connection goes on.
#[test]
fn a_checkpoint_in_the_middle_of_a_request_is_caught() {
    let found_by = ["programs_agree", "replies_are_committed", "heals"];
    catches(Canary::TakeUnanswered, &found_by);
}

/// A program is told of the end of a connection while it executes a request of it, and gives that up.
#[test]
fn an_end_in_the_middle_of_a_request_is_caught() {
    catches(Canary::EndUnanswered, &["programs_agree"]);
}

/// A leader's program reads its clients while the cut of a checkpoint is on its way.
#[test]
fn a_cut_while_the_program_reads_is_caught() {
    let found_by = ["programs_agree", "replies_are_committed", "heals"];
    catches(Canary::CutUnquiet, &found_by);
}
