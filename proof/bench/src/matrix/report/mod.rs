//! The findings of a run, for a terminal and for programs.

mod claims;
mod table;

use super::figures::{Figures, METRICS, Metric, Outcome, Run};
use super::plan::Plan;
use super::workload::{self, Workload};
use crate::claims::Claim;
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One workload under one policy, round by round.
#[derive(Debug)]
struct Cell<'a> {
    workload: &'static Workload,
    policy: &'a str,
    rounds: BTreeMap<u32, &'a Figures>,
    /// Why some rounds, or all, are missing.
    missing: Option<&'a str>,
}

/// All of a run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    plan: &'a Plan,
    machine: Machine,
    runs: &'a [Run],
    cells: Vec<Cell<'a>>,
    claims: Vec<Claim>,
}

impl Cell<'_> {
    /// A figure in all rounds that have it.
    fn sample(&self, metric: Metric) -> Sample {
        self.rounds
            .values()
            .filter_map(|figures| (metric.of)(figures))
            .collect()
    }

    /// A figure divided by another cell's, in the rounds that have both.
    fn ratio(&self, other: &Cell<'_>, metric: Metric) -> Sample {
        let both = self.rounds.iter().filter_map(|(round, figures)| {
            let (over, under) = (
                (metric.of)(figures)?,
                (metric.of)(other.rounds.get(round)?)?,
            );
            Some(over / under)
        });
        both.collect()
    }

    /// The medians of a map of figures, by name, for all names that any round has.
    fn medians(&self, of: impl Fn(&Figures) -> BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for figures in self.rounds.values() {
            for (name, value) in of(figures) {
                samples.entry(name).or_default().push(value);
            }
        }
        let median = |(name, values): (String, Vec<f64>)| {
            (name, values.into_iter().collect::<Sample>().median())
        };
        samples.into_iter().map(median).collect()
    }

    /// Mean time of a sync in each phase, µs.
    fn phases_us(&self) -> BTreeMap<String, f64> {
        self.medians(|figures| {
            let syncs = figures.window.syncs as f64;
            let mean = |(name, sum): (&String, &f64)| (name.clone(), sum / syncs);
            let spent = figures
                .window
                .phases_us
                .iter()
                .filter(|(_, sum)| **sum > 0.0);
            spent.map(mean).filter(|_| syncs > 0.0).collect()
        })
    }

    /// Bytes per request, by purpose.
    fn bytes(&self) -> BTreeMap<String, f64> {
        self.medians(|figures| {
            let part =
                |(name, sum): (&String, &f64)| Some((name.clone(), figures.a_request(*sum)?));
            figures.window.bytes.iter().filter_map(part).collect()
        })
    }

    /// CPUs in use by role and program.
    fn cpus(&self) -> BTreeMap<String, f64> {
        self.medians(|figures| {
            let of =
                |(name, seconds): (&String, &f64)| (name.clone(), seconds / figures.window.seconds);
            figures.window.cpu_s.iter().map(of).collect()
        })
    }
}

impl<'a> Report<'a> {
    pub fn new(plan: &'a Plan, runs: &'a [Run], machine: Machine) -> Self {
        let mut cells: Vec<Cell<'a>> = Vec::new();
        // In the order of the plan. The runs may be in another order.
        for workload in &workload::ALL {
            for policy in &plan.policies {
                let of = |run: &&Run| run.workload == workload.name && run.policy == *policy;
                let mut cell = Cell {
                    workload,
                    policy,
                    rounds: BTreeMap::new(),
                    missing: None,
                };
                for run in runs.iter().filter(of) {
                    match &run.outcome {
                        Outcome::Measured(figures) => drop(cell.rounds.insert(run.round, figures)),
                        Outcome::Missing(why) => cell.missing = Some(why),
                    }
                }
                if !cell.rounds.is_empty() || cell.missing.is_some() {
                    cells.push(cell);
                }
            }
        }
        let mut report = Self {
            plan,
            machine,
            runs,
            cells,
            claims: Vec::new(),
        };
        report.claims = claims::all(&report);
        report
    }

