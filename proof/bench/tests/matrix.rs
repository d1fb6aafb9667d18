//! The bench as a tool: on real labs, from the outside. No figure is asserted.

use plover_lab::net::Topology;
use plover_lab::process::{Process, in_namespace};
use plover_lab_proof::{Turn, program, wait_within};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The bench's lab.
const LAB: &str = "bench";

/// How long a bench may take to end after a signal.
const ENDS_WITHIN: Duration = Duration::from_secs(300);

/// A bench at work. When it is dropped it is told to end, and takes its lab down.
struct Bench {
    child: Child,
    said: PathBuf,
}

impl Bench {
    /// Starts a bench, whose words go to a file in `folder`. It finds `plover` beside itself, where cargo
    /// has just put it, and waits until no test has a lab.
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let me = Path::new(env!("CARGO_BIN_EXE_plover-bench"));
        assert_eq!(program().parent(), me.parent(), "both are of one build");
        let said = folder.join("said");
        let child = Command::new(me)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(File::create(&said).expect("a file can be made"))
            .spawn()
            .expect("the bench starts");
        Self { child, said }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("it says text")
    }

    /// Waits until such a command runs on the clients' host.
    fn client(&mut self, is_it: fn(&str) -> bool) -> Process {
        let bench = self.child.id();
        let runs = |process: &Process| {
            let line = std::fs::read(format!("/proc/{}/cmdline", process.pid));
            let line = line.unwrap_or_default();
            // `timeout` may stand between the two. Another bench has such clients, too.
            let parent = parent_of(process.pid);
            let is_ours = parent == Some(bench) || parent.and_then(parent_of) == Some(bench);
            is_ours && is_it(&String::from_utf8_lossy(&line).replace('\0', " "))
        };
        loop {
            let ended = self.child.try_wait().expect("it can be waited for");
            assert!(ended.is_none(), "no client has run: {}", self.said());
            let topology = Topology::open(LAB).expect("namespaces can be listed");
            let all = topology.map(|it| in_namespace(&it.client().path()));
            if let Some(client) = all.into_iter().flatten().find(runs) {
                return client;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tells it to end, and waits for that.
    fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        // Of one that has ended, the number may be another's by now.
        if self.child.try_wait()?.is_none() {
            if let Some(process) = Process::now(self.child.id()) {
                process.signal(Signal::TERM);
            }
        }
        wait_within(&mut self.child, ENDS_WITHIN)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The assertion that has failed is the one to report.
        let _ = self.stop();
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, which may have spaces, is in brackets before.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn assert_no_lab() {
    // Another bench than ours may have one.
    let _turn = Turn::wait();
    let name = LAB.parse().expect("a good name");
    let was = plover_lab::down::down(&name).expect("it can be looked for");
    assert!(!was, "the lab is left");
}

/// Whether a command line is that of a client.
type IsClient = fn(&str) -> bool;

#[test]
fn a_cell_is_measured_and_a_run_that_is_stopped_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let out = folder.path().display().to_string();
    let arguments = |cell, seconds| {
        let of_all = ["--rounds", "1", "--out", &out];
        [&of_all[..], &["--only", cell, "--seconds", seconds]].concat()
    };
    let mut bench = Bench::start(folder.path(), &arguments("redis-incr/none", "1"));
    let status = bench.child.wait().expect("the bench ends");
    assert!(status.success(), "{status}: {}", bench.said());
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

    let matrix = arguments("redis/none", "600");
    let quick = ["quick", "--rounds", "1", "--policy", "none"];
    // One client is a child of the bench, the other one a child of `timeout`.
    let runs: [(&[&str], IsClient); 2] = [
        (&matrix, |line| line.contains("plover-bench client ")),
        (&quick, |line| line.starts_with("redis-benchmark ")),
    ];
    for (words, is_client) in runs {
        let mut bench = Bench::start(folder.path(), words);
        let mut client = bench.client(is_client);
        // One that stands still does not end by itself.
        while !client.signal(Signal::STOP) {
            client = bench.client(is_client);
        }
        let status = bench.stop().unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(status.code(), Some(1), "{}", bench.said());
        assert!(
            bench.said().contains("ended by a signal"),
            "{}",
            bench.said()
        );
        assert!(!client.is_alive(), "the client is left");
        assert_no_lab();
    }
}
