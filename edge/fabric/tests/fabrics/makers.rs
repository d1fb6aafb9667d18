//! Fabrics of one machine, with small rings.

use crate::contract::{How, Maker};
use plover_fabric::keys::PrivateKey;
use plover_fabric::{Keys, ShmConfig, ShmFabric, ShmPlace, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Size of the log rings.
pub const LOG_RING_BYTES: usize = 64 << 10;

/// The number of a process, as each start of a replica draws one.
pub fn next_process() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens TCP fabrics that share one set of addresses.
pub struct TcpMaker {
    pub addresses: Vec<SocketAddr>,
    /// Each replica's, if links are encrypted.
    pub keys: Vec<Arc<Keys>>,
}

impl TcpMaker {
    pub fn new() -> Self {
        Self::of(3)
    }

    /// Of a group of another size.
    pub fn of(replicas: usize) -> Self {
        Self {
            addresses: free_addresses(replicas),
            keys: Vec::new(),
        }
    }

    /// With TLS.
    pub fn encrypted() -> Self {
        Self {
            keys: keys_of(3),
            ..Self::new()
        }
    }

    pub fn config(&self, me: ReplicaId, how: How) -> TcpConfig {
        let (listen, peers) = members(&self.addresses, me, how);
        let mut config = TcpConfig::new("test", me, listen, peers);
        config.ring_bytes = [LOG_RING_BYTES, how.bulk_ring_bytes];
        config.keys = self.keys.get(usize::from(me.0)).cloned();
        config.process = next_process();
        config
    }

    pub fn open_second_with(&self, me: ReplicaId, how: How) -> TcpFabric {
        let mut config = self.config(me, how);
        config.listen.set_port(0);
        TcpFabric::new(config).expect("loopback works")
    }
}

impl Maker for TcpMaker {
    type Fabric = TcpFabric;

    fn open_with(&mut self, me: ReplicaId, how: How) -> TcpFabric {
        TcpFabric::new(self.config(me, how)).expect("loopback works")
    }

    fn open_second(&mut self, me: ReplicaId) -> TcpFabric {
        self.open_second_with(me, How::default())
    }

    fn address(&self, of: ReplicaId) -> String {
        self.addresses[usize::from(of.0)].to_string()
    }
}

/// Keys for replicas 0 to `count`, all of which trust each other.
pub fn keys_of(count: u8) -> Vec<Arc<Keys>> {
    let own: Vec<_> = (0..count).map(|_| private_key()).collect();
    let ids = (0..count).map(ReplicaId);
    let trusted: Vec<_> = ids.zip(own.iter().map(PrivateKey::public)).collect();
    let keys = own.into_iter().map(|own| Keys::new(own, trusted.clone()));
    keys.map(Arc::new).collect()
}

pub fn private_key() -> PrivateKey {
    PrivateKey::generate().expect("random bytes")
}

/// Where `me` listens, and the others that it knows.
pub fn members(
    addresses: &[SocketAddr],
    me: ReplicaId,
    how: How,
) -> (SocketAddr, Vec<(ReplicaId, SocketAddr)>) {
    let all = addresses.iter().enumerate();
    let all = all.map(|(id, address)| (ReplicaId(id as u8), *address));
    let others = all.filter(|(id, _)| *id != me && how.members.contains(*id));
    (addresses[usize::from(me.0)], others.collect())
}

/// Addresses that nobody listens on. A replica has to be able to come back to its port, so the
/// port cannot be held meanwhile; an address out of 127.0.0.0/8 that no other test and, as good
/// as surely, no other process uses keeps it free.
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(
        127,
        64 | high & 63,
        low,
        NEXT.fetch_add(1, Ordering::Relaxed),
    );
    let held: Vec<_> = (0..count)
        .map(|_| TcpListener::bind((ip, 0)).expect("loopback has free ports"))
        .collect();
    held.iter()
        .map(|listener| listener.local_addr().expect("bound"))
        .collect()
}

/// Opens shared-memory fabrics that find each other.
pub struct ShmMaker {
    pub group: String,
    pub replicas: u8,
    pub place: ShmPlace,
    pub tune: fn(&mut ShmConfig),
    /// Removed with everything in it when the maker is dropped.
    pub directory: Option<tempfile::TempDir>,
}

impl ShmMaker {
    /// By names without files.
    pub fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            group: format!("test-{}-{next}", std::process::id()),
            replicas: 3,
            place: ShmPlace::Abstract,
            tune: |_| {},
            directory: None,
        }
    }

    /// By files in a directory of their own.
    pub fn in_directory() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self {
            place: ShmPlace::Directory(directory.path().into()),
            directory: Some(directory),
            ..Self::new()
        }
    }

    pub fn tuned(tune: fn(&mut ShmConfig)) -> Self {
        Self {
            tune,
            ..Self::new()
        }
    }

    pub fn config(&self, me: ReplicaId, how: How) -> ShmConfig {
        let all = (0..self.replicas).map(ReplicaId);
        let peers = all.filter(|id| *id != me && how.members.contains(*id));
        let mut config = ShmConfig::new(self.group.clone(), me, peers.collect());
        config.place = self.place.clone();
        config.ring_bytes = [LOG_RING_BYTES, how.bulk_ring_bytes];
        config.process = next_process();
        (self.tune)(&mut config);
        config
    }

    /// The first one's name is taken away, as if it were on another host.
    pub fn open_second_with(&mut self, me: ReplicaId, how: How) -> ShmFabric {
        let directory = self.directory.as_ref().expect("files").path();
        let files = std::fs::read_dir(directory).expect("a directory");
        let paths = files.map(|file| file.expect("a file").path());
        let name = format!("-{}.sock", me.0);
        let is_own = |path: &PathBuf| path.to_string_lossy().ends_with(&name);
        let own = paths.into_iter().find(is_own).expect("the first one");
        std::fs::remove_file(own).expect("removed");
        self.open_with(me, how)
    }
}

impl Maker for ShmMaker {
    type Fabric = ShmFabric;

    fn open_with(&mut self, me: ReplicaId, how: How) -> ShmFabric {
        ShmFabric::new(self.config(me, how)).expect("this machine has memory files")
    }

    fn open_second(&mut self, me: ReplicaId) -> ShmFabric {
        self.open_second_with(me, How::default())
    }

    fn address(&self, of: ReplicaId) -> String {
        format!("replica {of} of this host")
    }
}
