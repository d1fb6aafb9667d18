//! `plover metrics` beside real replicas. Its figures are those of `plover status`, a replica that stands still is
//! down and keeps no figure of the others from being shown, and a failover is counted.

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::options::Options;
use plover_lab_proof::served::Served;
use plover_lab_proof::{kill_leader, plover, prove_on, role, wait_for};
use serde_json::{Value, json};

fn scrape(exporter: &Served) -> Result<Metrics> {
    Ok(Metrics(exporter.get("/metrics")?))
}

struct Metrics(String);

impl Metrics {
    /// A figure of one replica. `labels`: those besides `guest` and `replica`.
    fn get(&self, name: &str, id: u8, labels: &str) -> Result<f64> {
        let (begin, end) = (
            format!("{name}{{guest=\""),
            format!("replica=\"{id}\"{labels}}}"),
        );
        let line = self.0.lines().find_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.starts_with(&begin) && series.ends_with(&end)).then_some(value)
        });
        let value = line.with_context(|| format!("no {name}, {end} in:\n{}", self.0))?;
        value.parse().with_context(|| format!("{name}: '{value}'"))
    }
}

/// Figures that only rise, and their place in the status.
const RISING: [(&str, &str, &str, f64); 12] = [
    ("plover_commit_index", "", "/commit", 1.0),
    ("plover_suspicions_total", "", "/suspicions", 1.0),
    ("plover_sync_pause_seconds_count", "", "/sync/count", 1.0),
    (
        "plover_sync_pause_seconds_sum",
        "",
        "/sync/totals/pause_us",
        1e6,
    ),
    ("plover_slot_seconds_sum", "", "/sync/totals/slot_us", 1e6),
    (
        "plover_sync_phase_seconds_total",
        ",phase=\"scan\"",
        "/sync/totals/phases_us/scan",
        1e6,
    ),
    (
        "plover_sync_dirty_pages_total",
        "",
        "/sync/totals/dirty",
        1.0,
    ),
    ("plover_sync_same_pages_total", "", "/sync/totals/same", 1.0),
    (
        "plover_sync_divergent_pages_total",
        "",
        "/sync/totals/divergent",
        1.0,
    ),
    (
        "plover_output_wait_seconds_count",
        "",
        "/outputs/released",
        1.0,
    ),
    (
        "plover_sent_bytes_total",
        ",lane=\"log\"",
        "/traffic/log_bytes_out",
        1.0,
    ),
    (
        "plover_received_bytes_total",
        ",lane=\"bulk\"",
        "/traffic/bulk_bytes_in",
        1.0,
    ),
];

/// Metrics that a group without disks, refusals and failures does not have.
const ABSENT: [&str; 6] = [
    "plover_unprotected_info",
    "plover_peer_refused_info",
    "plover_last_takeover_timestamp_seconds",
    "plover_last_takeover_seconds",
    "plover_disks_whole",
    "plover_disk_failed",
];

fn number(status: &Value, at: &str) -> Result<f64> {
    let value = status.pointer(at).and_then(Value::as_f64);
    value.with_context(|| format!("no {at} in {status}"))
}

/// Compares a replica's figures with its status before and after.
fn compare(metrics: &Metrics, id: u8, before: &Value, after: &Value) -> Result<()> {
    for (name, labels, at, scale) in RISING {
        let figure = metrics.get(name, id, labels)? * scale;
        let (least, most) = (number(before, at)?, number(after, at)?);
        ensure!(
            least - 0.5 <= figure && figure <= most + 0.5,
            "replica {id}: {name}{labels} is {figure}, its status had {least} before and {most} after"
        );
    }
    // On a busy machine the lead may move meanwhile.
    let same = |key: &str| before[key] == after[key];
    let role = after["role"].as_str().context("a role")?;
    let labels = format!(",role=\"{role}\"");
    let has = metrics.get("plover_role", id, &labels)? == 1.0;
    ensure!(has || !same("role"), "replica {id} is {role}");
    let in_sync = after["isr"].as_array().context("a set")?.len() as f64;
    let figure = metrics.get("plover_in_sync_members", id, "")?;
    ensure!(figure == in_sync || !same("isr"), "{in_sync}, and {figure}");
    for key in ["protected", "serving", "holds_state", "drained"] {
        let is = after[key].as_bool().context("true or false")?;
        let figure = metrics.get(&format!("plover_{key}"), id, "")?;
        let agrees = figure == f64::from(is) || !same(key);
        ensure!(agrees, "{key} is {is}, and {figure}");
    }
    Ok(())
}

#[test]
fn metrics_are_the_figures_of_the_status() {
    prove_on("t-metrics", Options::default(), |lab, progress| {
        let exporter = Served::start(lab, "metrics")?;
        let status = |id: u8| lab.control(id).request(&json!({"op": "status"}));
        wait_for(progress, "protected, and a warm copy", || {
            let all: Vec<_> = lab.ids().filter_map(|id| status(id).ok()).collect();
            let any = |holds: fn(&Value) -> bool| all.iter().any(holds);
            Ok(any(|it| it["protected"] == true)
                && any(|it| it["sync"]["count"].as_u64() > Some(3))
                && any(|it| !it["copy"].is_null())
                && any(|it| !it["keeps_copy_of"].is_null()))
        })?;

        let ask_all = || lab.ids().map(status).collect::<Result<Vec<_>, _>>();
        let before = ask_all()?;
        let metrics = scrape(&exporter)?;
        let after = ask_all()?;
        for (id, (before, after)) in lab.ids().zip(before.iter().zip(&after)) {
            ensure!(metrics.get("plover_up", id, "")? == 1.0);
            compare(&metrics, id, before, after)?;
        }
        // No field of the status has been renamed without its metric.
        let listed = String::from_utf8(plover(&["metrics", "--list"]).stdout)?;
        for row in listed.lines() {
            let name = row.split('`').nth(1).context("a name")?;
            let is_there = metrics.0.contains(&format!("# TYPE {name} "));
            ensure!(is_there != ABSENT.contains(&name), "{name}: {is_there}");
        }

        let still = lab.find(&role("witness"))?;
        lab.fault(Fault::Stop, still)?;
        let metrics = scrape(&exporter)?;
        lab.fault(Fault::Continue, still)?;
        for id in lab.ids() {
            let up = f64::from(id != still);
            ensure!(metrics.get("plover_up", id, "")? == up, "replica {id}");
        }

        kill_leader(lab, progress)?;
        let leads = lab.find(&role("leader"))?;
        let metrics = scrape(&exporter)?;
        let status = status(leads)?;
        let last = &status["last_failover"];
        let takeovers = status["takeovers"].as_object().context("counts")?;
        for (how, count) in takeovers {
            let labels = format!(",how=\"{how}\"");
            let figure = metrics.get("plover_takeovers_total", leads, &labels)?;
            ensure!(
                Some(figure) == count.as_f64(),
                "{how}: {count}, and {figure}"
            );
        }
        let sum: u64 = takeovers.values().filter_map(Value::as_u64).sum();
        ensure!(sum > 0, "{status}");
        for (part, at) in [("elected", "/elected_us"), ("serving", "/serving_us")] {
            let labels = format!(",part=\"{part}\"");
            let seconds = metrics.get("plover_last_takeover_seconds", leads, &labels)?;
            ensure!((seconds * 1e6 - number(last, at)?).abs() < 0.5, "{part}");
        }
        Ok(())
    });
}
