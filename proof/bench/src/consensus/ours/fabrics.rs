//! Opening a fabric for one replica of the benchmark.

use super::super::plan::FabricKind;
use super::ReplicaOptions;
use anyhow::{Context, Result};
use plover_fabric::{Fabric, ShmConfig, ShmFabric, TcpConfig, TcpFabric};
use plover_types::ReplicaId;

/// The group's name, which keeps other replicas out.
const GROUP: &str = "bench";

/// The provider that every machine has, with which a replica can sleep.
#[cfg(feature = "ofi")]
const OFI_PROVIDER: &str = "tcp";

pub(super) fn open(options: &ReplicaOptions) -> Result<Box<dyn Fabric + Send>> {
    let me = usize::from(options.me);
    let listen = *options
        .replicas
        .get(me)
        .context("this replica has no address")?;
    let all = options.replicas.iter().enumerate();
    let peers = all.filter(|(id, _)| *id != me);
    match options.fabric {
        FabricKind::Tcp => {
            let peers = peers.map(|(id, address)| (ReplicaId(id as u8), *address));
            let config = TcpConfig::new(GROUP, ReplicaId(options.me), listen, peers.collect());
            Ok(Box::new(TcpFabric::new(config)?))
        }
        FabricKind::Shm => {
            let peers = peers.map(|(id, _)| ReplicaId(id as u8));
            // Shared memory has names of the whole host. The first replica's address belongs to this
            // group alone.
            let group = format!("{GROUP}-{}", options.replicas[0]);
            let config = ShmConfig::new(group, ReplicaId(options.me), peers.collect());
            Ok(Box::new(ShmFabric::new(config)?))
        }
        #[cfg(feature = "ofi")]
        FabricKind::Ofi => {
            use plover_fabric::ofi::{OfiConfig, OfiFabric};
            let peers = peers.map(|(id, address)| (ReplicaId(id as u8), *address));
            let (me, peers) = (ReplicaId(options.me), peers.collect());
            let config = OfiConfig::new(GROUP, me, listen, peers, OFI_PROVIDER);
            Ok(Box::new(OfiFabric::new(config)?))
        }
        #[cfg(not(feature = "ofi"))]
        FabricKind::Ofi => anyhow::bail!("{} is not built in", options.fabric),
    }
}
