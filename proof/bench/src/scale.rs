//! `./x bench scale`: several protected guests on one machine (PLOVER §6.4), and guests of
//! several vCPUs (figure 6).
//!
//! Each point is measured in labs of its own, with all of a policy's guests loaded at the same time.
//! Policies alternate, and rounds repeat the whole. On a machine with fewer cores than the guests have
//! vCPUs, replicas and clients included, this shows only how they share the cores.

use crate::interrupt;
use crate::lab::{Lab, own_name};
use crate::machine::Machine;
use crate::matrix::figures::Figures;
use crate::matrix::measure::{Spans, measure};
use crate::matrix::workload::{self, Workload};
use crate::stats::Sample;
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeMap;
use std::thread;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The policies that are compared.
    #[arg(long, value_delimiter = ',', default_value = "none,vsmr")]
    policies: Vec<String>,
    /// What each guest is put under: a workload of `./x bench`.
    #[arg(long, default_value = "redis")]
    workload: String,
    /// How many guests of one vCPU at once.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u32).range(1..=9))]
    guests: Vec<u32>,
    /// How many vCPUs of one guest.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=64))]
    vcpus: Vec<u32>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each measurement takes.
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

/// A number of guests, each with a number of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    guests: u32,
    vcpus: u32,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = |count| if count == 1 { "" } else { "s" };
        let Self { guests, vcpus } = self;
        write!(f, "{guests} guest{}, {vcpus} vCPU{}", s(*guests), s(*vcpus))
    }
}

/// The figures of a point, for all guests together.
#[derive(Debug, Default)]
struct Row {
    requests_per_s: Sample,
    mb_per_s: Sample,
    cpus: Sample,
    missing: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let workload = workload::named(&options.workload)
        .with_context(|| format!("there is no workload '{}'", options.workload))?;
    interrupt::watch()?;
    let mut rows: BTreeMap<(Point, &str), Row> = BTreeMap::new();
    let done = measure_all(options, workload, &mut rows);
    if !rows.is_empty() {
        print_table(options, workload, &rows);
    }
    done
}

fn measure_all<'a>(
    options: &'a Options,
    workload: &Workload,
    rows: &mut BTreeMap<(Point, &'a str), Row>,
) -> Result<()> {
    for round in 1..=options.rounds {
        for point in points(options) {
            for policy in &options.policies {
                eprintln!("round {round}/{}: {point}, {policy}", options.rounds);
                let row = rows.entry((point, policy)).or_default();
                match one(point, policy, workload, options.seconds) {
                    Ok(all) => row.add(&all),
                    // Its lab has been taken down.
                    Err(error) => {
                        interrupt::check()?;
                        row.missing = Some(format!("{error:#}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// One guest of one vCPU is in both series, and is measured once.
fn points(options: &Options) -> Vec<Point> {
    let guests = options
        .guests
        .iter()
        .map(|&guests| Point { guests, vcpus: 1 });
    let vcpus = options
        .vcpus
        .iter()
        .map(|&vcpus| Point { guests: 1, vcpus });
    let mut points: Vec<_> = guests.chain(vcpus).collect();
    points.sort();
    points.dedup();
    points
}

/// The labs of a point, up one after the other and loaded together.
fn one(point: Point, policy: &str, workload: &Workload, seconds: u64) -> Result<Vec<Figures>> {
    let options = [
        "--guest",
        workload.guest,
        "--vcpus",
        &point.vcpus.to_string(),
    ]
    .map(String::from);
    let names = (0..point.guests).map(|number| format!("{}-{number}", own_name()));
    let labs: Vec<_> = names
        .map(|name| Lab::up_as(name, policy, &options))
        .collect::<Result<_>>()?;
    let spans = Spans {
        warm_up_ms: 1000,
        span_ms: seconds * 1000,
    };
    let load = |lab: &Lab| {
        // Clients of different labs must not write into one another's files.
        let scratch = tempfile::tempdir().context("cannot make a folder for temporary files")?;
        measure(lab, workload, spans, scratch.path())
    };
    thread::scope(|threads| {
        let loaded: Vec<_> = labs.iter().map(|lab| threads.spawn(|| load(lab))).collect();
        let joined = loaded.into_iter().map(|thread| thread.join());
        joined
            .map(|figures| figures.unwrap_or_else(|_| Err(anyhow!("a client's thread panicked"))))
            .collect()
    })
}

impl Row {
    fn add(&mut self, all: &[Figures]) {
        let sum = |of: fn(&Figures) -> f64| all.iter().map(of).sum::<f64>();
        self.requests_per_s.push(sum(|figures| {
            figures
                .client
                .map_or(0.0, |client| client.requests as f64 / client.seconds)
        }));
        self.mb_per_s.push(sum(|figures| {
            figures.window.bytes_of_protection() / figures.window.seconds / 1e6
        }));
        self.cpus.push(sum(|figures| {
            figures.window.cpu_s.values().sum::<f64>() / figures.window.seconds
        }));
    }
}

fn print_table(options: &Options, workload: &Workload, rows: &BTreeMap<(Point, &str), Row>) {
    println!("{}", Machine::this("accelerator as the lab chose"));
    println!(
        "{}: {}; at most {} rounds of {} s, medians (least to greatest), all guests together\n",
        workload.name, workload.what, options.rounds, options.seconds
    );
    println!(
        "{:<20} {:<15} {:>26} {:>8} {:>8} {:>6}",
        "", "", "requests/s", "of one", "MB/s", "CPUs"
    );
    for ((point, policy), row) in rows {
        print!("{:<20} {policy:<15}", point.to_string());
        if row.requests_per_s.is_empty() {
            println!(" {}", row.missing.as_deref().unwrap_or_default());
            continue;
        }
        let single = rows.get(&(
            Point {
                guests: 1,
                vcpus: 1,
            },
            policy,
        ));
        let of_one = single.map_or(f64::NAN, |single| {
            row.requests_per_s.median() / single.requests_per_s.median()
        });
        let of_one = if of_one.is_finite() {
            format!("{of_one:.2}")
        } else {
            String::new()
        };
        println!(
            " {:>26} {of_one:>8} {:>8.2} {:>6.2}",
            row.requests_per_s.words(0),
            row.mb_per_s.median(),
            row.cpus.median()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_measured_once() {
        let options = Options {
            policies: vec!["vsmr".into()],
            workload: "redis".into(),
            guests: vec![1, 3],
            vcpus: vec![1, 2],
            rounds: 1,
            seconds: 1,
        };
        let points: Vec<_> = points(&options).iter().map(ToString::to_string).collect();
        assert_eq!(
            points,
            ["1 guest, 1 vCPU", "1 guest, 2 vCPUs", "3 guests, 1 vCPU"]
        );
    }
}
