//! The claims: each ratio that the project promises, from this run's own figures.
//!
//! A claim is a verdict on a run, not a test: on a machine that is busy with something else, a ratio can
//! fail that holds on a quiet one. No build should depend on that.

use super::super::core_alone::CoreAlone;
use super::super::plan::{FabricKind, Load, Medium, SMALL_BYTES_MAX, Setup, System};
use super::{Report, Row};
use crate::claims::{Bound, Claim};
use crate::stats::Sample;
use std::collections::BTreeMap;

/// A side of a ratio: a setup, and one of its figures.
#[derive(Clone, Copy)]
struct Side {
    setup: Setup,
    load: Load,
    figure: Figure,
}

#[derive(Clone, Copy)]
enum Figure {
    P50,
    Throughput,
}

impl Side {
    /// The figure of each round.
    fn of(self, report: &Report) -> Option<BTreeMap<usize, f64>> {
        let row = report.row(self.setup, self.load)?;
        let figures = row
            .rounds
            .iter()
            .map(|(round, measured)| match self.figure {
                Figure::P50 => (*round, measured.p50_us),
                Figure::Throughput => (*round, measured.entries_per_s),
            });
        Some(figures.collect())
    }

    fn words(self, sample: &Sample) -> String {
        match self.figure {
            Figure::P50 => format!("{} {:.1} µs", self.setup.system, sample.median()),
            Figure::Throughput => format!("{} {:.0}/s", self.setup.system, sample.median()),
        }
    }
}

fn ratio(report: &Report, what: String, bound: Bound, over: Side, under: Side) -> Claim {
    // Only the rounds that have both figures.
    let both = over.of(report).zip(under.of(report)).map(|(mut a, mut b)| {
        a.retain(|round, _| b.contains_key(round));
        b.retain(|round, _| a.contains_key(round));
        (a.into_values().collect(), b.into_values().collect())
    });
    let both: Option<(Sample, Sample)> = both;
    let both = both.filter(|(a, _)| !a.is_empty());
    let sides = both.as_ref().map_or_else(String::new, |(a, b)| {
        format!("{} / {}", over.words(a), under.words(b))
    });
    Claim {
        what,
        bound,
        figures: both.map(|(a, b)| a.ratio(&b)),
        sides,
    }
}

fn setup(system: System, medium: Medium, replicas: usize) -> Setup {
    Setup {
        system,
        medium,
        replicas,
    }
}

fn side(setup: Setup, load: Load, figure: Figure) -> Side {
    Side {
        setup,
        load,
        figure,
    }
}

/// Every claim, for the sizes and fabrics of this run.
pub(super) fn all(report: &Report) -> Vec<Claim> {
    let mut sizes: Vec<_> = report.rows.iter().map(|row| row.load.bytes).collect();
    sizes.retain(|&bytes| bytes <= SMALL_BYTES_MAX);
    sizes.sort_unstable();
    sizes.dedup();
    let mut claims: Vec<_> = report
        .core_alone
        .iter()
        .map(core_allocates_nothing)
        .collect();
    for bytes in sizes {
        for fabric in [FabricKind::Tcp, FabricKind::Shm] {
            claims.push(near_the_floor(report, fabric, bytes));
        }
        for fabric in [FabricKind::Tcp, FabricKind::Shm] {
            for peer in [System::Etcd, System::ZooKeeper] {
                claims.extend(far_below(report, fabric, peer, bytes));
            }
        }
        claims.extend(like_with_like(report, bytes));
        for connections in [1, 24] {
            claims.push(flat_in_replicas(report, bytes, connections));
        }
        for fabric in [FabricKind::Tcp, FabricKind::Shm] {
            claims.extend(on_disk(report, fabric, bytes));
        }
        for fabric in [FabricKind::Tcp, FabricKind::Shm] {
            claims.push(nothing_allocated(report, fabric, bytes));
        }
    }
    claims
}

fn near_the_floor(report: &Report, fabric: FabricKind, bytes: usize) -> Claim {
    let load = Load {
        bytes,
        connections: 1,
    };
    let at = |system| side(setup(system, Medium::Memory, 3), load, Figure::P50);
    ratio(
        report,
        format!("{fabric}, {load}: p50 over the raw quorum floor"),
        Bound::AtMost(2.5),
        at(System::Plover(fabric)),
        at(System::Floor(fabric)),
    )
}

fn far_below(report: &Report, fabric: FabricKind, peer: System, bytes: usize) -> [Claim; 2] {
    let load = Load {
        bytes,
        connections: 24,
    };
    let at = |system, figure| side(setup(system, Medium::Memory, 3), load, figure);
    let ours = System::Plover(fabric);
    let latency = ratio(
        report,
        format!("{fabric}, {load}: {peer}'s p50 over ours"),
        Bound::AtLeast(32.0),
        at(peer, Figure::P50),
        at(ours, Figure::P50),
    );
    let throughput = ratio(
        report,
        format!("{fabric}, {load}: our throughput over {peer}'s"),
        Bound::AtLeast(20.0),
        at(ours, Figure::Throughput),
        at(peer, Figure::Throughput),
    );
    [latency, throughput]
}

