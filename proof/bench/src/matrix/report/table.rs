//! The report for a terminal.

use super::super::figures::{METRICS, RATE};
use super::{BASELINES, Cell, Report};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The columns of a workload's first table, beside the throughput and its ratios.
const COLUMNS: [&str; 13] = [
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "slots_per_s",
    "slot_ms",
    "pause_ms",
    "dirty",
    "divergent",
    "sdpr_percent",
    "bytes_per_request",
    "held_ms",
    "clean_percent",
    "cpus",
];

pub(super) fn text(report: &Report<'_>) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_all(report, &mut text);
    text
}

fn write_all<'a>(report: &Report<'a>, out: &mut String) -> std::fmt::Result {
    let plan = report.plan;
    writeln!(out, "{}", report.machine)?;
    writeln!(
        out,
        "at most {} rounds of {} s each after {} s of warm-up; medians, throughput with (least to \
         greatest); ratios within a round; figures of a slot are means over all of its kind",
        plan.rounds,
        plan.span_ms as f64 / 1e3,
        plan.warm_up_ms as f64 / 1e3
    )?;
    if !plan.lab.is_empty() {
        writeln!(out, "labs with {}", plan.lab.join(" "))?;
    }
    for (workload, cells) in report.workloads() {
        writeln!(out, "\n{}: {}", workload.name, workload.what)?;
        heading(out)?;
        for cell in &cells {
            line(report, cell, out)?;
        }
        let each = |of: fn(&Cell<'a>) -> BTreeMap<String, f64>| -> Vec<_> {
            cells.iter().map(|cell| (cell.policy, of(cell))).collect()
        };
        parts("pause by phase, µs", each(Cell::phases_us), out)?;
        parts("bytes a request", each(Cell::bytes), out)?;
        parts("CPUs", each(Cell::cpus), out)?;
    }
    out.write_str(&crate::claims::text(&report.claims))
}

fn shown() -> impl Iterator<Item = super::Metric> {
    let named = |key: &&str| METRICS.into_iter().find(|metric| metric.key == *key);
    COLUMNS.iter().filter_map(named)
}

fn heading(out: &mut String) -> std::fmt::Result {
    write!(
        out,
        "{:<15} {:>26} {:>8} {:>8}",
        "", RATE.title, "of none", "of vsmr"
    )?;
    for metric in shown() {
        write!(
            out,
            " {:>width$}",
            metric.title,
            width = metric.title.len().max(8)
        )?;
    }
    writeln!(out)
}

fn line(report: &Report<'_>, cell: &Cell<'_>, out: &mut String) -> std::fmt::Result {
    write!(out, "{:<15}", cell.policy)?;
    if cell.rounds.is_empty() {
        return writeln!(out, " {}", cell.missing.unwrap_or_default());
    }
    let rate = cell.sample(RATE);
    let words = match rate.is_empty() {
        true => String::new(),
        false => rate.words(RATE.decimals),
    };
    write!(out, " {words:>26}")?;
    for baseline in BASELINES {
        let other = report.cell(cell.workload.name, baseline);
        let ratio = other.map(|other| cell.ratio(other, RATE));
        let ratio = ratio.filter(|ratio| !ratio.is_empty() && cell.policy != baseline);
        let words = ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median()));
        write!(out, " {words:>8}")?;
    }
    for metric in shown() {
        let sample = cell.sample(metric);
        let words = match sample.is_empty() {
            true => String::new(),
            false => format!("{:.*}", metric.decimals, sample.median()),
        };
        write!(out, " {words:>width$}", width = metric.title.len().max(8))?;
    }
    match cell.missing {
        Some(why) => writeln!(out, "  (not in every round: {why})"),
        None => writeln!(out),
    }
}

/// The parts of a figure, a line for each policy.
fn parts(
    what: &str,
    mut parts: Vec<(&str, BTreeMap<String, f64>)>,
    out: &mut String,
) -> std::fmt::Result {
    parts.retain(|(_, parts)| !parts.is_empty());
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {what}:")?;
    for (policy, parts) in parts {
        let words = parts.iter().map(|(name, value)| match value {
            value if *value < 10.0 => format!("{name} {value:.2}"),
            value => format!("{name} {value:.0}"),
        });
        writeln!(
            out,
            "    {policy:<15} {}",
            words.collect::<Vec<_>>().join(", ")
        )?;
    }
    Ok(())
}