    fn cell(&self, workload: &str, policy: &str) -> Option<&Cell<'a>> {
        let is = |cell: &&Cell<'_>| cell.workload.name == workload && cell.policy == policy;
        self.cells.iter().find(is)
    }

    /// The workloads that have cells, with their cells.
    fn workloads(&self) -> Vec<(&'static Workload, Vec<&Cell<'a>>)> {
        let all = workload::ALL.iter().map(|workload| {
            let of = |cell: &&Cell<'_>| cell.workload.name == workload.name;
            (workload, self.cells.iter().filter(of).collect::<Vec<_>>())
        });
        all.filter(|(_, cells)| !cells.is_empty()).collect()
    }

    /// Writes `report.json` into `folder`.
    pub fn save(&self, folder: &Path) -> Result<PathBuf> {
        crate::report::save(folder, &self.json())
    }

    /// Prints the tables, and writes `report.json` into `folder`.
    pub fn print(&self, folder: &Path) -> Result<()> {
        print!("{}", table::text(self));
        println!("{}", self.save(folder)?.display());
        Ok(())
    }

    fn json(&self) -> Value {
        let cells = self.cells.iter().map(|cell| self.cell_json(cell));
        json!({
            "machine": self.machine,
            "plan": self.plan,
            "cells": cells.collect::<Vec<_>>(),
            "claims": self.claims,
            "runs": self.runs,
        })
    }

    fn cell_json(&self, cell: &Cell<'_>) -> Value {
        let mut figures = Map::new();
        for metric in METRICS {
            let sample = cell.sample(metric);
            if sample.is_empty() {
                continue;
            }
            let (least, greatest) = sample.spread();
            let mut said = json!({"median": sample.median(), "least": least, "greatest": greatest});
            for baseline in BASELINES {
                let other = self.cell(cell.workload.name, baseline);
                let ratio = other.map(|other| cell.ratio(other, metric));
                if let Some(ratio) = ratio.filter(|ratio| !ratio.is_empty()) {
                    said[format!("over_{baseline}")] = json!(ratio.median());
                }
            }
            figures.insert(metric.key.into(), said);
        }
        json!({
            "workload": cell.workload.name,
            "policy": cell.policy,
            "rounds": cell.rounds.len(),
            "missing": cell.missing,
            "figures": figures,
            "bytes_per_request": cell.bytes(),
            "phases_us": cell.phases_us(),
            "cpus": cell.cpus(),
        })
    }
}

/// The policies that every other policy is compared with.
const BASELINES: [&str; 2] = ["none", "vsmr"];

#[cfg(test)]
mod tests {
    use super::super::figures::RATE;
    use super::super::figures::tests::figures;
    use super::super::plan::tests::plan;
    use super::*;

    fn run(round: u32, policy: &str, rate: Option<f64>) -> Run {
        Run {
            round,
            workload: "redis".into(),
            policy: policy.into(),
            outcome: match rate {
                Some(rate) => Outcome::Measured(Box::new(figures(rate))),
                None => Outcome::Missing("it <refused>".into()),
            },
        }
    }

    /// Two rounds, of which one failed under `vsmr`, and a policy that is refused.
    fn runs() -> Vec<Run> {
        vec![
            run(1, "none", Some(1000.0)),
            run(1, "vsmr", None),
            run(1, "colo", None),
            run(2, "none", Some(2000.0)),
            run(2, "vsmr", Some(500.0)),
        ]
    }

    fn with_report(check: impl FnOnce(&Report<'_>)) {
        let mut plan = plan(&[]);
        plan.policies = ["none", "vsmr", "colo", "hybrid"].map(String::from).into();
        check(&Report::new(&plan, &runs(), Machine::this("tcg")));
    }

    #[test]
    fn ratios_are_of_rounds_that_have_both() {
        with_report(|report| {
            assert_eq!(
                report.cells.len(),
                3,
                "nothing is said of what was not tried"
            );
            let cell = |policy| report.cell("redis", policy).unwrap();
            assert_eq!(cell("none").sample(RATE).median(), 1500.0);
            assert_eq!(cell("vsmr").ratio(cell("none"), RATE).median(), 0.25);
            assert!(cell("colo").sample(RATE).is_empty());
            let json = report.json();
            assert_eq!(
                json["cells"][1]["figures"]["requests_per_s"]["over_none"],
                0.25
            );
            assert_eq!(json["cells"][1]["phases_us"]["scan"], 100.0);
            assert_eq!(json["cells"][2]["missing"], "it <refused>");
        });
    }

    #[test]
    fn the_table_has_every_cell() {
        with_report(|report| {
            let text = table::text(report);
            for word in ["none", "vsmr", "colo", "0.25", "refused", "scan"] {
                assert!(text.contains(word), "{word}: {text}");
            }
            assert!(!text.contains("NaN"), "{text}");
        });
    }
}
