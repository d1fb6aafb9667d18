//! The bench as a tool: on real labs, from the outside. No figure is asserted.

use plover_lab_proof::program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A bench that writes into `out`. It finds `plover` beside itself, where cargo has just put it, and
/// waits until no test has a lab.
fn bench(out: &Path, arguments: &[&str]) -> Child {
    let me = Path::new(env!("CARGO_BIN_EXE_plover-bench"));
    assert_eq!(program().parent(), me.parent(), "both are of one build");
    Command::new(me)
        .args(arguments)
        .arg("--out")
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the bench starts")
}

fn assert_no_lab() {
    let name = "bench".parse().expect("a good name");
    let was = plover_lab::down::down(&name).expect("it can be looked for");
    assert!(!was, "the lab is left");
}

#[test]
fn a_cell_is_measured_and_a_run_that_is_stopped_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let arguments = |cell, seconds| ["--only", cell, "--rounds", "1", "--seconds", seconds];
    let child = bench(folder.path(), &arguments("redis-incr/none", "1"));
    let output = child.wait_with_output().expect("the bench ends");
    assert!(output.status.success(), "{output:?}");
    assert_no_lab();
    let json = std::fs::read(folder.path().join("report.json")).expect("a report");
    let report: Value = serde_json::from_slice(&json).expect("it is JSON");
    let cell = &report["cells"][0];
    assert_eq!(
        (&cell["workload"], &cell["policy"]),
        (&"redis-incr".into(), &"none".into())
    );
    for figure in ["requests_per_s", "p50_ms", "p99_ms", "cpus"] {
        let median = cell["figures"][figure]["median"].as_f64();
        assert!(
            median.is_some_and(|median| median > 0.0),
            "{figure}: {cell}"
        );
    }
    assert!(
        cell["figures"]["slots_per_s"].is_null(),
        "nothing is synced: {cell}"
    );

    let mut child = bench(folder.path(), &arguments("redis/none", "600"));
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let first = lines.next().expect("it says something").expect("text");
    assert!(first.contains("round 1/1"), "{first}");
    let pid = Pid::from_raw(child.id() as i32).expect("a process has a number");
    kill_process(pid, Signal::TERM).expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1));
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(rest.concat().contains("ended by a signal"), "{rest:?}");
    assert_no_lab();
}
