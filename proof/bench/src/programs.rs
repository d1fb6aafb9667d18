//! `./x bench programs`: an unmodified Redis under `plover run`, beside the same Redis alone.
//!
//! ```text
//!   alone        client ──▶ Redis
//!   fed          client ──▶ a proxy of this bench ──▶ three Redis: the same work without a log or a wait
//!   one          client ──▶ a group of one replica, preloaded: Plover's own work without consensus
//!   proxy        client ──▶ plover run, three replicas, via = "proxy"
//!   output       client ──▶ Redis, three replicas, via = "preload": an output waits for the commit
//!   read         the same with wait = "read": each read waits for it, as in APUS
//!   unchecked    as output, with check = "off"
//!   clock        as output, with clock = "log"
//! ```
//!
//! APUS report, section 5.3 and its figures 5 and 6: throughput beside the unreplicated program, and how much of an answer's time is
//! consensus, by the number of connections. All ways take turns in each round.

mod feeder;
mod table;

use crate::children::{Process, progress, spoken_progress};
use crate::lab::{exec_within, name, plover};
use crate::stats::Sample;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use feeder::Feeder;
use plover_lab::net::{GUEST_IP, PREFIX, Topology};
use plover_lab_proof::programs::group::{Group, LISTEN};
use plover_lab_proof::programs::{Client, Plan, Subject, named};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where a Redis listens that a proxy feeds.
const PORT: u16 = 6380;
/// Keys that are written.
const KEYS: &str = "10000";
const WITHIN: Duration = Duration::from_secs(60);
/// `redis-benchmark` waits for ever for an answer. Its limit is this time and that of its requests at so few a second. The
/// slowest way, reads by nine replicas, answers 1900.
const LATE_S: u64 = 120;
const LEAST_PER_S: u32 = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds of each way.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 32])]
    connections: Vec<u32>,
    /// Requests of each measurement, as many as in the report; with one connection a quarter of them.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,
    /// Replicas.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    replicas: u8,
    /// How replicas reach each other.
    #[arg(long, value_enum, default_value_t)]
    fabric: Fabric,
    /// Whether entries are on disks before they count.
    #[arg(long)]
    durable: bool,
    /// These ways only.
    #[arg(long, value_enum)]
    only: Vec<Way>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Fabric {
    /// TCP, under TLS.
    #[default]
    Tcp,
    /// Memory that all replicas share.
    Shm,
}

/// A way from clients to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// Redis alone.
    Alone,
    /// As many Redis as there are replicas, fed without a log.
    Fed,
    /// A group of one, preloaded.
    One,
    /// A group, by a proxy.
    Proxy,
    /// A group, preloaded: an output waits for the commit.
    Output,
    /// A group, preloaded: a read waits for the commit.
    Read,
    /// As output, without comparing outputs.
    Unchecked,
    /// As output, with the time of the log.
    Clock,
}

impl Way {
    /// The same way without consensus.
    fn without_consensus(self) -> Option<Self> {
        match self {
            Self::Alone | Self::Fed | Self::One => None,
            Self::Proxy => Some(Self::Fed),
            Self::Output | Self::Read | Self::Unchecked | Self::Clock => Some(Self::One),
        }
    }
}

/// Figures of a way at a number of connections.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Requests a second.
    pub rate: Sample,
    /// The median time of an answer, in microseconds.
    pub p50: Sample,
    /// The 99th percentile.
    pub p99: Sample,
}

pub(crate) type Rows = BTreeMap<(u32, Way), Figures>;

pub(crate) fn run(options: &Options) -> Result<()> {
    let ways = match options.only.is_empty() {
        true => Way::value_variants(),
        false => &options.only,
    };
    let mut rows = Rows::new();
    let done = measure_all(options, ways, &mut rows);
    // The figures are printed even if the run fails.
    if !rows.is_empty() {
        table::show(options, &rows)?;
    }
    done
}

fn measure_all(options: &Options, ways: &[Way], rows: &mut Rows) -> Result<()> {
    for round in 1..=options.rounds {
        for way in ways {
            eprintln!("round {round}/{}: {way:?}", options.rounds);
            let served = Served::start(*way, options).with_context(|| format!("{way:?}"))?;
            // Connections, caches, and the first pages of memory.
            served.measure(4, 1000)?;
            for connections in &options.connections {
                let requests = match connections {
                    1 => options.requests / 4,
                    _ => options.requests,
                };
                let (rate, p50, p99) = served
                    .measure(*connections, requests)
                    .with_context(|| format!("{way:?}, {connections} connections"))?;
                let figures = rows.entry((*connections, *way)).or_default();
                figures.rate.push(rate);
                figures.p50.push(p50);
                figures.p99.push(p99);
            }
            served.stop()?;
        }
    }
    Ok(())
}

/// A Redis that clients reach at [`LISTEN`].
enum Served {
    Group(Group),
    Plain(Plain),
}

impl Served {
    fn start(way: Way, options: &Options) -> Result<Self> {
        let all = usize::from(options.replicas);
        let keys = match way {
            Way::Alone => return Plain::start(1).map(Self::Plain),
            Way::Fed => return Plain::start(all).map(Self::Plain),
            Way::One | Way::Output => "via = \"preload\"",
            Way::Proxy => "via = \"proxy\"",
            Way::Read => "via = \"preload\"\nwait = \"read\"",
            Way::Unchecked => "via = \"preload\"\ncheck = \"off\"",
            Way::Clock => "via = \"preload\"\nclock = \"log\"",
        };
        let mut plan = Plan::of(Vec::new());
        plan.program_keys = keys.into();
        if options.fabric == Fabric::Shm {
            let dir = crate::report::folder()?.join("programs-shm");
            plan.keys = format!("fabric = \"shm\"\nshm_dir = \"{}\"", dir.display());
        }
        if options.durable {
            plan.keys.push_str("\ndurability = \"disk\"");
        }
        let hosts = if way == Way::One { 1 } else { all };
        let group = Group::up(name().as_str(), hosts, &plover(), &Redis, &plan)?;
        group.wait_for("a group that serves", &spoken_progress(), Group::is_whole)?;
        Ok(Self::Group(group))
    }

