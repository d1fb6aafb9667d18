//! The model checker under test: nothing within its bound breaks a promise, it reaches what it is
//! meant to reach, and a bug that is put back is found.
//!
//! `./x sim --model --depth N` goes deeper than these bounds, which fit every run of the tests.

use apus::Canary;
use plover_consensus_proof::model::{Bounds, Group, Report, explore};
use std::time::Duration;

/// Far more than any of these takes: a machine under load must not turn a proof into a sample.
const PATIENCE: Duration = Duration::from_secs(3600);

fn look(bounds: Bounds, canary: Canary, guest: bool) -> Report {
    let group = Group {
        bounds,
        canary,
        guest,
    };
    let report = explore(group, PATIENCE);
    println!("{group:?}: {report}");
    report
}

fn holds(report: &Report) {
    assert!(report.broken.is_empty(), "{report}");
    assert!(report.complete, "{report}");
}

/// Two proposals, three timeouts, one lost memory, one doubled record, in every order.
#[test]
fn nothing_breaks_within_six_steps() {
    let depth = 6;
    let report = look(
        Bounds {
            depth,
            ..Bounds::default()
        },
        Canary::None,
        false,
    );
    holds(&report);
    assert!(report.states > 100_000, "{report}");
}

/// A lost memory and a view change, far enough to finish both.
const FORGET_AND_ELECT: Bounds = Bounds {
    depth: 8,
    proposals: 0,
    timeouts: 3,
    forgets: 1,
    doubles: 0,
};

#[test]
fn no_lost_memory_breaks_a_view_change() {
    let report = look(FORGET_AND_ELECT, Canary::None, false);
    holds(&report);
    for moment in ["a second view begins", "a replica recovers its log"] {
        assert!(report.reached.contains(&moment), "{moment}: {report}");
    }
}

#[test]
fn a_vote_after_amnesia_is_found() {
    let report = look(FORGET_AND_ELECT, Canary::VoteAfterAmnesia, false);
    let names: Vec<_> = report.broken.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["committed_not_lost"], "{report}");
}

/// A guest that the leader holds with replica 1, or goes on with alone.
#[test]
fn a_vote_of_a_replica_that_forgot_loses_nothing() {
    let report = look(FORGET_AND_ELECT, Canary::None, true);
    holds(&report);
    let moment = "a replica that forgot elects";
    assert!(report.reached.contains(&moment), "{report}");
}

/// The leader went on alone, and a replica that agreed to that forgets it; or the leader committed an
/// input without the secondary, and the third replica forgets that.
#[test]
fn each_half_of_what_makes_such_a_vote_safe_is_needed() {
    for canary in [Canary::MilestoneNotStored, Canary::CommitWithoutInSync] {
        let report = look(FORGET_AND_ELECT, canary, true);
        let names: Vec<_> = report.broken.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["committed_not_lost"], "{report}");
    }
}
