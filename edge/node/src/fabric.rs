//! Opens the configured fabric: one part for each way in which peers are reached.
//!
//! Each replica names one fabric. Two replicas use the one that both name; if they name different ones
//! they use TCP, which works everywhere. So a group may mix: some replicas on one host over shared
//! memory, the others over the network.

use crate::body::BoxError;
use crate::config::{GroupConfig, PeerConfig};
use plover_fabric::keys::KeyError;
use plover_fabric::{
    BoxedFabric, Keys, Mixed, ShmConfig, ShmFabric, ShmPlace, Spin, TcpConfig, TcpFabric,
};
use plover_types::{ReplicaId, ReplicaSet};
use serde::Deserialize;
use std::sync::Arc;

/// How a replica is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricName {
    /// TCP (the default): everywhere.
    #[default]
    Tcp,
    /// Shared memory: between replicas of one host that run as the same user.
    Shm,
    /// libfabric: RDMA, between hosts that have it.
    Ofi,
}

impl FabricName {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Shm, Self::Ofi];
}

impl GroupConfig {
    /// The fabric that a replica names, or the group's.
    fn fabric_of(&self, replica: &PeerConfig) -> FabricName {
        replica.fabric.unwrap_or(self.fabric)
    }

    /// The peers that this replica reaches over `name`.
    pub(crate) fn peers_over(&self, name: FabricName) -> Vec<ReplicaId> {
        let own = self.replica.iter().find(|r| r.id == self.me);
        let own = own.map_or(FabricName::Tcp, |own| self.fabric_of(own));
        let others = self.replica.iter().filter(|r| r.id != self.me);
        let over = |r: &&PeerConfig| {
            let theirs = self.fabric_of(r);
            let used = if theirs == own { own } else { FabricName::Tcp };
            used == name
        };
        others.filter(over).map(|r| ReplicaId(r.id)).collect()
    }

    /// Refuses links that anybody could read and make, unless the configuration asks for them.
    pub(crate) fn check_keys(&self) -> Result<(), String> {
        match (&self.key_file, &self.trust_file, self.plaintext) {
            (Some(_), Some(_), false) | (None, None, true) => Ok(()),
            (Some(_), Some(_), true) => Err(
                "group.plaintext = true is given beside keys: leave out one or the other".into(),
            ),
            (None, None, false) => {
                let is_near = |r: &PeerConfig| r.address.ip().is_loopback();
                let shm = self.peers_over(FabricName::Shm).len() + 1;
                if shm >= self.replica.len() || self.replica.iter().all(is_near) {
                    return Ok(());
                }
                Err("the links between the hosts have no keys: make one on each host with `plover key \
                     new`, exchange the public keys with `plover key trust`, and name the files in \
                     group.key_file and group.trust_file (or, on a network that nobody else reaches, \
                     say group.plaintext = true)"
                    .into())
            }
            _ => Err(
                "group.key_file and group.trust_file go together, without group.plaintext".into(),
            ),
        }
    }

    /// This replica's keys; `None` if its links are plain. Replicas need none that have `left` the group, or that only its log
    /// names: whoever has taken a host away has taken its key out of the trust file, too.
    ///
    /// # Errors
    /// A file cannot be used, or is another replica's.
    pub fn keys(&self, left: ReplicaSet) -> Result<Option<Arc<Keys>>, KeyError> {
        let (Some(key), Some(trust)) = (&self.key_file, &self.trust_file) else {
            return Ok(None);
        };
        let ids = self.replica.iter().map(|r| ReplicaId(r.id));
        let ids = ids.filter(|id| !left.contains(*id));
        let keys = Keys::load(key, trust, ReplicaId(self.me), ids)?;
        Ok(Some(Arc::new(keys)))
    }

