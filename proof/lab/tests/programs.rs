//! Unmodified programs under `plover run` on three hosts.

use plover_lab_proof::programs::{self, Plan};
use plover_lab_proof::{Turn, program, progress};

/// Two leaders of a Redis die, and come back.
fn two_leaders_die(name: &str, program_keys: &str) {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = program_keys.into();
    let subject = programs::named("redis").unwrap();
    let report = programs::run(name, program(), subject, &plan, &progress);
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.is_good(), "{report:#?}");
}

#[test]
fn no_acknowledged_write_of_redis_is_lost() {
    two_leaders_die("t-programs", "via = \"proxy\"");
}

/// The program reads its clients itself, and its replies wait for the commit.
#[test]
fn none_is_lost_through_a_preloaded_library() {
    two_leaders_die("t-preload", "via = \"preload\"");
}

/// The same, and its reads wait (APUS).
#[test]
fn none_is_lost_when_reads_wait() {
    two_leaders_die("t-reads", "via = \"preload\"\nwait = \"read\"");
}
