//! `plover metrics` as Prometheus sees it, beside replicas that answer, hang, or are not there.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A replica's directory and configuration; what answers on its control socket is up to the test.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(guest: &str, me: u8) -> Self {
        let dir = tempfile::tempdir().expect("a directory is made");
        let at = dir.path().display();
        let config = format!(
            "[group]\nname = '{guest}'\nme = {me}\nreplica = [\n\
             {{ id = 0, address = '127.0.0.1:7700' }},\n{{ id = 1, address = '127.0.0.1:7701' }},\n\
             {{ id = 2, address = '127.0.0.1:7702' }},\n]\n\
             [guest]\nkernel = '{at}/kernel'\nmac = '52:54:00:77:00:01'\n\
             [net]\ntap = 'guest0'\n\
             [paths]\nrun_dir = '{at}'\nstate_dir = '{at}'\n"
        );
        std::fs::write(dir.path().join("replica.toml"), config).expect("a file is written");
        Self { dir }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("replica.toml")
    }

    fn listen(&self) -> UnixListener {
        UnixListener::bind(self.dir.path().join("control.sock")).expect("a socket is made")
    }

    /// Answers each request with `status`.
    fn answers(self, status: Value) -> Self {
        let listener = self.listen();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut line = String::new();
                let read = BufReader::new(&stream).read_line(&mut line);
                assert!(read.is_ok() && line == "{\"op\":\"status\"}\n", "{line}");
                let _ = writeln!(stream, "{status}");
            }
        });
        self
    }
}

/// A running exporter.
struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    fn start(hosts: &[&Host]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_plover"))
            .args(["metrics", "--listen", "127.0.0.1:0", "--config"])
            .args(hosts.iter().map(|host| host.config()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("plover starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its output is a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it listens");
        let address = line
            .trim()
            .strip_prefix("metrics are at http://")
            .and_then(|url| url.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("'{line}'")).to_owned();
        Self { child, address }
    }

    /// The head and the body of an answer.
    fn get(&self, path: &str, accept: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        // HTTP/1.0: the body comes as it is, and ends with the connection.
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: {accept}\r\n\r\n",
            self.address
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        (head.to_owned(), body.to_owned())
    }

    fn scrape(&self) -> String {
        self.get(
            "/metrics",
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
        )
        .1
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|it| it == *line),
            "no '{line}' in:\n{text}"
        );
    }
}

/// A leader, as far as the test looks at it.
fn leader() -> Value {
    json!({
        "id": 1, "group": "shop", "policy": "hybrid", "machine": "q35", "accel": "kvm",
        "warm_witness": "disk",
        "role": "leader", "view": "7@r1", "leader": 1, "members": [0, 1, 2], "isr": [0, 1],
        "protected": true, "serving": true, "unprotected_because": null,
        "refused": {"2": "it has \"another\" release"},
        "suspicions": 3, "times_deposed": 1, "suspected_after_us": 85_260,
        "takeovers": {"silence": 2, "reported": 0, "handed_over": 1, "stopped": 1},
        "handovers": {"uplink": 1, "hypervisor": 0},
        "last_failover": {"how": "reported", "unix_s": 1_790_000_000, "noticed_us": null,
            "elected_us": 12_000, "serving_us": 3_000},
        "held_outputs": 4,
        "outputs": {"oldest_us": 1500},
        "sync": {
            "totals": {"reasons": {"quiet": 5, "differ": 2}, "dirty": 300, "same": 200,
                "phases_us": {"idle": 0, "scan": 1_500_000}},
            "pause_histogram": {"le_us": [100, 200_000], "counts": [1, 2, 4], "sum_us": 2_500_000},
        },
        "disks_whole": true, "disk_failure": "full",
        "memory": {"private_kib": 2, "shared_kib": 3},
    })
}

