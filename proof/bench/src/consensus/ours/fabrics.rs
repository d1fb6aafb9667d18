//! Opening a fabric for one replica of the benchmark.

use super::super::plan::FabricKind;
use super::ReplicaOptions;
use anyhow::{Context, Result};
use plover_fabric::keys;
use plover_fabric::{Fabric, ShmConfig, ShmFabric, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use std::path::{Path, PathBuf};

/// The group's name, which keeps other replicas out.
const GROUP: &str = "bench";

/// The provider that every machine has, with which a replica can sleep.
#[cfg(feature = "ofi")]
const OFI_PROVIDER: &str = "tcp";

/// Makes the keys of all replicas in `folder`, unless an earlier round has.
pub(super) fn make_keys(folder: &Path, replicas: usize) -> Result<()> {
    let trusted = folder.join("trust");
    if trusted.exists() {
        return Ok(());
    }
    let private: Vec<_> = (0..replicas).map(|id| key_file(folder, id)).collect();
    Ok(keys::make_all(&private, &trusted)?)
}

fn key_file(folder: &Path, replica: usize) -> PathBuf {
    folder.join(format!("{replica}.key"))
}

#[cfg(feature = "ofi")]
fn load_keys(options: &ReplicaOptions) -> Result<std::sync::Arc<plover_fabric::Keys>> {
    let (folder, me) = (&options.folder, options.me);
    let peers = (0..options.replicas.len() as u8).filter(|id| *id != me);
    let (key, trust) = (key_file(folder, usize::from(me)), folder.join("trust"));
    let keys = plover_fabric::Keys::load(&key, &trust, ReplicaId(me), peers.map(ReplicaId))?;
    Ok(keys.into())
}

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
        FabricKind::Ofi | FabricKind::OfiSealed => {
            use plover_fabric::ofi::{OfiConfig, OfiFabric};
            let peers = peers.map(|(id, address)| (ReplicaId(id as u8), *address));
            let (me, peers) = (ReplicaId(options.me), peers.collect());
            let mut config = OfiConfig::new(GROUP, me, listen, peers, OFI_PROVIDER);
            if options.fabric == FabricKind::OfiSealed {
                config.keys = Some(load_keys(options)?);
            }
            Ok(Box::new(OfiFabric::new(config)?))
        }
        #[cfg(not(feature = "ofi"))]
        FabricKind::Ofi | FabricKind::OfiSealed => {
            anyhow::bail!("{} is not built in", options.fabric)
        }
    }
}
