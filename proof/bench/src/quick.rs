//! `./x bench quick`: the cost of protection for a Redis server.
//!
//! Rounds alternate between `none` (the same guest and NIC path, unreplicated) and the requested
//! policies, each in a fresh lab, so that a drift of the machine's speed hits all.

use crate::lab::Lab;
use crate::machine::Machine;
use crate::stats::Sample;
use crate::stock_colo;
use crate::variant::Variant;
use anyhow::{Context, Result};
use plover_policy::DEFAULT;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds of each policy.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// A policy to measure beside `none`, as it is or with other settings (`hybrid+group.durability=disk`), or
    /// `qemu-colo`, QEMU's own COLO; several may be given.
    #[arg(long = "policy", value_name = "POLICY", default_value = DEFAULT.name)]
    policies: Vec<String>,
    /// Further options for `plover lab up`, such as `--machine q35`.
    #[arg(last = true)]
    lab: Vec<String>,
}

/// One way to load the server: arguments of redis-benchmark.
struct Load {
    name: &'static str,
    arguments: &'static [&'static str],
}

const LOADS: [Load; 4] = [
    Load {
        name: "-c 1",
        arguments: &["-c", "1", "-n", "3000"],
    },
    Load {
        name: "-c 4",
        arguments: &["-c", "4", "-n", "8000"],
    },
    Load {
        name: "-c 16",
        arguments: &["-c", "16", "-n", "16000"],
    },
    Load {
        name: "-c 16 -P 200",
        arguments: &["-c", "16", "-P", "200", "-n", "320000"],
    },
];

const TESTS: [&str; 2] = ["SET", "GET"];

/// redis-benchmark waits for ever for a guest that does not answer any more. With checkpoints every 100
/// ms it takes 100 s. With QEMU's own COLO, which stands still now and then, it takes 6 s.
const WITHIN_S: u64 = 600;
const COLO_WITHIN_S: u64 = 60;

/// The baseline: the guest unreplicated.
const NONE: &str = "none";

#[derive(Debug, Default)]
struct Cell {
    requests_per_s: Sample,
    /// Divided by the figure of `none` in the same round. Empty for `none` itself.
    of_none: Sample,
    p50_ms: Sample,
    p99_ms: Sample,
    /// The status' `sync` object after each round, for policies that sync.
    syncs: Vec<Value>,
}

/// By test, load and policy.
type Cells = BTreeMap<(&'static str, &'static str, String), Cell>;

/// The policies in the order of their turns.
fn turns(options: &Options) -> Vec<String> {
    let named = options.policies.iter().filter(|policy| *policy != NONE);
    let mut turns = vec![NONE.to_owned()];
    for policy in named {
        if !turns.contains(policy) {
            turns.push(policy.clone());
        }
    }
    turns
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut cells = Cells::new();
    let mut accel = String::new();
    // The figures are printed even if the run was ended.
    let ended = measure_all(options, &mut cells, &mut accel);
    if cells.is_empty() {
        return ended;
    }
    print_table(&cells, &Machine::this(&accel), options);
    ended
}

/// All rounds. Sets `accel` to the accelerator of the guests.
fn measure_all(options: &Options, cells: &mut Cells, accel: &mut String) -> Result<()> {
    for round in 0..options.rounds {
        for policy in turns(options) {
            eprintln!("round {}/{}: {policy}", round + 1, options.rounds);
            match measure_turn(options, &policy, cells, accel) {
                // QEMU's COLO locks up now and then (docs/bench.md). The other policies go on.
                Err(error) if policy == stock_colo::NAME && crate::children::check().is_ok() => {
                    eprintln!("{policy}: left out of this round: {error:#}");
                }
                ended => ended?,
            }
        }
    }
    Ok(())
}

fn measure_turn(
    options: &Options,
    policy: &str,
    cells: &mut Cells,
    accel: &mut String,
) -> Result<()> {
    let variant = Variant::parse(policy)?;
    let scratch = tempfile::tempdir()?;
    let settings = variant.options(&scratch.path().join("settings.toml"))?;
    let lab = Lab::up(variant.policy, &[&settings[..], &options.lab].concat())?;
    if policy == NONE {
        let leader = lab.leader()?;
        let runs = leader["more"]["accel"].as_str();
        *accel = runs.unwrap_or("unknown").to_owned();
    }
    for load in &LOADS {
        measure(&lab, policy, load, cells)
            .with_context(|| format!("{policy}, redis-benchmark {}", load.name))?;
    }
    Ok(())
}

