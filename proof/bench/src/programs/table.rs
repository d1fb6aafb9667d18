//! The figures for people and for programs.

use super::{Fabric, Figures, Options, Rows, Way};
use crate::machine::Machine;
use crate::report;
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

#[derive(Serialize)]
struct Row<'a> {
    connections: u32,
    way: Way,
    #[serde(flatten)]
    figures: &'a Figures,
}

#[derive(Serialize)]
struct Whole<'a> {
    machine: &'a Machine,
    replicas: u8,
    shm: bool,
    durable: bool,
    requests: u32,
    rows: Vec<Row<'a>>,
}

/// Prints the table, and writes `report.json`.
pub(super) fn show(options: &Options, rows: &Rows) -> Result<()> {
    let machine = Machine::this("none");
    print!("{}", text(options, rows, &machine));
    let whole = Whole {
        machine: &machine,
        replicas: options.replicas,
        shm: options.fabric == Fabric::Shm,
        durable: options.durable,
        requests: options.requests,
        rows: rows
            .iter()
            .map(|((connections, way), figures)| Row {
                connections: *connections,
                way: *way,
                figures,
            })
            .collect(),
    };
    let path = report::save(&report::folder()?.join("programs"), &whole)?;
    println!("\n{}", path.display());
    Ok(())
}

fn text(options: &Options, rows: &Rows, machine: &Machine) -> String {
    let fabric = match options.fabric {
        Fabric::Tcp => "tcp",
        Fabric::Shm => "shm",
    };
    let mut text = format!(
        "{machine}; Redis, SET of 3 bytes; {} replicas over {fabric}, log {}; at most {} rounds; medians (least to greatest)\n",
        options.replicas,
        if options.durable {
            "on disks"
        } else {
            "in memory"
        },
        options.rounds,
    );
    let mut line = |cells: [&str; 7]| {
        let [way, rate, of, of_same, p50, p99, added] = cells;
        text.push_str(&format!(
            "{way:<10} {rate:>26} {of:>20} {of_same:>20} {p50:>20} {p99:>22} {added:>20}\n"
        ));
    };
    for connections in &options.connections {
        let of = |way: Way| rows.get(&(*connections, way));
        let title = format!("{connections} conn.");
        line([
            &title,
            "requests/s",
            "of alone",
            "without consensus",
            "p50 µs",
            "p99 µs",
            "p50 over that, µs",
        ]);
        for way in Way::value_variants() {
            let Some(figures) = of(*way) else { continue };
            let alone = of(Way::Alone).map(|alone| figures.rate.ratio(&alone.rate).words(2));
            let same = way.without_consensus().and_then(of);
            let of_same = same.map(|same| figures.rate.ratio(&same.rate).words(2));
            let added = same.map(|same| figures.p50.minus(&same.p50).words(0));
            let name = way.to_possible_value();
            line([
                name.as_ref().map_or("", |name| name.get_name()),
                &figures.rate.words(0),
                &alone.unwrap_or_default(),
                &of_same.unwrap_or_default(),
                &figures.p50.words(0),
                &figures.p99.words(0),
                &added.unwrap_or_default(),
            ]);
        }
    }
    text
}
