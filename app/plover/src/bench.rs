//! `plover bench consensus`: the cost of an entry, in a running group or in one made for it.
//!
//! Each connection is a thread with one entry outstanding, through the clients' sockets, so the
//! figures are what a client of `plover log serve` sees. The repository's `./x bench consensus`
//! compares fabrics, sizes and other systems.

use crate::output;
use anyhow::{Context, bail, ensure};
use clap::Args;
use plover_fabric::{ShmConfig, ShmFabric};
use plover_log::{Address, Config, LogOnly, Remote, Server};
use plover_types::{ReplicaId, ReplicaSet};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// How long a group may take to find a leader, and an entry to be appended.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct ConsensusOptions {
    /// The address at which a replica of a running group serves clients; may be repeated. The entries stay
    /// in that group's log. Without this option, a group is made in this process, over shared memory.
    #[arg(long = "to", value_name = "ADDRESS")]
    to: Vec<Address>,
    /// The number of replicas of the group that is made.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9), conflicts_with = "to")]
    replicas: u8,
    /// The number of connections, each with one entry outstanding.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// The size of an entry in bytes.
    #[arg(short, long, value_name = "BYTES", default_value_t = 256)]
    bytes: usize,
    /// The length of the measurement in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

pub fn consensus(options: &ConsensusOptions) -> anyhow::Result<ExitCode> {
    if !options.to.is_empty() {
        return load(options, &options.to);
    }
    let mut servers = Vec::new();
    for id in 0..options.replicas {
        servers.push(replica(ReplicaId(id), options.replicas)?);
    }
    let any_port = "127.0.0.1:0".parse();
    let any_port = any_port.map_err(|error| anyhow::anyhow!("{error}"))?;
    let address = servers[0].listen(&any_port)?;
    let stoppers: Vec<_> = servers.iter().map(Server::stopper).collect();
    thread::scope(|threads| {
        let running: Vec<_> = servers
            .iter_mut()
            .map(|server| threads.spawn(|| server.run()))
            .collect();
        let result = load(options, std::slice::from_ref(&address));
        for stopper in &stoppers {
            stopper.stop();
        }
        for server in running {
            match server.join() {
                Ok(end) => end?,
                Err(_) => bail!("a replica panicked"),
            }
        }
        result
    })
}

/// One replica of a group of threads.
fn replica(me: ReplicaId, replicas: u8) -> anyhow::Result<Server<LogOnly>> {
    let members = ReplicaSet::of((0..replicas).map(ReplicaId));
    let others = members.iter().filter(|id| *id != me).collect();
    let group = format!("bench-{}", std::process::id());
    let fabric = ShmFabric::new(ShmConfig::new(&group, me, others))?;
    Ok(Server::in_memory(
        Config::new(me, members),
        Box::new(fabric),
        LogOnly,
    )?)
}

/// Appends on all connections, and prints what that took.
fn load(options: &ConsensusOptions, to: &[Address]) -> anyhow::Result<ExitCode> {
    // The first answer says that there is a leader.
    let mut first = Remote::new(to.to_vec(), PATIENCE);
    let entry = vec![b'.'; options.bytes];
    first
        .append(&entry)
        .with_context(|| format!("the group at {} does not append", places(to)))?;
    let began = Instant::now();
    let end = began + Duration::from_secs(options.seconds);
    let connections: Vec<anyhow::Result<Vec<Duration>>> = thread::scope(|threads| {
        let running: Vec<_> = (0..options.connections)
            .map(|_| threads.spawn(|| connection(to, &entry, end)))
            .collect();
        let joined = running.into_iter().map(|running| running.join());
        joined
            .map(|result| result.unwrap_or_else(|_| bail!("a connection panicked")))
            .collect()
    });
    let mut spans = Vec::new();
    for connection in connections {
        spans.extend(connection?);
    }
    let seconds = began.elapsed().as_secs_f64();
    ensure!(!spans.is_empty(), "no entry was appended in {seconds:.1} s");
    spans.sort_unstable();
    let at = |part: f64| spans[((spans.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    output::line(format_args!(
        "{} entries of {} bytes in {seconds:.1} s on {} connections: {:.0} entries/s; \
         p50 {:.1} µs, p99 {:.1} µs, longest {:.1} µs",
        spans.len(),
        options.bytes,
        options.connections,
        spans.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        at(1.0),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// One entry after the other until `end`: how long each took.
fn connection(to: &[Address], entry: &[u8], end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut remote = Remote::new(to.to_vec(), PATIENCE);
    let mut spans = Vec::new();
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(spans);
        }
        remote
            .append(entry)
            .with_context(|| format!("the group at {} stopped appending", places(to)))?;
        spans.push(began.elapsed());
    }
}

fn places(to: &[Address]) -> String {
    let places: Vec<_> = to.iter().map(ToString::to_string).collect();
    places.join(", ")
}
