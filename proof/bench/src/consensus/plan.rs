//! The systems to measure, and the shapes of load that each of them carries.
//!
//! A *series* is one system set up in one way (on memory or on disk, with so many replicas); its
//! *cells* are the loads put on it one after the other. A round runs every series once.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How replicas reach each other.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FabricKind {
    /// TCP over the loopback interface.
    Tcp,
    /// Rings in shared memory.
    Shm,
    /// libfabric, over the software provider that the fabric chooses.
    Ofi,
    /// The same with keys, so that records are sealed.
    OfiSealed,
}

impl FabricKind {
    pub fn is_ofi(self) -> bool {
        matches!(self, Self::Ofi | Self::OfiSealed)
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Ofi => "ofi",
            Self::OfiSealed => "ofi-sealed",
        })
    }
}

/// Where an entry has to be before it counts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Medium {
    /// In memory; for systems that always write files, on a tmpfs.
    Memory,
    /// On the disk, synced.
    Disk,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        })
    }
}

/// A system to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum System {
    /// Bytes there and back between two processes: the limit of a fabric.
    PingPong(FabricKind),
    /// A bare leader and its backups, first acknowledgements of a majority: the limit of
    /// consensus on a fabric. On disk every replica syncs the bytes first.
    Floor(FabricKind),
    /// A server that sends back all that it gets on TCP connections: the limit of a server with clients.
    Echo,
    /// `pwrite` and `fdatasync` of one file.
    Fdatasync,
    /// Our log, the proposers in the leader's process.
    Plover(FabricKind),
    /// Our log, its clients on TCP connections.
    PloverClients,
    /// etcd, clients on gRPC connections.
    Etcd,
    /// ZooKeeper, clients on TCP connections.
    ZooKeeper,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingPong(kind) => f.pad(&format!("ping-pong {kind}")),
            Self::Floor(kind) => f.pad(&format!("quorum floor {kind}")),
            Self::Echo => f.pad("tcp echo"),
            Self::Fdatasync => f.pad("fdatasync floor"),
            Self::Plover(kind) => f.pad(&format!("plover {kind}")),
            Self::PloverClients => f.pad("plover, clients on tcp"),
            Self::Etcd => f.pad("etcd"),
            Self::ZooKeeper => f.pad("ZooKeeper"),
        }
    }
}

/// One system set up in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub system: System,
    pub medium: Medium,
    pub replicas: usize,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, {} replicas",
            self.system, self.medium, self.replicas
        )
    }
}

/// One shape of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Bytes of an entry.
    pub bytes: usize,
    /// Closed loops: each has one entry outstanding.
    pub connections: usize,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.connections == 1 { "" } else { "s" };
        write!(
            f,
            "{} B, {} connection{plural}",
            self.bytes, self.connections
        )
    }
}

/// A setup and its loads.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub setup: Setup,
    pub loads: Vec<Load>,
}

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub rounds: usize,
    /// How long a load runs before it counts.
    pub warm_up: Duration,
    /// How long it is measured after that.
    pub span: Duration,
    pub series: Vec<Series>,
}

/// The sizes of the issue: a small command, a packet's head, a full packet, a batch.
const SIZES: [usize; 4] = [64, 256, 1536, 65536];
/// The largest entry for which ratios are claimed.
pub(crate) const SMALL_BYTES_MAX: usize = 256;
pub(crate) const CONNECTIONS: [usize; 2] = [1, 24];

impl Plan {
    /// A few minutes: the series that the claims need.
    pub fn quick(fabrics: &[FabricKind]) -> Self {
        let sizes = &SIZES[..2];
        Self {
            rounds: 3,
            warm_up: Duration::from_millis(150),
            span: Duration::from_millis(500),
            series: series(fabrics, sizes, &[3, 9], &[]),
        }
    }

    /// Everything, in about twenty minutes.
    pub fn full(fabrics: &[FabricKind]) -> Self {
        Self {
            rounds: 3,
            warm_up: Duration::from_millis(150),
            span: Duration::from_millis(400),
            series: series(fabrics, &SIZES, &[3, 5, 7, 9], &[5, 7, 9]),
        }
    }