fn measure(lab: &Lab, policy: &str, load: &Load, cells: &mut Cells) -> Result<()> {
    let guest = lab.guest_ip()?;
    for test in TESTS {
        let mut command = vec!["redis-benchmark", "-h", &guest, "--csv", "-t"];
        let lower = test.to_lowercase();
        command.push(&lower);
        command.extend(load.arguments);
        let limit_s = match policy == stock_colo::NAME {
            true => COLO_WITHIN_S,
            false => WITHIN_S,
        };
        let printed = lab.exec_within(limit_s, &command)?;
        let line = csv_line(&printed, test)
            .with_context(|| format!("redis-benchmark printed no line for {test}: {printed}"))?;
        let none = cells.get(&(test, load.name, NONE.to_owned()));
        let none = none.and_then(|none| none.requests_per_s.last());
        let cell = cells
            .entry((test, load.name, policy.to_owned()))
            .or_default();
        if let Some(none) = none.filter(|_| policy != NONE) {
            cell.of_none.push(line.requests_per_s / none);
        }
        cell.requests_per_s.push(line.requests_per_s);
        cell.p50_ms.push(line.p50_ms);
        cell.p99_ms.push(line.p99_ms);
        if policy != NONE && policy != stock_colo::NAME {
            cell.syncs.push(lab.leader()?["sync"].clone());
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct CsvLine {
    requests_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// `"test","rps","avg_latency_ms","min_latency_ms","p50…","p95…","p99…","max…"`.
fn csv_line(printed: &str, test: &str) -> Option<CsvLine> {
    let line = printed
        .lines()
        .find(|l| l.starts_with(&format!("\"{test}\"")))?;
    let fields: Vec<f64> = line
        .split(',')
        .skip(1)
        .map(|f| f.trim().trim_matches('"').parse())
        .collect::<Result<_, _>>()
        .ok()?;
    Some(CsvLine {
        requests_per_s: *fields.first()?,
        p50_ms: *fields.get(3)?,
        p99_ms: *fields.get(5)?,
    })
}

fn print_table(cells: &Cells, machine: &Machine, options: &Options) {
    let turns = turns(options);
    let mut rows = Vec::new();
    for test in TESTS {
        for load in &LOADS {
            for policy in &turns {
                let key = (test, load.name, policy.clone());
                rows.push((cells.get(&key), key));
            }
        }
    }
    let done = |cell: &Cell| cell.requests_per_s.len();
    let ours = rows.iter().filter(|(_, key)| key.2 != stock_colo::NAME);
    let complete = ours.map(|(cell, _)| cell.map_or(0, done)).min();
    println!(
        "{machine}; {} of {} rounds complete, medians (least to greatest)\n",
        complete.unwrap_or(0),
        options.rounds
    );
    println!(
        "{:<5} {:<13} {:<28} {:>24} {:>10} {:>10} {:>22}",
        "test", "load", "", "requests/s", "p50 ms", "p99 ms", "of none"
    );
    for (cell, (test, load, policy)) in &rows {
        let Some(cell) = cell else {
            println!("{test:<5} {load:<13} {policy:<28} {:>24}", "no figure");
            continue;
        };
        let rate = cell.requests_per_s.words(0);
        let ratio = match cell.of_none.is_empty() {
            true => String::new(),
            false => cell.of_none.words(2),
        };
        println!(
            "{test:<5} {load:<13} {policy:<28} {rate:>24} {:>10.2} {:>10.2} {ratio:>22}",
            cell.p50_ms.median(),
            cell.p99_ms.median()
        );
    }
    println!("\nsyncvm, medians of each round's last 512 syncs:");
    for (cell, (test, load, policy)) in &rows {
        let Some(sync) = cell.and_then(|cell| cell.syncs.last()) else {
            continue;
        };
        let phases: Vec<String> = sync["phases_us_p50"]
            .as_object()
            .map(|o| {
                o.iter()
                    .filter(|(_, v)| **v != 0)
                    .map(|(k, v)| format!("{k} {v}"))
                    .collect()
            })
            .unwrap_or_default();
        println!(
            "{test} {load} {policy}: pause {} µs, slot {} µs, dirty {}, same {}, divergent {}, \
             {} bytes, {} outputs; {}",
            sync["pause_us_p50"],
            sync["slot_us_p50"],
            sync["dirty"],
            sync["same"],
            sync["divergent"],
            sync["bytes"],
            sync["outputs"],
            phases.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_redis_benchmark_prints() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                       \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                       \"SET\",\"7411.07\",\"2.1\",\"0.5\",\"2.0\",\"3.0\",\"4.5\",\"9.0\"\n";
        assert_eq!(
            csv_line(printed, "SET"),
            Some(CsvLine {
                requests_per_s: 7411.07,
                p50_ms: 2.0,
                p99_ms: 4.5
            })
        );
        assert_eq!(csv_line(printed, "GET"), None);
    }
}