/// Clients on TCP connections, as etcd has them.
fn like_with_like(report: &Report, bytes: usize) -> [Claim; 2] {
    let load = Load {
        bytes,
        connections: 24,
    };
    let at = |system, replicas| {
        let setup = setup(system, Medium::Memory, replicas);
        side(setup, load, Figure::Throughput)
    };
    let ours = at(System::PloverClients, 3);
    let echo = ratio(
        report,
        format!("clients on tcp, {load}: our throughput over a bare echo server's"),
        Bound::AtLeast(0.5),
        ours,
        at(System::Echo, 1),
    );
    let etcd = ratio(
        report,
        format!("clients on tcp, {load}: our throughput over etcd's"),
        Bound::AtLeast(10.0),
        ours,
        at(System::Etcd, 3),
    );
    [echo, etcd]
}

fn flat_in_replicas(report: &Report, bytes: usize, connections: usize) -> Claim {
    let load = Load { bytes, connections };
    let ours = System::Plover(FabricKind::Shm);
    let at = |replicas| side(setup(ours, Medium::Memory, replicas), load, Figure::P50);
    ratio(
        report,
        format!("shm, {load}: p50 of 9 replicas over 3"),
        Bound::AtMost(2.0),
        at(9),
        at(3),
    )
}

fn on_disk(report: &Report, fabric: FabricKind, bytes: usize) -> [Claim; 2] {
    let ours = setup(System::Plover(fabric), Medium::Disk, 3);
    let floor = setup(System::Floor(FabricKind::Tcp), Medium::Disk, 3);
    let alone = Load {
        bytes,
        connections: 1,
    };
    let latency = ratio(
        report,
        format!("{fabric}, disk, {alone}: p50 over the floor with fdatasync"),
        Bound::AtMost(1.5),
        side(ours, alone, Figure::P50),
        side(floor, alone, Figure::P50),
    );
    let many = Load {
        bytes,
        connections: 24,
    };
    let grouped = report.row(ours, many).and_then(Row::entries_per_sync);
    let together = Claim {
        what: format!("{fabric}, disk, {many}: entries a sync"),
        bound: Bound::AtLeast(10.0),
        figures: grouped,
        sides: String::new(),
    };
    [latency, together]
}

/// Heartbeats, a ring that has grown and the counting itself allocate now and then; an entry must not.
/// One allocation in a hundred entries is far above what these need and far below one for each entry.
fn nothing_allocated(report: &Report, fabric: FabricKind, bytes: usize) -> Claim {
    let ours = setup(System::Plover(fabric), Medium::Memory, 3);
    let load = Load {
        bytes,
        connections: 24,
    };
    Claim {
        what: format!("{fabric}, {load}: allocations an entry, all replicas"),
        bound: Bound::AtMost(0.01),
        figures: report.row(ours, load).and_then(Row::allocations),
        sides: String::new(),
    }
}

fn core_allocates_nothing(core: &CoreAlone) -> Claim {
    Claim {
        what: format!(
            "the core alone, {} entries a flush: allocations an entry",
            core.batch
        ),
        bound: Bound::AtMost(0.01),
        figures: Some([core.allocations_per_entry].into_iter().collect()),
        sides: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::measured::Measured;
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn sides_without_a_common_round_are_not_measured() {
        let mut report = Report {
            machine: Machine::this(""),
            cores_kept_awake: false,
            disk: String::new(),
            versions: BTreeMap::new(),
            rounds: 2,
            warm_up_ms: 0,
            span_ms: 1,
            core_alone: Vec::new(),
            rows: Vec::new(),
            left_out: BTreeMap::new(),
            claims: Vec::new(),
        };
        let (bytes, connections) = (64, 1);
        let mut add = |system, round| {
            let measured = Measured {
                p50_us: 10.0,
                ..Measured::default()
            };
            let load = Load { bytes, connections };
            let setup = setup(system, Medium::Memory, 3);
            report.add(setup, load, round, measured);
            near_the_floor(&report, FabricKind::Tcp, bytes)
        };
        add(System::Plover(FabricKind::Tcp), 0);
        let apart = add(System::Floor(FabricKind::Tcp), 1);
        assert_eq!(apart.verdict(), "not measured", "{apart:?}");
        assert_eq!(apart.sides, "");
        let together = add(System::Floor(FabricKind::Tcp), 0);
        assert_eq!(together.verdict(), "holds", "{together:?}");
    }
}