    /// As [`GroupConfig::keys`], for a replica that starts: it starts without a key of a peer, which may be shut out, as long as
    /// it has one of another. Returns also which keys are missing.
    ///
    /// # Errors
    /// As for [`GroupConfig::keys`].
    pub fn keys_at_start(
        &self,
        left: ReplicaSet,
    ) -> Result<(Option<Arc<Keys>>, Vec<KeyError>), KeyError> {
        let (mut without, mut missing) = (left, Vec::new());
        let others = |without: ReplicaSet| {
            let ids = self.replica.iter().map(|r| ReplicaId(r.id));
            ids.filter(|id| id.0 != self.me && !without.contains(*id))
                .count()
        };
        loop {
            match self.keys(without) {
                Err(error @ KeyError::Missing { peer, .. }) if others(without) > 1 => {
                    without.insert(peer);
                    missing.push(error);
                }
                keys => return Ok((keys?, missing)),
            }
        }
    }

    /// Refuses choices of fabrics that have no effect.
    pub(crate) fn check_fabrics(&self) -> Result<(), String> {
        for name in [FabricName::Shm, FabricName::Ofi] {
            let named = self.replica.iter().filter(|r| self.fabric_of(r) == name);
            let named: Vec<u8> = named.map(|r| r.id).collect();
            if let ([alone], true) = (&named[..], self.replica.len() > 1) {
                return Err(format!(
                    "replica {alone} alone has fabric = \"{name}\": a link uses it only when both \
                     of its ends name it, so give it to another replica, too, or to none"
                ));
            }
        }
        let uses = |name| self.replica.iter().any(|r| self.fabric_of(r) == name);
        if self.shm_dir.is_some() && !uses(FabricName::Shm) {
            return Err("group.shm_dir is given, but no replica has fabric = \"shm\"".into());
        }
        match (uses(FabricName::Ofi), &self.ofi_provider) {
            (true, None) => {
                return Err(
                    "fabric = \"ofi\" needs group.ofi_provider, such as \"verbs;ofi_rxm\"; \
                     `fi_info -l` lists what a host has"
                        .into(),
                );
            }
            (false, Some(_)) => {
                return Err(
                    "group.ofi_provider is given, but no replica has fabric = \"ofi\"".into(),
                );
            }
            _ => {}
        }
        if self.spin != Spin::Never && !uses(FabricName::Shm) && !uses(FabricName::Ofi) {
            return Err(
                "group.spin is given, but all replicas have fabric = \"tcp\", which always sleeps"
                    .into(),
            );
        }
        Ok(())
    }
}

impl std::fmt::Display for FabricName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Ofi => "ofi",
        })
    }
}

/// Opens the fabric, under TLS if there are keys; `None` for a replica that is alone.
/// `process` is the number of this process.
pub fn open(
    group: &GroupConfig,
    keys: Option<Arc<Keys>>,
    process: u64,
) -> Result<Option<BoxedFabric>, BoxError> {
    let mut parts = Vec::new();
    for name in FabricName::ALL {
        let peers = group.peers_over(name);
        if !peers.is_empty() {
            parts.push((open_one(group, name, &peers, keys.clone(), process)?, peers));
        }
    }
    Ok(match parts.len() {
        0 => None,
        // The usual case needs no [`Mixed`].
        1 => parts.pop().map(|(fabric, _)| fabric),
        _ => Some(Box::new(Mixed::new(parts)?)),
    })
}

fn open_one(
    group: &GroupConfig,
    name: FabricName,
    peers: &[ReplicaId],
    keys: Option<Arc<Keys>>,
    process: u64,
) -> Result<BoxedFabric, BoxError> {
    let me = ReplicaId(group.me);
    match name {
        FabricName::Tcp => {
            let own = group.replica.iter().find(|r| r.id == group.me);
            let listen = own.ok_or("group.me has no [[group.replica]]")?.address;
            let others = group.replica.iter().map(|r| (ReplicaId(r.id), r.address));
            let others = others.filter(|(id, _)| peers.contains(id)).collect();
            let mut config = TcpConfig::new(group.name.clone(), me, listen, others);
            config.keys = keys;
            config.process = process;
            Ok(Box::new(TcpFabric::new(config)?))
        }
        FabricName::Shm => {
            let mut config = ShmConfig::new(group.name.clone(), me, peers.to_vec());
            config.spin = group.spin;
            config.process = process;
            if let Some(directory) = &group.shm_dir {
                std::fs::create_dir_all(directory).map_err(|e| {
                    format!("cannot create group.shm_dir {}: {e}", directory.display())
                })?;
                config.place = ShmPlace::Directory(directory.clone());
            }
            Ok(Box::new(ShmFabric::new(config)?))
        }
        FabricName::Ofi => open_ofi(group, peers, keys, process),
    }
}

