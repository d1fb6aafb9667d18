//! One replica of a log.

use super::digest::LogDigest;
use super::{DurabilityArgument, FabricArgument, ServeOptions};
use crate::{logging, output};
use anyhow::{Context, bail, ensure};
use plover_fabric::{Fabric, Keys, ShmConfig, ShmFabric, Spin, TcpConfig, TcpFabric, draw_process};
use plover_log::{Address, Config, Durability, Server, Stopper};
use plover_types::{Micros, ReplicaId, ReplicaSet};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

/// A log in memory is not meant to be larger: 1 TiB.
const RETAIN_MIB_MAX: usize = 1 << 20;

pub fn run(options: &ServeOptions) -> anyhow::Result<ExitCode> {
    let _log_thread = logging::to_error_output().in_background();
    let config = config(options)?;
    check_door(options)?;
    let keys = keys(options)?;
    let fabric = fabric(options, &config, keys.clone())?;
    let mut server = match &options.dir {
        Some(dir) => {
            Server::in_directory(config, fabric, LogDigest::default(), dir, &options.group)?
        }
        None => Server::in_memory(config, fabric, LogDigest::default())?,
    };
    if let Some(address) = &options.client_listen {
        let address = server.listen_with(address, keys.filter(|_| !options.client_plaintext))?;
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

/// Without keys, other hosts' clients are let in only on purpose.
fn check_door(options: &ServeOptions) -> anyhow::Result<()> {
    match &options.client_listen {
        Some(Address::Tcp(door))
            if !door.ip().is_loopback() && options.key.is_none() && !options.client_plaintext =>
        {
            bail!(
                "--client-listen {door} lets clients of other hosts in, and there are no keys: give --key and --trust (see \
                 `plover key new`), listen on loopback or on a unix socket, or give --client-plaintext on a network that \
                 nobody else reaches"
            )
        }
        _ => Ok(()),
    }
}

/// Ends the server when a signal arrives.
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
        "replica {0}, which is to run here, is not among the --peer: add --peer {0}=ADDRESS, where it \
         listens",
        options.id
    );
    if options.join {
        members.remove(me);
    }
    ensure!(
        (1..=9).contains(&members.len()),
        "{} replicas are named by --peer: name 1 to 9, not counting one that joins",
        members.len()
    );
    ensure!(
        (1..=RETAIN_MIB_MAX).contains(&options.retain_mib),
        "--retain-mib {} is out of range: give 1 to {RETAIN_MIB_MAX}",
        options.retain_mib
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
    let address = |peer: &super::Member| (ReplicaId(peer.id), peer.address_text());
    config.addresses = options.peers.iter().map(address).collect();
    Ok(config)
}

fn fabric(
    options: &ServeOptions,
    config: &Config,
    keys: Option<Arc<Keys>>,
) -> anyhow::Result<Box<dyn Fabric + Send>> {
    let group = options.group.clone();
    let me = config.me;
    ensure!(
        options.fabric != FabricArgument::Tcp || options.spin == Spin::Never,
        "--spin is given, but --fabric tcp always sleeps: leave it out, or choose another fabric"
    );
    ensure!(
        options.fabric == FabricArgument::Ofi || options.ofi_provider.is_none(),
        "--ofi-provider is given without --fabric ofi: leave it out, or choose that fabric"
    );
    match options.fabric {
        FabricArgument::Tcp => {
            let (listen, peers) = addresses(options)?;
            let mut config = TcpConfig::new(group, me, listen, peers);
            config.keys = keys;
            config.process = draw_process();
            Ok(Box::new(TcpFabric::new(config)?))
        }
        FabricArgument::Shm => {
            let ids = options.peers.iter().map(|peer| ReplicaId(peer.id));
            let mut config = ShmConfig::new(group, me, ids.filter(|id| *id != me).collect());
            config.spin = options.spin;
            config.process = draw_process();
            Ok(Box::new(ShmFabric::new(config)?))
        }
        FabricArgument::Ofi => {
            let (listen, peers) = addresses(options)?;
            open_ofi(options, (me, listen), peers, keys)
        }
    }
}

/// This replica's keys. Without them links may not leave the host, unless they are to be plain.
fn keys(options: &ServeOptions) -> anyhow::Result<Option<Arc<Keys>>> {
    if let (Some(key), Some(trust)) = (&options.key, &options.trust) {
        let ids = options.peers.iter().map(|peer| ReplicaId(peer.id));
        let keys = Keys::load(key, trust, ReplicaId(options.id), ids)?;
        return Ok(Some(Arc::new(keys)));
    }
    if options.fabric == FabricArgument::Shm {
        return Ok(None);
    }
    let addresses = options.peers.iter().filter_map(|peer| peer.address);
    let far = addresses.into_iter().find(|it| !it.ip().is_loopback());
    if let Some(far) = far.filter(|_| !options.plaintext) {
        bail!(
            "{far} is on another host, and the links have no keys: give --key and --trust (see `plover key \
             new`), or --plaintext on a network that nobody else reaches"
        );
    }
    Ok(None)
}

/// Where this replica and the others listen.
fn addresses(options: &ServeOptions) -> anyhow::Result<(SocketAddr, Vec<(ReplicaId, SocketAddr)>)> {
    let mut peers = Vec::new();
    let mut own = None;
    for peer in &options.peers {
        let address = peer.address.with_context(|| {
            format!(
                "--peer {0} has no address: give {0}=HOST:PORT (only replicas on --fabric shm need none)",
                peer.id
            )
        })?;
        if peer.id == options.id {
            own = Some(address);
        } else {
            peers.push((ReplicaId(peer.id), address));
        }
    }
    Ok((own.context("this replica is among the peers")?, peers))
}

#[cfg(feature = "ofi")]
fn open_ofi(
    options: &ServeOptions,
    (me, listen): (ReplicaId, SocketAddr),
    peers: Vec<(ReplicaId, SocketAddr)>,
    keys: Option<Arc<Keys>>,
) -> anyhow::Result<Box<dyn Fabric + Send>> {
    use plover_fabric::ofi::{OfiConfig, OfiFabric};
    let provider = options.ofi_provider.as_deref().context(
        "--fabric ofi needs --ofi-provider, such as 'verbs;ofi_rxm', or 'tcp' where there is no \
         RDMA; `fi_info -l` lists what this host has",
    )?;
    let mut config = OfiConfig::new(options.group.clone(), me, listen, peers, provider);
    config.spin = options.spin;
    config.keys = keys;
    config.process = draw_process();
    Ok(Box::new(OfiFabric::new(config)?))
}

#[cfg(not(feature = "ofi"))]
fn open_ofi(
    _: &ServeOptions,
    _: (ReplicaId, SocketAddr),
    _: Vec<(ReplicaId, SocketAddr)>,
    _: Option<Arc<Keys>>,
) -> anyhow::Result<Box<dyn Fabric + Send>> {
    bail!(
        "--fabric ofi is not part of this build of plover: choose tcp, or install libfabric-dev \
         and build with --features ofi"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogCommand;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: LogCommand,
    }

    fn options(line: &str) -> ServeOptions {
        let words = ["plover", "serve"].into_iter().chain(line.split(' '));
        match Line::try_parse_from(words)
            .expect("it is understood")
            .command
        {
            LogCommand::Serve(options) => options,
            other => panic!("{other:?} is not to serve"),
        }
    }

    fn opened(line: &str) -> anyhow::Result<Box<dyn Fabric + Send>> {
        let options = options(line);
        fabric(&options, &config(&options)?, keys(&options)?)
    }

    #[test]
    fn a_log_that_could_hold_nothing_is_refused() {
        for (mib, is_sound) in [(0, false), (1, true), (32, true), (usize::MAX, false)] {
            let line = format!("--id 0 --peer 0=127.0.0.1:0 --retain-mib {mib}");
            let config = config(&options(&line)).map(|config| config.retain_bytes);
            assert_eq!(config.is_ok(), is_sound, "{mib}: {config:?}");
        }
    }

    #[test]
    fn a_fabric_refuses_options_that_it_does_not_have() {
        for (line, word) in [
            ("--spin adaptive", "--fabric tcp always sleeps"),
            ("--ofi-provider tcp", "without --fabric ofi"),
            ("--peer 1", "--peer 1 has no address"),
            ("--peer 1=192.0.2.1:7", "give --key and --trust"),
            ("--key /none --trust /none", "`plover key new` makes one"),
            ("--fabric shm --ofi-provider tcp", "without --fabric ofi"),
            #[cfg(feature = "ofi")]
            ("--fabric ofi", "needs --ofi-provider"),
            #[cfg(not(feature = "ofi"))]
            ("--fabric ofi --ofi-provider tcp", "not part of this build"),
        ] {
            let line = format!("--id 0 --peer 0=127.0.0.1:0 {line}");
            let error = opened(&line).err().expect("it is refused").to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn clients_of_other_hosts_are_let_in_only_on_purpose() {
        for (door, is_open) in [
            ("--client-listen 127.0.0.1:0", true),
            ("--client-listen [::1]:0", true),
            ("--client-listen ./door", true),
            ("--client-listen 0.0.0.0:0", false),
            ("--client-listen 192.0.2.1:7 --client-plaintext", true),
            ("--client-listen 192.0.2.1:7 --key k --trust t", true),
            ("--client-listen 192.0.2.1:7", false),
        ] {
            let line = format!("--id 0 --peer 0=127.0.0.1:0 {door}");
            let checked = check_door(&options(&line));
            assert_eq!(checked.is_ok(), is_open, "{door}");
            if let Err(error) = checked {
                assert!(error.to_string().contains("--client-plaintext"), "{error}");
            }
        }
    }

    #[test]
    fn over_shared_memory_an_id_is_enough() {
        let group = format!("log-serve-ids-{}", std::process::id());
        let line = format!("--id 0 --peer 0 --peer 1 --fabric shm --group {group}");
        let config = config(&options(&line)).expect("a group");
        assert!(config.addresses.values().all(String::is_empty));
        opened(&line).expect("it needs no address");
    }

    /// Three replicas of this process append over libfabric.
    #[cfg(feature = "ofi")]
    #[test]
    fn a_group_over_libfabric_appends() {
        use std::net::TcpListener;
        use std::time::Duration;

        const PATIENCE: Duration = Duration::from_secs(60);
        let held: Vec<_> = (0..3)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
            .collect();
        let ports = held.iter().map(|it| it.local_addr().expect("bound").port());
        let peers = ports
            .enumerate()
            .map(|(id, port)| format!("--peer {id}=127.0.0.1:{port}"));
        let peers = peers.collect::<Vec<_>>().join(" ");
        drop(held);
        let mut servers: Vec<_> = (0..3)
            .map(|id| {
                let line = format!(
                    "--id {id} {peers} --fabric ofi --ofi-provider tcp --timeout-ms 2000 \
                     --group log-serve-{}",
                    std::process::id()
                );
                let options = options(&line);
                let config = config(&options).expect("a group");
                let fabric =
                    fabric(&options, &config, None).expect("libfabric's tcp is always there");
                Server::in_memory(config, fabric, LogDigest::default()).expect("a replica")
            })
            .collect();
        let mut first = servers.remove(0);
        let stoppers: Vec<_> = servers.iter().map(Server::stopper).collect();
        std::thread::scope(|threads| {
            for server in &mut servers {
                threads.spawn(move || server.run().expect("it runs"));
            }
            let leads = first.wait_until_leading(PATIENCE).expect("it runs");
            let appended: Vec<_> = (0..20)
                .map(|_| first.append(b"entry", PATIENCE).expect("it runs"))
                .collect();
            stoppers.iter().for_each(Stopper::stop);
            assert!(leads && appended.iter().all(Result::is_ok), "{appended:?}");
        });
    }
}