#[test]
fn the_figures_are_those_of_the_status() {
    let host = Host::new("shop", 1).answers(leader());
    let exporter = Exporter::start(&[&host]);
    let text = exporter.scrape();
    has(
        &text,
        &[
            r#"plover_up{guest="shop",replica="1"} 1"#,
            r#"plover_replica_info{guest="shop",replica="1",policy="hybrid",machine="q35",accel="kvm",warm_witness="disk"} 1"#,
            r#"plover_role{guest="shop",replica="1",role="leader"} 1"#,
            r#"plover_role{guest="shop",replica="1",role="witness"} 0"#,
            r#"plover_view{guest="shop",replica="1"} 7"#,
            r#"plover_in_sync_members{guest="shop",replica="1"} 2"#,
            r#"plover_in_sync{guest="shop",replica="1",member="2"} 0"#,
            r#"plover_protected{guest="shop",replica="1"} 1"#,
            r#"plover_peer_refused_info{guest="shop",replica="1",peer="2",why="it has \"another\" release"} 1"#,
            "# TYPE plover_suspicions counter",
            r#"plover_suspicions_total{guest="shop",replica="1"} 3"#,
            r#"plover_takeovers_total{guest="shop",replica="1",how="silence"} 2"#,
            r#"plover_takeovers_total{guest="shop",replica="1",how="stopped"} 1"#,
            r#"plover_handovers_total{guest="shop",replica="1",why="uplink"} 1"#,
            r#"plover_last_takeover_timestamp_seconds{guest="shop",replica="1"} 1790000000"#,
            r#"plover_last_takeover_seconds{guest="shop",replica="1",part="elected"} 0.012"#,
            r#"plover_held_outputs{guest="shop",replica="1"} 4"#,
            r#"plover_held_output_age_seconds{guest="shop",replica="1"} 0.0015"#,
            r#"plover_syncs_total{guest="shop",replica="1",reason="quiet"} 5"#,
            r#"plover_sync_dirty_pages_total{guest="shop",replica="1"} 300"#,
            "# UNIT plover_sync_phase_seconds seconds",
            r#"plover_sync_phase_seconds_total{guest="shop",replica="1",phase="scan"} 1.5"#,
            r#"plover_sync_pause_seconds_bucket{le="0.0001",guest="shop",replica="1"} 1"#,
            r#"plover_sync_pause_seconds_bucket{le="0.2",guest="shop",replica="1"} 3"#,
            r#"plover_sync_pause_seconds_bucket{le="+Inf",guest="shop",replica="1"} 7"#,
            r#"plover_sync_pause_seconds_count{guest="shop",replica="1"} 7"#,
            r#"plover_sync_pause_seconds_sum{guest="shop",replica="1"} 2.5"#,
            r#"plover_disk_failed{guest="shop",replica="1"} 1"#,
            r#"plover_memory_bytes{guest="shop",replica="1",kind="private"} 2048"#,
        ],
    );
    assert!(text.ends_with("# EOF\n"));
    // A field that is null or absent gives no sample, and above all no 0.
    for absent in [
        "plover_unprotected_info",
        "part=\"silence\"",
        "plover_copy_open",
    ] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
}

/// Programs that do not ask for OpenMetrics get the older form, which names counters and infos otherwise.
#[test]
fn both_forms_are_understood() {
    let host = Host::new("shop", 1).answers(leader());
    let exporter = Exporter::start(&[&host]);
    let (head, text) = exporter.get("/metrics", "*/*");
    assert!(
        head.starts_with("HTTP/1.") && head.contains(" 200 "),
        "{head}"
    );
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    has(
        &text,
        &[
            "# TYPE plover_suspicions_total counter",
            r#"plover_suspicions_total{guest="shop",replica="1"} 3"#,
            "# TYPE plover_replica_info gauge",
        ],
    );
    assert!(
        !text.contains("# UNIT") && !text.contains("# EOF"),
        "{text}"
    );
    promtool(&["check", "metrics"], &text);

    let (head, _) = exporter.get("/metrics", "application/openmetrics-text");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(exporter.get("/", "*/*").1.contains("/metrics"));
    assert!(exporter.get("/nowhere", "*/*").0.contains(" 404 "));
}

#[test]
fn a_replica_that_hangs_is_down_within_a_second_and_delays_no_other() {
    let well = Host::new("shop", 1).answers(leader());
    let hangs = Host::new("shop", 2);
    // It takes connections, and says nothing.
    let _listener = hangs.listen();
    let absent = Host::new("web", 0);
    let exporter = Exporter::start(&[&well, &hangs, &absent]);
    let began = Instant::now();
    let text = exporter.scrape();
    let took = began.elapsed();
    has(
        &text,
        &[
            r#"plover_up{guest="shop",replica="1"} 1"#,
            r#"plover_up{guest="shop",replica="2"} 0"#,
            r#"plover_up{guest="web",replica="0"} 0"#,
            r#"plover_view{guest="shop",replica="1"} 7"#,
        ],
    );
    let of_the_one = text.lines().filter(|line| line.contains("replica=\"2\""));
    assert_eq!(of_the_one.count(), 2, "it is down, and that took a second");
    // Far from the 10 s for which Prometheus waits; the rest is for a busy machine.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn the_alerts_fire_when_they_should() {
    let share = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../share/prometheus");
    let file = |name: &str| share.join(name).display().to_string();
    promtool(&["check", "rules", &file("alerts.yml")], "");
    promtool(&["test", "rules", &file("alerts-test.yml")], "");
}

/// Runs `promtool`, if this machine has it (Debian: the package `prometheus`).
fn promtool(arguments: &[&str], input: &str) {
    let started = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        eprintln!("skipped: promtool is not installed, so '{arguments:?}' was not looked at");
        return;
    };
    let mut stdin = child.stdin.take().expect("its input is a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{arguments:?}: {said}");
}
