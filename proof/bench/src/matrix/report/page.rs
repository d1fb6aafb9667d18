//! The report as one HTML page that needs nothing else.

use super::super::figures::{BYTES, Metric, P50, P99, PAUSE, RATE, SDPR};
use super::super::workload::Workload;
use super::{Cell, Report, table};
use crate::chart::{Axis, Bar, Filling, Stack, bars, stacks};
use crate::page::{document, escaped};
use std::collections::BTreeMap;

pub(super) fn html(report: &Report<'_>) -> String {
    let plan = report.plan;
    let mut page = format!(
        "<p>{}. At most {} rounds of {} s each, medians. Solid bars release outputs under a policy \
         of Plover's own, hatched bars under one of another system, dashed outlines are the same \
         guest unreplicated. All of it ran on one machine, clients included.</p>",
        escaped(&report.machine.to_string()),
        plan.rounds,
        plan.span_ms as f64 / 1e3
    );
    page += &crate::claims::html(&report.claims);
    for (workload, cells) in report.workloads() {
        page += &section(report, workload, &cells);
    }
    page += &format!(
        "<h2>All figures</h2><pre>{}</pre>",
        escaped(&table::text(report))
    );
    document(
        "policies, measured",
        "What protection costs, by policy",
        &page,
    )
}

fn section(report: &Report<'_>, workload: &Workload, cells: &[&Cell<'_>]) -> String {
    let mut out = format!(
        "<h2>{}</h2><p>{}</p>",
        workload.name,
        escaped(workload.what)
    );
    let none = report.cell(workload.name, "none");
    let throughput = |cell: &Cell<'_>, value: f64| {
        let ratio = none.map(|none| cell.ratio(none, RATE));
        let ratio = ratio.filter(|ratio| !ratio.is_empty() && cell.policy != "none");
        let of = ratio.map_or_else(String::new, |ratio| {
            format!(", {:.2} of none", ratio.median())
        });
        format!("{value:.0}/s{of}")
    };
    out += &chart(
        cells,
        &format!("{} a second", workload.request),
        "/s",
        LINEAR,
        RATE,
        None,
        throughput,
    );
    let latency =
        |cell: &Cell<'_>, p50: f64| format!("{p50:.2} ms, p99 {:.1}", cell.sample(P99).median());
    out += &chart(
        cells,
        "latency, p50 to p99",
        "ms",
        Axis::Logarithmic,
        P50,
        Some(P99),
        latency,
    );
    out += &chart(
        cells,
        "bytes between replicas, a request",
        "B",
        Axis::Logarithmic,
        BYTES,
        None,
        |_, value| format!("{value:.0} B"),
    );
    let percent = Axis::Linear(Some(100.0));
    out += &chart(
        cells,
        "dirty pages that are the same on both sides (SDPR)",
        "%",
        percent,
        SDPR,
        None,
        |_, value| format!("{value:.0} %"),
    );
    out += &pauses(cells);
    for cell in cells.iter().filter(|cell| cell.rounds.is_empty()) {
        let why = cell.missing.unwrap_or_default();
        out += &format!("<p>{}: not measured: {}</p>", cell.policy, escaped(why));
    }
    out
}

const LINEAR: Axis = Axis::Linear(None);

fn filling(policy: &str) -> Filling {
    match policy {
        "none" => Filling::Outlined,
        "vsmr" | "hybrid" => Filling::Solid,
        _ => Filling::Hatched,
    }
}

fn chart(
    cells: &[&Cell<'_>],
    title: &str,
    unit: &str,
    axis: Axis,
    metric: Metric,
    whisker: Option<Metric>,
    words: impl Fn(&Cell<'_>, f64) -> String,
) -> String {
    let measured = cells.iter().filter(|cell| !cell.sample(metric).is_empty());
    let bar = |cell: &&Cell<'_>| {
        let value = cell.sample(metric).median();
        Bar {
            name: cell.policy.to_owned(),
            filling: filling(cell.policy),
            value,
            whisker: whisker.map(|whisker| cell.sample(whisker).median()),
            words: words(cell, value),
        }
    };
    bars(title, unit, axis, &measured.map(bar).collect::<Vec<_>>())
}

/// What the guest stands for in a sync.
fn pauses(cells: &[&Cell<'_>]) -> String {
    let all: Vec<(&str, BTreeMap<String, f64>, f64)> = cells
        .iter()
        .map(|cell| {
            (
                cell.policy,
                apart(cell.phases_us()),
                cell.sample(PAUSE).median(),
            )
        })
        .collect();
    let mut legend: Vec<String> = all
        .iter()
        .flat_map(|(_, phases, _)| phases.keys().cloned())
        .collect();
    legend.sort_by_key(|name| (order(name), name.clone()));
    legend.dedup();
    let stacks_of = all.iter().filter(|(_, phases, _)| !phases.is_empty());
    let rows: Vec<_> = stacks_of
        .map(|(policy, phases, pause)| Stack {
            name: (*policy).to_owned(),
            parts: legend
                .iter()
                .map(|name| phases.get(name).copied().unwrap_or(0.0) / 1e3)
                .collect(),
            words: format!("pause {pause:.2} ms"),
        })
        .collect();
    stacks(
        "a sync by phase; what follows `resume` passes while the guest runs",
        "ms",
        &legend,
        &rows,
    )
}

/// Phases that add up: the wait for the secondary lies within the exchange.
fn apart(mut phases: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let wait = phases.get("wait").copied().unwrap_or(0.0);
    if let Some(exchange) = phases.get_mut("exchange") {
        *exchange = (*exchange - wait).max(0.0);
    }
    phases
}

/// Where a phase stands among others: in the order of a sync; unknown ones come last.
fn order(phase: &str) -> usize {
    const PHASES: [&str; 11] = [
        "idle", "wait", "pause", "scan", "hash", "exchange", "compare", "transfer", "resume",
        "apply", "release",
    ];
    PHASES
        .iter()
        .position(|known| *known == phase)
        .unwrap_or(PHASES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_pause_add_up() {
        let phases = [("wait", 30.0), ("exchange", 100.0), ("scan", 5.0)];
        let phases = apart(phases.map(|(name, us)| (name.to_owned(), us)).into());
        assert_eq!(phases.values().sum::<f64>(), 105.0);
        assert_eq!(apart(BTreeMap::new()), BTreeMap::new());
    }

    #[test]
    fn phases_stand_in_the_order_of_a_sync() {
        assert!(order("pause") < order("scan") && order("release") < order("new"));
        assert_eq!(filling("remus-25"), Filling::Hatched);
    }
}
