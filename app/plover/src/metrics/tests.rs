//! The table, the guide, the alerts and the dashboard name the same metrics.

use super::table::{Kind, METRICS};
use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../../docs/metrics.md");
const ALERTS: &str = include_str!("../../../../share/prometheus/alerts.yml");
const ALERTS_TEST: &str = include_str!("../../../../share/prometheus/alerts-test.yml");
const DASHBOARD: &str = include_str!("../../../../share/grafana/plover.json");

/// The names of all samples.
fn names() -> BTreeSet<String> {
    let suffixes = |kind| match kind {
        Kind::Histogram => &["_bucket", "_count", "_sum"][..],
        _ => &[""],
    };
    let samples = METRICS.iter().flat_map(|metric| {
        let name = metric.family() + metric.suffix();
        suffixes(metric.kind)
            .iter()
            .map(move |suffix| format!("{name}{suffix}"))
    });
    samples.collect()
}

#[test]
fn names_follow_the_conventions() {
    let names: Vec<_> = METRICS.iter().map(|metric| metric.family()).collect();
    let different: BTreeSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "a name is used twice");
    for metric in METRICS {
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(metric.stem.chars().all(plain), "{}", metric.stem);
        for part in ["total", "seconds", "bytes", "info", "count", "sum"] {
            let end = format!("_{part}");
            assert!(!metric.stem.ends_with(&end), "{}", metric.stem);
        }
        assert!(!metric.help.ends_with('.'), "{}", metric.help);
        let unit = metric.kind == Kind::Histogram;
        assert!(
            !unit || metric.unit.is_some(),
            "{} has no unit",
            metric.stem
        );
    }
}

#[test]
fn the_guide_has_a_row_for_each_metric_and_for_no_other() {
    let rows = GUIDE.lines().filter(|line| line.starts_with("| `plover_"));
    let told: Vec<_> = rows.map(str::to_owned).collect();
    let made: Vec<_> = METRICS.iter().map(|metric| metric.row()).collect();
    assert!(
        told == made,
        "the table of docs/metrics.md is not what the code says: put the output of `plover metrics --list` there"
    );
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let names = names();
    for (file, text) in [
        ("alerts.yml", ALERTS),
        ("alerts-test.yml", ALERTS_TEST),
        ("plover.json", DASHBOARD),
    ] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let used: BTreeSet<_> = words.filter(|word| word.starts_with("plover_")).collect();
        assert!(!used.is_empty(), "{file}");
        for name in used {
            assert!(names.contains(name), "{file}: there is no metric {name}");
        }
    }
}
