//! The contract suite on libfabric's software providers, and what is special about them.
#![cfg(feature = "ofi")]

mod common;

use common::free_addresses;
use plover_fabric::Spin;
use plover_fabric::contract::Maker;
use plover_fabric::fabric_contract;
use plover_fabric::ofi::{OfiConfig, OfiError, OfiFabric};
use plover_types::ReplicaId;
use std::net::SocketAddr;

/// Opens fabrics that share one set of addresses.
struct OfiMaker {
    addresses: Vec<SocketAddr>,
    provider: &'static str,
    spin: Spin,
}

impl OfiMaker {
    fn new(provider: &'static str, spin: Spin) -> Self {
        Self {
            addresses: free_addresses(3),
            provider,
            spin,
        }
    }

    fn config(&self, me: ReplicaId) -> OfiConfig {
        let all = self.addresses.iter().enumerate();
        let peers = all
            .map(|(id, address)| (ReplicaId(id as u8), *address))
            .filter(|(id, _)| *id != me)
            .collect();
        let listen = self.addresses[usize::from(me.0)];
        let mut config = OfiConfig::new("test", me, listen, peers, self.provider);
        config.spin = self.spin;
        config.log_ring_bytes = 64 << 10;
        config.bulk_ring_bytes = 1 << 20;
        config
    }
}

impl Maker for OfiMaker {
    type Fabric = OfiFabric;
    fn open(&mut self, me: ReplicaId) -> OfiFabric {
        OfiFabric::new(self.config(me)).expect("a software provider works everywhere")
    }
}

// On libfabric 1.x this is `tcp;ofi_rxm`, on 2.x the provider itself.
fabric_contract!(tcp, OfiMaker::new("tcp", Spin::Never));
fabric_contract!(
    tcp_rxm_adaptive,
    OfiMaker::new("tcp;ofi_rxm", Spin::Adaptive)
);
fabric_contract!(shm, OfiMaker::new("shm", Spin::Adaptive));

#[test]
fn a_provider_that_cannot_wake_is_refused_with_never() {
    let maker = OfiMaker::new("shm", Spin::Never);
    let error = OfiFabric::new(maker.config(ReplicaId(0))).expect_err("cannot sleep");
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
    let error = OfiFabric::new(maker.config(ReplicaId(0))).expect_err("no such provider");
    assert!(matches!(error, OfiError::Provider { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("'no_such_provider'"), "{text}");
    assert!(text.contains("fi_getinfo"), "{text}");
}
