//! The bench as a tool: on real labs, from the outside. No figure is asserted.

use plover_lab::state::LabName;
use plover_lab_proof::{Turn, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A bench that writes into `out`. It finds `plover` beside itself, where cargo has just put it.
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

/// Asserts that nothing is left of the lab that process `pid` made.
fn assert_no_lab(pid: u32) {
    let name: LabName = format!("bench{pid}").parse().expect("a good name");
    assert!(
        !plover_lab::down::down(&name).expect("it can be looked for"),
        "{name} is left"
    );
}

#[test]
fn one_cell_is_measured_and_a_run_that_is_complete_does_nothing_again() {
    let _turn = Turn::wait();
    let folder = Folder::new("bench-matrix");
    let arguments = [
        "--full",
        "--only",
        "redis-incr/none",
        "--rounds",
        "1",
        "--seconds",
        "1",
    ];
    let run = || {
        let child = bench(&folder.0, &arguments);
        let pid = child.id();
        let output = child.wait_with_output().expect("the bench ends");
        assert!(output.status.success(), "{output:?}");
        assert_no_lab(pid);
        let json = std::fs::read(folder.0.join("report.json")).expect("a report");
        let report: Value = serde_json::from_slice(&json).expect("it is JSON");
        (report, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (report, _) = run();
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

    let (again, said) = run();
    assert!(said.contains("going on with a run that has 1"), "{said}");
    assert!(!said.contains("round 1/1"), "{said}");
    assert_eq!(again["runs"], report["runs"]);
}

#[test]
fn a_run_that_is_stopped_leaves_nothing_behind() {
    let _turn = Turn::wait();
    let folder = Folder::new("bench-stopped");
    let only = ["--only", "redis/none", "--rounds", "1", "--seconds", "600"];
    let mut child = bench(&folder.0, &only);
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let first = lines.next().expect("it says something").expect("text");
    assert!(first.contains("round 1/1"), "{first}");
    let pid = Pid::from_raw(child.id() as i32).expect("a process has a number");
    kill_process(pid, Signal::TERM).expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1));
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(rest.concat().contains("ended by a signal"), "{rest:?}");
    assert_no_lab(child.id());
}
