//! One replica of a log.

use super::{DurabilityArgument, FabricArgument, ServeOptions};
use crate::output;
use anyhow::{Context, bail, ensure};
use plover_fabric::{Fabric, ShmConfig, ShmFabric, TcpConfig, TcpFabric};
use plover_log::{Config, Durability, LogOnly, Server, Stopper};
use plover_types::{Micros, ReplicaId, ReplicaSet};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::process::ExitCode;

pub fn run(options: &ServeOptions) -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .init();
    let config = config(options)?;
    let fabric = fabric(options, &config)?;
    let mut server = match &options.dir {
        Some(dir) => Server::in_directory(config, fabric, LogOnly, dir, &options.group)?,
        None => Server::in_memory(config, fabric, LogOnly)?,
    };
    if let Some(address) = &options.client_listen {
        let address = server.listen(address)?;
        output::line(format_args!(
            "replica {} serves clients on {address}",
            options.id
        ))?;
    }
    let signals = Signals::new([SIGINT, SIGTERM]).context("cannot wait for signals")?;
    stop_at(signals, server.stopper());
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the server when a signal comes.
fn stop_at(mut signals: Signals, stopper: Stopper) {
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            tracing::info!(signal, "ending");
            stopper.stop();
        }
    });
}

fn config(options: &ServeOptions) -> anyhow::Result<Config> {
    let me = ReplicaId(options.id);
    let mut members = ReplicaSet::EMPTY;
    for peer in &options.peers {
        let id = ReplicaId(peer.id);
        ensure!(
            !members.contains(id),
            "replica {} has two --peer: give each replica one",
            peer.id
        );
        members.insert(id);
    }
    ensure!(
        members.contains(me),
        "replica {0} is not among the --peer: add --peer {0}=ADDRESS, where it listens",
        options.id
    );
    if options.join {
        members.remove(me);
    }
    ensure!(
        (1..=9).contains(&members.len()),
        "{} replicas were named: a group has 1 to 9, besides one that joins",
        members.len()
    );
    let mut config = Config::new(me, members);
    ensure!(
        options.timeout_ms >= 10,
        "--timeout-ms {} is too short: heartbeats would not come in time, give at least 10",
        options.timeout_ms
    );
    config.timeout = Micros::from_ms(options.timeout_ms);
    config.heartbeat = Micros(config.timeout.0 / 5);
    config.durability = match options.durability {
        DurabilityArgument::Memory => Durability::Memory,
        DurabilityArgument::Disk => Durability::Disk,
    };
    if config.durability == Durability::Disk && options.dir.is_none() {
        bail!("--durability disk needs --dir, where the log is kept");
    }
    config.retain_bytes = options.retain_mib << 20;
    config.log_bytes_max = config.retain_bytes * 2;
    config.check_outputs = options.check_outputs;
    let address = |peer: &super::Member| (ReplicaId(peer.id), peer.address.to_string());
    config.addresses = options.peers.iter().map(address).collect();
    Ok(config)
}

fn fabric(options: &ServeOptions, config: &Config) -> anyhow::Result<Box<dyn Fabric + Send>> {
    let group = options.group.clone();
    let me = config.me;
    let others = options.peers.iter().filter(|peer| peer.id != me.0);
    match options.fabric {
        FabricArgument::Tcp => {
            let own = options.peers.iter().find(|peer| peer.id == me.0);
            let listen = own.context("this replica is among the peers")?.address;
            let peers = others.map(|peer| (ReplicaId(peer.id), peer.address));
            let config = TcpConfig::new(group, me, listen, peers.collect());
            Ok(Box::new(TcpFabric::new(config)?))
        }
        FabricArgument::Shm => {
            let peers = others.map(|peer| ReplicaId(peer.id));
            let config = ShmConfig::new(group, me, peers.collect());
            Ok(Box::new(ShmFabric::new(config)?))
        }
    }
}
