//! One measurement: a client loads the guest, and the replicas' counters are read around it.

use super::figures::Figures;
use super::guests;
use super::observe::{Snapshot, Window};
use super::workload::{Client, Workload};
use crate::children::{Process, check};
use crate::client::{self, Latency, Measured};
use crate::lab::Lab;
use anyhow::{Context, Result, bail, ensure};
use plover_lab_proof::pgbench::committed_within;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long a guest is loaded, ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    /// The warm-up, which does not count.
    pub warm_up_ms: u64,
    /// The time that counts.
    pub span_ms: u64,
}

/// Puts a lab's guest under a workload. Files that a client needs or writes go to `scratch`.
pub(crate) fn measure(
    lab: &Lab,
    workload: &Workload,
    spans: Spans,
    scratch: &Path,
) -> Result<Figures> {
    let (client, window) = match workload.client {
        Client::Own {
            port,
            traffic,
            connections,
            batch,
        } => {
            let kind = clap::ValueEnum::to_possible_value(&traffic.kind);
            let kind = kind.context("every kind of traffic has a name")?;
            let pairs = [
                ("--to", format!("{}:{port}", lab.guest_ip()?)),
                ("--traffic", kind.get_name().to_owned()),
                ("--updates", traffic.updates.to_string()),
                ("--value-bytes", traffic.value_bytes.to_string()),
                ("--connections", connections.to_string()),
                ("--batch", batch.to_string()),
                ("--warm-up-ms", spans.warm_up_ms.to_string()),
                ("--span-ms", spans.span_ms.to_string()),
            ];
            own(lab, pairs.map(|(flag, value)| format!("{flag}={value}")))?
        }
        Client::Wrk {
            port,
            path,
            connections,
        } => {
            let url = format!("http://{}:{port}{path}", lab.guest_ip()?);
            wrk(lab, spans, &url, connections, scratch)?
        }
        Client::Pgbench { connections } => pgbench(lab, spans, connections, scratch)?,
        Client::Nobody => {
            let before = Snapshot::take(lab)?;
            let end = Instant::now() + Duration::from_millis(spans.span_ms);
            while Instant::now() < end {
                check()?;
                std::thread::sleep(Duration::from_millis(50));
            }
            let window = Snapshot::take(lab)?.since(&before)?;
            return Ok(Figures {
                client: None,
                window,
            });
        }
    };
    ensure!(
        client.requests > 0,
        "nothing was answered in {:.1} s",
        client.seconds
    );
    Ok(Figures {
        client: Some(client),
        window,
    })
}

/// Our own client, which prints when its time begins and ends.
fn own(lab: &Lab, options: [String; 8]) -> Result<(Measured, Window)> {
    let me = std::env::current_exe().context("cannot find the program that is running")?;
    let mut command = lab.on_client(&[me.as_os_str(), "client".as_ref()])?;
    command
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut task = Process::start(&mut command)?;
    let child = task.child();
    let pipes = child.stdout.take().zip(child.stderr.take());
    let (out, mut err) = pipes.context("its output is piped")?;
    let mut lines = BufReader::new(out).lines();
    let mut next = || lines.next().transpose();
    let mut failed = |task: Process| -> Result<anyhow::Error> {
        let mut said = String::new();
        err.read_to_string(&mut said)?;
        let status = task.wait()?;
        Ok(anyhow::anyhow!(
            "the client failed ({status}): {}",
            said.trim()
        ))
    };
    if next()?.as_deref() != Some(client::BEGAN) {
        return Err(failed(task)?);
    }
    let before = Snapshot::take(lab)?;
    if next()?.as_deref() != Some(client::ENDED) {
        return Err(failed(task)?);
    }
    let window = Snapshot::take(lab)?.since(&before)?;
    let Some(line) = next()? else {
        return Err(failed(task)?);
    };
    let measured = serde_json::from_str(&line).context("the client says something else")?;
    task.wait()?;
    Ok((measured, window))
}

/// Whole seconds, for clients that take nothing shorter.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000).max(1)
}

/// How much longer than it was told to a client may take. Under a slow policy its last request waits for several
/// checkpoints.
const LATE_S: u64 = 120;

/// How long the tables of `pgbench` may take, with checkpoints every 100 ms, too.
const FILLED_WITHIN_S: u64 = 600;

