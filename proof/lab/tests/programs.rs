//! An unmodified Redis under `plover run` on three hosts.

use plover_lab::progress::Progress;
use plover_lab_proof::{Turn, program, programs};
use std::sync::atomic::AtomicBool;

/// Two leaders die, and come back.
#[test]
fn no_acknowledged_write_of_a_program_is_lost() {
    let _turn = Turn::wait();
    let progress = Progress::spoken_by(|line| eprintln!("{line}"), AtomicBool::new(false).into());
    let report = programs::demo("t-programs", program(), &progress);
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.is_good(), "{report:#?}");
}
