//! The report for a terminal.

use super::{Report, Row};
use crate::stats::Sample;
use std::fmt::Write;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write_all(report, &mut text);
    text
}

fn write_all(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}", report.machine.hardware())?;
    writeln!(out, "disk: {}", report.disk)?;
    writeln!(out, "idle cores: {}", report.idle_cores())?;
    for (system, version) in &report.versions {
        writeln!(out, "{system}: {version}")?;
    }
    writeln!(
        out,
        "{} rounds of {} ms each after {} ms of warm-up; medians (least to greatest)",
        report.rounds, report.span_ms, report.warm_up_ms
    )?;
    for core in &report.core_alone {
        writeln!(
            out,
            "the consensus core alone, 3 replicas in one thread, 256 B, {} a flush: {:.0} ns and \
             {:.4} allocations an entry",
            core.batch, core.nanos_per_entry, core.allocations_per_entry
        )?;
    }
    let mut before = None;
    for row in &report.rows {
        let group = (row.setup.medium, row.load.bytes, row.load.connections);
        if before != Some(group) {
            before = Some(group);
            heading(row, out)?;
        }
        line(row, out)?;
    }
    if !report.left_out.is_empty() {
        writeln!(out, "\nleft out:")?;
        for (setup, why) in &report.left_out {
            writeln!(out, "  {setup}: {why}")?;
        }
    }
    out.write_str(&crate::claims::text(&report.claims))
}

fn heading(row: &Row, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "\n{}, {}\n{:<24} {:>8} {:>27} {:>27} {:>27} {:>9} {:>7} {:>7}",
        row.setup.medium,
        row.load,
        "",
        "replicas",
        "p50 µs",
        "p99 µs",
        "entries/s",
        "CPU µs",
        "allocs",
        "a sync"
    )
}

fn line(row: &Row, out: &mut String) -> std::fmt::Result {
    let optional = |sample: Option<Sample>, decimals: usize| {
        sample.map_or_else(String::new, |sample| {
            format!("{:.decimals$}", sample.median())
        })
    };
    writeln!(
        out,
        "{:<24} {:>8} {:>27} {:>27} {:>27} {:>9} {:>7} {:>7}",
        row.setup.system.to_string(),
        row.setup.replicas,
        row.p50_us().words(1),
        row.p99_us().words(1),
        row.entries_per_s().words(0),
        optional(row.cpu_us(), 1),
        optional(row.allocations(), 4),
        optional(row.entries_per_sync(), 1)
    )
}