/// Opens the libfabric fabric. Its handshake listens one port above TCP's, so that a replica can use
/// both.
#[cfg(feature = "ofi")]
fn open_ofi(
    group: &GroupConfig,
    peers: &[ReplicaId],
    keys: Option<Arc<Keys>>,
    process: u64,
) -> Result<BoxedFabric, BoxError> {
    use plover_fabric::ofi::{OfiConfig, OfiFabric};
    use std::net::SocketAddr;
    let above = |address: SocketAddr| match address.port().checked_add(1) {
        Some(port) => Ok(SocketAddr::new(address.ip(), port)),
        None => Err(format!(
            "{address}: fabric = \"ofi\" also listens one port above, and there is none"
        )),
    };
    let (mut listen, mut others) = (None, Vec::new());
    for replica in &group.replica {
        let id = ReplicaId(replica.id);
        if replica.id == group.me {
            listen = Some(above(replica.address)?);
        } else if peers.contains(&id) {
            others.push((id, above(replica.address)?));
        }
    }
    let listen = listen.ok_or("group.me has no [[group.replica]]")?;
    let provider = group.ofi_provider.as_deref().unwrap_or_default();
    let me = ReplicaId(group.me);
    let mut config = OfiConfig::new(group.name.clone(), me, listen, others, provider);
    config.spin = group.spin;
    config.keys = keys;
    config.process = process;
    Ok(Box::new(OfiFabric::new(config)?))
}

#[cfg(not(feature = "ofi"))]
fn open_ofi(
    _: &GroupConfig,
    _: &[ReplicaId],
    _: Option<Arc<Keys>>,
    _: u64,
) -> Result<BoxedFabric, BoxError> {
    Err(
        "fabric = \"ofi\" is not part of this build of plover: choose \"tcp\", or install \
         libfabric-dev and build with --features ofi"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_fabric::keys::{PrivateKey, trust};

    /// The fear: the operators of two hosts shut the third one out, and neither starts again.
    #[test]
    fn a_replica_starts_without_the_key_of_one_that_is_shut_out() {
        let dir = tempfile::tempdir().unwrap();
        let [key, trusted] = ["key", "trust"].map(|name| dir.path().join(name));
        let own = PrivateKey::generate().unwrap();
        own.write_new(&key).unwrap();
        trust(&trusted, ReplicaId(0).into(), own.public()).unwrap();
        let group = format!(
            "name = 'g'\nme = 0\nkey_file = {key:?}\ntrust_file = {trusted:?}\n{}",
            [0, 1, 2]
                .map(|id| format!("[[replica]]\nid = {id}\naddress = '192.0.2.{id}:7700'\n"))
                .concat()
        );
        let group: GroupConfig = toml::from_str(&group).unwrap();
        let of_nobody = group.keys_at_start(ReplicaSet::EMPTY).unwrap_err();
        assert!(matches!(of_nobody, KeyError::Missing { .. }));
        let other = PrivateKey::generate().unwrap().public();
        trust(&trusted, ReplicaId(2).into(), other).unwrap();
        let (keys, missing) = group.keys_at_start(ReplicaSet::EMPTY).unwrap();
        assert!(keys.is_some());
        let of_1 = |it: &KeyError| {
            matches!(
                it,
                KeyError::Missing {
                    peer: ReplicaId(1),
                    ..
                }
            )
        };
        assert!(missing.len() == 1 && of_1(&missing[0]));
    }
}
