//! Unmodified programs under `plover run` on three hosts.

use plover_lab::progress::Progress;
use plover_lab_proof::programs::{self, Plan};
use plover_lab_proof::{Turn, program};
use std::sync::atomic::AtomicBool;

fn demo(name: &str) {
    let _turn = Turn::wait();
    let progress = Progress::spoken_by(|line| eprintln!("{line}"), AtomicBool::new(false).into());
    let subject = programs::named(name).unwrap();
    let report = programs::run("t-programs", program(), subject, &Plan::demo(), &progress);
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.is_good(), "{report:#?}");
}

/// Two leaders die, and come back.
#[test]
fn no_acknowledged_write_of_redis_is_lost() {
    demo("redis");
}
