//! The report as one HTML page that needs nothing else.

use super::super::plan::{FabricKind, Load, Medium, Setup, System};
use super::table::text;
use super::{Report, Row};
use crate::chart::{Axis, Bar, Filling, bars};
use crate::page::{document, escaped};

/// The whole page.
pub(super) fn html(report: &Report) -> String {
    let mut page = format!(
        "<p>{}; idle cores {}. {} rounds of {} ms, medians. Solid bars are ours, dashed outlines \
         the limits measured beside them, hatched bars other systems. Axes are logarithmic.</p>",
        escaped(&report.machine.hardware()),
        report.idle_cores(),
        report.rounds,
        report.span_ms
    );
    page += &crate::claims::html(&report.claims);
    page += &replicas(report);
    for medium in [Medium::Memory, Medium::Disk] {
        page += &loads(report, medium);
    }
    page += &format!("<h2>All figures</h2><pre>{}</pre>", escaped(&text(report)));
    document(
        "consensus, measured",
        "What an entry of the log costs",
        &page,
    )
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
            out += &bars(&title, "µs", Axis::Logarithmic, &rows);
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
        let title = format!("p50 to p99, {load}");
        out += &bars(&title, "µs", Axis::Logarithmic, &latencies);
        if load.connections > 1 {
            let rates: Vec<_> = here().map(rate).collect();
            let title = format!("entries a second, {load}");
            out += &bars(&title, "/s", Axis::Logarithmic, &rates);
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
