//! The drill, once: planned work of every kind and two crashes, under load.

use plover_lab_proof::drill::{self, Plan};
use plover_lab_proof::{Turn, program, progress};

#[test]
fn planned_work_and_two_crashes_lose_nothing() {
    let _turn = Turn::wait();
    // Tests before this one have left much to write to the disk, and each election waits for a small write behind that.
    let synced = std::process::Command::new("sync").status();
    assert!(synced.is_ok_and(|status| status.success()));
    let plan = Plan {
        name: "t-drill",
        program: program().to_owned(),
        rounds: 1,
        only: Vec::new(),
        newer_qemu: None,
    };
    let progress = progress();
    let report = drill::run(&plan, &progress).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.is_good(), "{report}");
    eprintln!("{report}");
}
