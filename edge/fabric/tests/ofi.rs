//! The contract suite on libfabric's software providers, and what is special about them.
#![cfg(feature = "ofi")]

mod common;

use common::free_addresses;
use plover_fabric::contract::{Maker, everyone_reaches_everyone};
use plover_fabric::ofi::{OfiConfig, OfiError, OfiFabric};
use plover_fabric::{Fabric, Lane, PeerError, Spin, WriteError, fabric_contract};
use plover_types::ReplicaId;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

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
fn nine_reach_each_other() {
    let mut maker = OfiMaker::new("tcp", Spin::Never);
    maker.addresses = free_addresses(9);
    let fabrics = (0..9).map(|id| maker.open(ReplicaId(id)));
    everyone_reaches_everyone(fabrics.collect());
}

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

/// Drives the fabrics until `done`.
fn drive(fabrics: &mut [&mut OfiFabric], done: impl Fn(&[&mut OfiFabric]) -> bool) {
    let start = Instant::now();
    let mut events = Vec::new();
    while !done(fabrics) {
        assert!(start.elapsed() < Duration::from_secs(60), "{events:?}");
        for fabric in fabrics.iter_mut() {
            fabric.progress(&mut events);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Both say so for as long as it goes on; of a stranger with the name of a peer that is there only
/// the stranger does.
#[test]
fn a_refusal_is_known_to_both_sides() {
    let maker = OfiMaker::new("tcp", Spin::Never);
    let (r0, r1) = (ReplicaId(0), ReplicaId(1));
    let open = |config| OfiFabric::new(config).expect("a software provider works everywhere");
    let another = || {
        let mut config = maker.config(r0);
        config.group = "another".into();
        config.listen.set_port(0);
        open(config)
    };
    let says = |why: Option<String>| why.is_some_and(|why| why.contains("compare `group`"));
    let (mut a, mut b) = (another(), open(maker.config(r1)));
    drive(&mut [&mut a, &mut b], |fabrics| {
        says(fabrics[0].refusal(r1)) && says(fabrics[1].refusal(r0))
    });
    drop(a);
    let mut a = open(maker.config(r0));
    drive(&mut [&mut a, &mut b], |fabrics| {
        fabrics[0].is_up(r1) && fabrics[1].is_up(r0)
    });
    assert_eq!((a.refusal(r1), b.refusal(r0)), (None, None));
    let (mut stranger, before) = (another(), b.stats().rejected);
    drive(&mut [&mut a, &mut b, &mut stranger], |fabrics| {
        says(fabrics[2].refusal(r1))
    });
    assert!(b.stats().rejected > before, "it knocked");
    assert!(b.is_up(r0));
    assert_eq!(b.refusal(r0), None);
}

/// A peer that is let in later comes up, and one that is let go is gone.
#[test]
fn peers_come_and_go() {
    let maker = OfiMaker::new("tcp", Spin::Never);
    let (r0, r1) = (ReplicaId(0), ReplicaId(1));
    let mut config = maker.config(r0);
    config.peers.clear();
    let mut alone = OfiFabric::new(config).expect("a software provider works everywhere");
    let mut other = OfiFabric::new(maker.config(r1)).expect("likewise");
    assert_eq!(
        alone.set_peer(r1, Some("nowhere")),
        Err(PeerError::Address("nowhere".to_owned()))
    );
    let address = maker.addresses[1].to_string();
    alone.set_peer(r1, Some(&address)).expect("an address");
    let start = Instant::now();
    let mut events = Vec::new();
    while !(alone.is_up(r1) && other.is_up(r0)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{events:?}");
        alone.progress(&mut events);
        other.progress(&mut events);
        std::thread::sleep(Duration::from_micros(200));
    }
    alone.set_peer(r1, None).expect("it goes");
    assert_eq!(alone.write(r1, Lane::Log, b"x"), Err(WriteError::Down(r1)));
    while other.is_up(r0) {
        assert!(start.elapsed() < Duration::from_secs(60), "{events:?}");
        other.progress(&mut events);
        std::thread::sleep(Duration::from_micros(200));
    }
}
