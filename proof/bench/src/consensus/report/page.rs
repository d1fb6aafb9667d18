//! The report as one HTML page that needs nothing else.

use super::super::plan::{FabricKind, Load, Medium, Setup, System};
use super::chart::{Bar, Filling, bars, escaped};
use super::table::{figures, text};
use super::{Report, Row};
use std::fmt::Write;

const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; font-size: 12px; }
svg text { fill: currentColor; }
figure { margin: 0 0 1.5rem; }
figcaption { font-weight: 600; }
.grid { stroke: currentColor; opacity: .2; }
.whisker { stroke: currentColor; fill: none; }
rect { stroke: currentColor; }
.solid { fill: #2f6fbf; }
.outlined { fill: none; stroke-dasharray: 4 2; }
.hatched { fill: url(#hatch); }
.hatch { stroke: currentColor; opacity: .55; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .2rem .6rem .2rem 0; vertical-align: top; }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
pre { overflow-x: auto; font-size: 12px; }
";

/// The pattern of others' bars. A pattern is found by its name from anywhere in the page.
const HATCH: &str = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">\
    <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" \
    stroke-width=\"3\"/></pattern></defs></svg>";

/// The whole page.
pub(super) fn html(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Plover: consensus, measured</title><style>{STYLE}</style>{HATCH}\
         <h1>What an entry of the log costs</h1><p>{}; idle cores {}. {} rounds of {} ms, medians. Solid bars \
         are ours, dashed outlines the limits measured beside them, hatched bars other systems. \
         Axes are logarithmic.</p>",
        escaped(&report.machine.hardware()),
        report.idle_cores(),
        report.rounds,
        report.span_ms
    );
    page += &claims(report);
    page += &replicas(report);
    for medium in [Medium::Memory, Medium::Disk] {
        page += &loads(report, medium);
    }
    // Writing into a string cannot fail.
    let _ = writeln!(
        page,
        "<h2>All figures</h2><pre>{}</pre></html>",
        escaped(&text(report))
    );
    page
}

fn claims(report: &Report) -> String {
    let mut out = String::from(
        "<h2>What must hold</h2><table><tr><th>verdict<th>what<th>measured<th>bound</tr>",
    );
    for claim in &report.claims {
        let sample = claim.figures.as_ref();
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}</tr>",
            claim.verdict(),
            escaped(&claim.what),
            sample.map_or_else(String::new, |sample| figures(sample, 2)),
            claim.bound
        );
    }
    out + "</table>"
}

/// Latency by the number of replicas.
fn replicas(report: &Report) -> String {
    let mut out = String::from("<h2>More replicas</h2>");
    for fabric in [FabricKind::Tcp, FabricKind::Shm, FabricKind::Ofi] {
        for connections in [1, 24] {
            let load = Load {
                bytes: 256,
                connections,
            };
            let rows = report.rows.iter().filter(|row| {
                let Setup { system, medium, .. } = row.setup;
                let wanted = system == System::Plover(fabric) || system == System::Floor(fabric);
                wanted && medium == Medium::Memory && row.load == load
            });
            let rows: Vec<_> = rows.map(|row| bar(row, true)).collect();
            let title = format!("p50 to p99, {fabric}, memory, {load}");
            out += &bars(&title, "µs", &rows);
        }
    }
    out
}

/// For each load: latency, and for many connections throughput too.
fn loads(report: &Report, medium: Medium) -> String {
    let mut out = format!("<h2>On {medium}, 3 replicas</h2>");
    let of_medium = |row: &&Row| row.setup.medium == medium && row.setup.replicas <= 3;
    let mut loads: Vec<_> = report
        .rows
        .iter()
        .filter(of_medium)
        .map(|row| row.load)
        .collect();
    loads.dedup();
    for load in loads {
        let here = || {
            report
                .rows
                .iter()
                .filter(of_medium)
                .filter(|row| row.load == load)
        };
        let latencies: Vec<_> = here().map(|row| bar(row, false)).collect();
        out += &bars(&format!("p50 to p99, {load}"), "µs", &latencies);
        if load.connections > 1 {
            let rates: Vec<_> = here().map(rate).collect();
            out += &bars(&format!("entries a second, {load}"), "/s", &rates);
        }
    }
    out
}

fn filling(system: System) -> Filling {
    match system {
        System::Plover(_) | System::PloverClients => Filling::Solid,
        System::PingPong(_) | System::Floor(_) | System::Fdatasync => Filling::Outlined,
        System::Etcd | System::ZooKeeper | System::Raft => Filling::Hatched,
    }
}

fn bar(row: &Row, with_replicas: bool) -> Bar {
    let (p50, p99) = (row.p50_us().median(), row.p99_us().median());
    let name = row.setup.system.to_string();
    Bar {
        name: match with_replicas {
            true => format!("{name}, {} replicas", row.setup.replicas),
            false => name,
        },
        filling: filling(row.setup.system),
        value: p50,
        whisker: Some(p99),
        words: format!("{p50:.1} µs, p99 {p99:.0}"),
    }
}

fn rate(row: &Row) -> Bar {
    let rate = row.entries_per_s().median();
    Bar {
        name: row.setup.system.to_string(),
        filling: filling(row.setup.system),
        value: rate,
        whisker: None,
        words: format!("{rate:.0}/s"),
    }
}