    fn topology(&self) -> &Topology {
        match self {
            Self::Group(group) => group.topology(),
            Self::Plain(plain) => &plain.topology,
        }
    }

    /// SETs a second, and the median and the 99th percentile of their answers' times in microseconds.
    fn measure(&self, connections: u32, requests: u32) -> Result<(f64, f64, f64)> {
        let (host, port) = (LISTEN.ip().to_string(), LISTEN.port().to_string());
        let limit_s = LATE_S + u64::from(requests / LEAST_PER_S);
        let (connections, requests) = (connections.to_string(), requests.to_string());
        let mut command = vec!["redis-benchmark", "-h", &host, "-p", &port];
        command.extend(["-t", "set", "-r", KEYS, "--csv"]);
        command.extend(["-c", &connections, "-n", &requests]);
        let text = exec_within(&self.topology().client(), limit_s, &command)?;
        figures(&text).with_context(|| format!("redis-benchmark did not finish: {text}"))
    }

    fn stop(self) -> Result<()> {
        match self {
            Self::Group(group) => group.down(),
            Self::Plain(_) => Ok(()),
        }
    }
}

/// The figures in what `redis-benchmark --csv` prints: two lines, of names and of values; times are in milliseconds.
fn figures(text: &str) -> Option<(f64, f64, f64)> {
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let words = |line: &str| -> Vec<String> {
        let words = line.split(',');
        words
            .map(|word| word.trim_matches('"').to_owned())
            .collect()
    };
    let (names, values) = (words(lines.next()?), words(lines.next()?));
    let of = |name: &str| -> Option<f64> {
        let at = names.iter().position(|it| it == name)?;
        values.get(at)?.parse().ok()
    };
    Some((
        of("rps")?,
        of("p50_latency_ms")? * 1000.0,
        of("p99_latency_ms")? * 1000.0,
    ))
}

/// Redis, with room in the log for all that a turn writes: at a checkpoint clients are disconnected.
#[derive(Debug)]
struct Redis;

impl Subject for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn command(&self, files: &Path) -> Vec<String> {
        named("redis").map_or_else(|_| Vec::new(), |redis| redis.command(files))
    }

    fn keys(&self) -> String {
        format!(
            "ready_cmd = \"redis-cli -p {} ping | grep -q PONG\"",
            self.port()
        )
    }

    fn log_mib(&self) -> u32 {
        512
    }

    fn open(&self, files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        named("redis")?.open(files, at, patience)
    }
}

/// Redis without Plover, on one host or on several.
struct Plain {
    /// Ended before the namespaces.
    feeder: Option<Feeder>,
    programs: Vec<Process>,
    topology: Topology,
}

impl Plain {
    fn start(hosts: usize) -> Result<Self> {
        let name = name();
        plover_lab::down::down(&name)?;
        let mut plain = Self {
            feeder: None,
            programs: Vec::new(),
            topology: Topology::create(name.as_str(), hosts)?,
        };
        let own = |id: usize| Ipv4Addr::new(10, 77, 0, 10 + id as u8);
        let alone = hosts == 1;
        let port = if alone { LISTEN.port() } else { PORT };
        for id in 0..hosts {
            let address = if alone { GUEST_IP } else { own(id) };
            plain.add_address(id, address)?;
            let mut command = Command::new("redis-server");
            command.args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--protected-mode",
                "no",
            ]);
            command.args(["--loglevel", "warning"]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let mut command = plain.topology.replica(id).exec_in(command)?;
            plain.programs.push(Process::start(&mut command)?);
        }
        let mut wanted: Vec<_> = (0..hosts)
            .map(|id| SocketAddrV4::new(own(id), port))
            .collect();
        if alone {
            wanted = vec![LISTEN];
        } else {
            plain.add_address(0, GUEST_IP)?;
        }
        for at in &wanted {
            plain.wait_for(*at)?;
        }
        if !alone {
            plain.feeder = Some(Feeder::start(&plain.topology.replica(0), LISTEN, wanted)?);
            plain.wait_for(LISTEN)?;
        }
        Ok(plain)
    }

    fn add_address(&self, id: usize, address: Ipv4Addr) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["addr", "add", &format!("{address}/{PREFIX}"), "dev", "br0"]);
        let added = self.topology.replica(id).exec_in(command)?.status()?;
        ensure!(
            added.success(),
            "cannot give host {id} the address {address}"
        );
        Ok(())
    }

    /// Waits until a Redis answers the client's host.
    fn wait_for(&self, at: SocketAddrV4) -> Result<()> {
        let until = Instant::now() + WITHIN;
        let answers = || {
            self.topology.client().run(|| {
                let mut client = Redis.open(Path::new("/"), at, Duration::from_secs(1))?;
                client.write("ready", "1")
            })
        };
        while let Err(error) = answers() {
            ensure!(
                Instant::now() < until,
                "no Redis answers at {at}: {error:#}"
            );
            progress().sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.feeder = None;
        self.programs.clear();
        let _ = self.topology.clone().destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_by_their_names() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"52083.33\",\"0.253\",\"0.104\",\"0.255\",\"0.319\",\"0.391\",\"0.543\"\n";
        assert_eq!(figures(text), Some((52083.33, 255.0, 391.0)));
        assert_eq!(figures("Error: Server closed the connection\n"), None);
    }
}