/// Makes `wrk` print one line of figures at the end.
const WRK_SCRIPT: &str = r#"
done = function(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format("plover %d %d %d %d %d %d\n", summary.requests, summary.duration,
        latency:percentile(50), latency:percentile(95), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#;

fn wrk(
    lab: &Lab,
    spans: Spans,
    url: &str,
    connections: u32,
    scratch: &Path,
) -> Result<(Measured, Window)> {
    let script = scratch.join("wrk.lua");
    std::fs::write(&script, WRK_SCRIPT)
        .with_context(|| format!("cannot write {}", script.display()))?;
    let (connections, script) = (connections.to_string(), script.display().to_string());
    let run = |ms| {
        let span = format!("{}s", seconds(ms));
        // Under a slow policy a request waits for several checkpoints, which is no error.
        let words = [
            "wrk",
            "-t",
            "1",
            "-c",
            &connections,
            "-d",
            &span,
            "--timeout",
            "30s",
            "-s",
            &script,
            url,
        ];
        lab.exec_within(seconds(ms) + LATE_S, &words)
    };
    run(spans.warm_up_ms)?;
    let before = Snapshot::take(lab)?;
    let said = run(spans.span_ms)?;
    let window = Snapshot::take(lab)?.since(&before)?;
    Ok((wrk_figures(&said)?, window))
}

fn wrk_figures(said: &str) -> Result<Measured> {
    let line = said.lines().find_map(|line| line.strip_prefix("plover "));
    let numbers: Vec<f64> = line
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.parse().ok())
        .collect();
    let [requests, duration_us, p50_us, p95_us, p99_us, errors] = numbers[..] else {
        bail!("wrk says something else: {said}");
    };
    ensure!(
        errors == 0.0,
        "wrk counted {errors} errors in {requests} requests"
    );
    Ok(Measured {
        clock_ppm: None,
        requests: requests as u64,
        seconds: duration_us / 1e6,
        latency: Some(Latency {
            p50_us,
            p95_us,
            p99_us,
        }),
    })
}

fn pgbench(
    lab: &Lab,
    spans: Spans,
    connections: u32,
    scratch: &Path,
) -> Result<(Measured, Window)> {
    let (guest, connections) = (lab.guest_ip()?, connections.to_string());
    let prefix = scratch.join("pgbench").display().to_string();
    let pgbench = guests::client("postgres", "pgbench");
    let pgbench = pgbench.as_str();
    let server = ["-h", &guest, "-U", "postgres"];
    let fill = [pgbench, "-i", "-q", "-s", "1"];
    lab.exec_within(
        FILLED_WITHIN_S,
        &[&fill[..], &server, &["postgres"]].concat(),
    )?;
    let run = |ms| {
        let span = seconds(ms).to_string();
        let words = [
            pgbench,
            "-n",
            "-c",
            &connections,
            "-j",
            "1",
            "-T",
            &span,
            "-l",
        ];
        let log = ["--log-prefix", &prefix];
        lab.exec_within(
            seconds(ms) + LATE_S,
            &[&words[..], &log, &server, &["postgres"]].concat(),
        )
    };
    run(spans.warm_up_ms)?;
    take_logs(scratch)?;
    let before = Snapshot::take(lab)?;
    run(spans.span_ms)?;
    let window = Snapshot::take(lab)?.since(&before)?;
    let (log, seconds) = (take_logs(scratch)?, seconds(spans.span_ms));
    let measured = Measured {
        clock_ppm: None,
        requests: committed_within(&log, seconds) as u64,
        seconds: seconds as f64,
        latency: Latency::of(pgbench_latencies(&log)),
    };
    Ok((measured, window))
}

/// Reads and removes `pgbench`'s logs of single transactions.
fn take_logs(scratch: &Path) -> Result<String> {
    let mut text = String::new();
    let entries = std::fs::read_dir(scratch);
    for entry in entries.with_context(|| format!("cannot list {}", scratch.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("pgbench.")) {
            text += &std::fs::read_to_string(&path)?;
            std::fs::remove_file(&path)?;
        }
    }
    Ok(text)
}

/// `client_id transaction_no time script_no time_epoch time_us`; the third in µs.
fn pgbench_latencies(log: &str) -> Vec<u64> {
    log.lines()
        .filter_map(|line| line.split(' ').nth(2)?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_understood() {
        let said = "Running 3s test\n  1 threads\nplover 900 3000000 1000 2000 4000 0\n";
        let measured = wrk_figures(said).unwrap();
        assert_eq!((measured.requests, measured.seconds), (900, 3.0));
        assert_eq!(measured.latency.unwrap().p99_us, 4000.0);
        let broken = wrk_figures("plover 900 3000000 1000 2000 4000 7").unwrap_err();
        assert!(broken.to_string().contains("7 errors"));
        assert!(wrk_figures("unable to connect").is_err());
        let log = "0 1 2500 0 1700000000 1\n1 1 3500 0 1700000000 2\n0 2 failed 0 1 2\n";
        assert_eq!(pgbench_latencies(log), [2500, 3500]);
    }

    #[test]
    fn logs_are_taken_once() {
        let folder = std::env::temp_dir().join(format!("bench-logs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("pgbench.17"), "a\n").unwrap();
        std::fs::write(folder.join("wrk.lua"), "b\n").unwrap();
        assert_eq!(take_logs(&folder).unwrap(), "a\n");
        assert_eq!(take_logs(&folder).unwrap(), "");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn spans_are_whole_seconds_for_those_who_need_it() {
        assert_eq!([0, 500, 1000, 1001, 5000].map(seconds), [1, 1, 1, 2, 5]);
    }
}
