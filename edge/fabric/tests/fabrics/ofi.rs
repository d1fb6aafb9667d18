//! The contract suite on libfabric's software providers, and what is special about them.

use crate::contract::{How, Maker, everyone_reaches_everyone, fabric_contract, peers_come_and_go};
use crate::makers::{LOG_RING_BYTES, free_addresses, keys_of, members, next_process};
use crate::processes::{self, Process};
use plover_fabric::ofi::{OfiConfig, OfiError, OfiFabric};
use plover_fabric::{BoxedFabric, Keys, Spin};
use plover_types::ReplicaId;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Opens fabrics that share one set of addresses.
struct OfiMaker {
    addresses: Vec<SocketAddr>,
    provider: &'static str,
    spin: Spin,
    /// Each replica's, if links are encrypted.
    keys: Vec<Arc<Keys>>,
}

impl OfiMaker {
    fn new(provider: &'static str, spin: Spin) -> Self {
        Self {
            addresses: free_addresses(3),
            provider,
            spin,
            keys: Vec::new(),
        }
    }

    /// With TLS, so with sealed records.
    fn sealed(provider: &'static str, spin: Spin) -> Self {
        Self {
            keys: keys_of(3),
            ..Self::new(provider, spin)
        }
    }

    fn config(&self, me: ReplicaId, how: How) -> OfiConfig {
        let (listen, peers) = members(&self.addresses, me, how);
        let mut config = OfiConfig::new("test", me, listen, peers, self.provider);
        config.spin = self.spin;
        config.ring_bytes = [LOG_RING_BYTES, how.bulk_ring_bytes];
        config.keys = self.keys.get(usize::from(me.0)).cloned();
        config.process = next_process();
        config
    }
}

impl Maker for OfiMaker {
    type Fabric = OfiFabric;

    fn open_with(&mut self, me: ReplicaId, how: How) -> OfiFabric {
        OfiFabric::new(self.config(me, how)).expect("a software provider works everywhere")
    }

    fn open_second(&mut self, me: ReplicaId) -> OfiFabric {
        let mut config = self.config(me, How::default());
        config.listen.set_port(0);
        OfiFabric::new(config).expect("a software provider works everywhere")
    }

    fn wakes(&self) -> bool {
        self.provider != "shm"
    }

    fn address(&self, of: ReplicaId) -> String {
        self.addresses[usize::from(of.0)].to_string()
    }
}

// On libfabric 1.x this is `tcp;ofi_rxm`, on 2.x the provider itself.
fabric_contract!(tcp, OfiMaker::new("tcp", Spin::Never));
fabric_contract!(
    tcp_rxm_adaptive,
    OfiMaker::new("tcp;ofi_rxm", Spin::Adaptive)
);
fabric_contract!(shm, OfiMaker::new("shm", Spin::Adaptive));
fabric_contract!(tcp_sealed, OfiMaker::sealed("tcp", Spin::Never));
fabric_contract!(shm_sealed, OfiMaker::sealed("shm", Spin::Adaptive));

crate::second_processes!(a_second_process, OfiMaker::new("tcp", Spin::Never));
crate::second_processes!(
    a_second_process_sealed,
    OfiMaker::sealed("tcp", Spin::Never)
);

/// Not nine, as over the other fabrics: opening 144 ports takes seconds.
#[test]
fn five_reach_each_other() {
    let mut maker = OfiMaker::new("tcp", Spin::Never);
    maker.addresses = free_addresses(5);
    everyone_reaches_everyone(5, maker);
}

#[test]
fn peers_of_ofi_come_and_go() {
    peers_come_and_go(OfiMaker::new("tcp", Spin::Never));
}

#[test]
fn a_provider_that_cannot_wake_is_refused_with_never() {
    let maker = OfiMaker::new("shm", Spin::Never);
    let config = maker.config(ReplicaId(0), How::default());
    let error = OfiFabric::new(config).expect_err("cannot sleep");
    assert!(matches!(error, OfiError::CannotSleep { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("'shm' cannot wake a sleeping replica"),
        "{text}"
    );
    assert!(text.contains("spin = \"adaptive\""), "{text}");
}

#[test]
fn a_provider_that_is_not_there_is_named() {
    let maker = OfiMaker::new("no_such_provider", Spin::Never);
    let config = maker.config(ReplicaId(0), How::default());
    let error = OfiFabric::new(config).expect_err("no such provider");
    assert!(matches!(error, OfiError::Provider { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("'no_such_provider'"), "{text}");
    assert!(text.contains("fi_getinfo"), "{text}");
}

const PEER: Process = Process {
    test: "ofi::other_process",
    open,
};

/// One of two replicas; the text has both addresses.
fn open(which: &str, me: ReplicaId) -> BoxedFabric {
    let words: Vec<&str> = which.split(' ').collect();
    let at = |id: u8| words[usize::from(id)].parse().expect("an address");
    let other = (ReplicaId(1 - me.0), at(1 - me.0));
    // A group for each pair of addresses, since tests run beside each other.
    let mut config = OfiConfig::new(words[0], me, at(me.0), vec![other], "tcp");
    config.ring_bytes = [LOG_RING_BYTES, 256 << 10];
    Box::new(OfiFabric::new(config).expect("a software provider works everywhere"))
}

fn pair_over_tcp() -> String {
    let [a, b] = free_addresses(2)[..] else {
        panic!("two addresses")
    };
    format!("{a} {b}")
}

#[test]
fn other_process() {
    processes::other_process(PEER);
}

#[test]
fn a_killed_peer_goes_down_and_comes_up_again() {
    processes::a_killed_peer_goes_down_and_comes_up_again(PEER, &pair_over_tcp());
}

/// Not over libfabric's `shm`, whose locks lie in the shared memory: a write to a process that was
/// stopped while it held one waits for it.
#[test]
fn a_stopped_peer_pushes_back_and_keeps_its_link() {
    // Longer than a peer whose host is silent would keep its link.
    let patience = Duration::from_secs(1);
    let pair = pair_over_tcp();
    processes::a_stopped_peer_pushes_back_and_keeps_its_link(PEER, &pair, patience);
}