    /// Keeps the series whose description contains one of the words in `systems`, and of their loads
    /// those whose description contains one of `loads`. No words keep all.
    pub fn keep(&mut self, systems: &[String], loads: &[String]) {
        let has_one = |words: &[String], name: String| {
            let name = name.to_lowercase();
            words.is_empty() || words.iter().any(|it| name.contains(&it.to_lowercase()))
        };
        for series in &mut self.series {
            series.loads.retain(|load| has_one(loads, load.to_string()));
        }
        self.series.retain(|series| {
            !series.loads.is_empty() && has_one(systems, series.setup.to_string())
        });
    }

    /// The time that all spans take together, without starting and stopping.
    pub fn seconds_at_least(&self) -> f64 {
        let loads: usize = self.series.iter().map(|series| series.loads.len()).sum();
        (self.warm_up + self.span).as_secs_f64() * (loads * self.rounds) as f64
    }
}

/// Every series, in an order that puts compared systems side by side: a floor comes just before the
/// systems above it.
fn series(
    fabrics: &[FabricKind],
    sizes: &[usize],
    in_memory: &[usize],
    on_disk: &[usize],
) -> Vec<Series> {
    let mut all = Vec::new();
    let mut add = |system, medium, replicas, connections: &[usize]| {
        let setup = Setup {
            system,
            medium,
            replicas,
        };
        let loads = sizes.iter().flat_map(|&bytes| {
            connections
                .iter()
                .map(move |&connections| Load { bytes, connections })
        });
        all.push(Series {
            setup,
            loads: loads.collect(),
        });
    };
    for medium in [Medium::Memory, Medium::Disk] {
        let sizes_of_groups = match medium {
            Medium::Memory => in_memory.to_vec(),
            Medium::Disk => [&[3], on_disk].concat(),
        };
        if medium == Medium::Disk {
            add(System::Fdatasync, medium, 1, &[1]);
            // With the disk in the path the fabric hardly matters: one floor serves all.
            add(System::Floor(FabricKind::Tcp), medium, 3, &[1]);
        }
        for &fabric in fabrics {
            // Of a software provider of libfabric, a floor would say nothing about the hardware.
            let has_floor = medium == Medium::Memory && !fabric.is_ofi();
            if has_floor {
                add(System::PingPong(fabric), medium, 2, &[1]);
            }
            for &replicas in &sizes_of_groups {
                if has_floor {
                    add(System::Floor(fabric), medium, replicas, &[1]);
                }
                add(System::Plover(fabric), medium, replicas, &CONNECTIONS);
            }
        }
        if medium == Medium::Memory {
            add(System::Echo, medium, 1, &CONNECTIONS);
        }
        add(System::PloverClients, medium, 3, &CONNECTIONS);
        add(System::Etcd, medium, 3, &CONNECTIONS);
        add(System::ZooKeeper, medium, 3, &CONNECTIONS);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_all_that_the_claims_need() {
        let plan = Plan::quick(&[FabricKind::Tcp, FabricKind::Shm]);
        let has = |system, medium, replicas| {
            let setup = Setup {
                system,
                medium,
                replicas,
            };
            plan.series.iter().any(|series| series.setup == setup)
        };
        for kind in [FabricKind::Tcp, FabricKind::Shm] {
            for system in [System::Floor(kind), System::Plover(kind)] {
                assert!(has(system, Medium::Memory, 3) && has(system, Medium::Memory, 9));
            }
            assert!(has(System::Plover(kind), Medium::Disk, 3));
        }
        for medium in [Medium::Memory, Medium::Disk] {
            assert!(has(System::Etcd, medium, 3) && has(System::ZooKeeper, medium, 3));
        }
        assert!(has(System::Floor(FabricKind::Tcp), Medium::Disk, 3));
        assert!(
            has(System::Echo, Medium::Memory, 1) && has(System::PloverClients, Medium::Memory, 3)
        );
    }

    #[test]
    fn every_series_stands_once_and_a_filter_keeps_what_it_names() {
        let mut plan = Plan::full(&[FabricKind::Tcp, FabricKind::Shm]);
        let mut setups: Vec<_> = plan.series.iter().map(|series| series.setup).collect();
        setups.sort();
        setups.dedup();
        assert_eq!(setups.len(), plan.series.len());
        plan.keep(&["etcd".into(), "quorum floor shm".into()], &[]);
        assert_eq!(plan.series.len(), 2 + 4);
        plan.keep(&[], &["256 B, 24 con".into()]);
        assert_eq!(plan.series.len(), 2, "a floor has one connection");
        assert!(plan.series.iter().all(|series| series.loads.len() == 1));
    }
}
