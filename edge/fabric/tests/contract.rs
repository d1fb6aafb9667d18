//! The contract suite on every fabric there is.

mod common;

use common::{ShmMaker, TcpMaker};
use plover_fabric::contract::{Maker, everyone_reaches_everyone};
use plover_fabric::{BoxedFabric, Faulty, Mixed, ShmFabric, Spin, TcpFabric, fabric_contract};
use plover_types::ReplicaId;

/// A faulty fabric whose only fault is the one the test names.
struct FaultyMaker<M>(M);

impl<M: Maker> Maker for FaultyMaker<M> {
    type Fabric = Faulty<M::Fabric>;
    fn open(&mut self, me: ReplicaId) -> Self::Fabric {
        Faulty::new(self.0.open(me), 7)
    }
}

/// Replicas 0 and 1 share a host, replica 2 is elsewhere.
struct MixedMaker {
    tcp: TcpMaker,
    shm: ShmMaker,
}

impl MixedMaker {
    fn new() -> Self {
        Self {
            tcp: TcpMaker::new(),
            shm: ShmMaker::new(),
        }
    }
}

impl Maker for MixedMaker {
    type Fabric = Mixed;
    fn open(&mut self, me: ReplicaId) -> Mixed {
        let all = [0, 1, 2].map(ReplicaId);
        let is_near = |id: ReplicaId| id.0 < 2 && me.0 < 2;
        let others = all.into_iter().filter(|id| *id != me);
        let (near, far): (Vec<_>, Vec<_>) = others.partition(|id| is_near(*id));
        let mut tcp = self.tcp.config(me);
        tcp.peers.retain(|(id, _)| far.contains(id));
        let tcp: BoxedFabric = Box::new(TcpFabric::new(tcp).expect("loopback works"));
        let mut parts = vec![(tcp, far)];
        if !near.is_empty() {
            let mut shm = self.shm.config(me);
            shm.peers.clone_from(&near);
            let shm = ShmFabric::new(shm).expect("this machine has memory files");
            parts.push((Box::new(shm), near));
        }
        Mixed::new(parts).expect("no peer twice")
    }
}

fabric_contract!(tcp, TcpMaker::new());
fabric_contract!(shm, ShmMaker::new());
fabric_contract!(shm_in_a_directory, ShmMaker::in_directory());
fabric_contract!(
    shm_spinning,
    ShmMaker::tuned(|config| config.spin = Spin::Adaptive)
);
fabric_contract!(faulty_without_faults, FaultyMaker(TcpMaker::new()));
fabric_contract!(faulty_shm_without_faults, FaultyMaker(ShmMaker::new()));
fabric_contract!(mixed, MixedMaker::new());

fn nine<M: Maker>(mut maker: M) -> Vec<M::Fabric> {
    (0..9).map(|id| maker.open(ReplicaId(id))).collect()
}

#[test]
fn nine_reach_each_other_over_tcp() {
    everyone_reaches_everyone(nine(TcpMaker::of(9)));
}

#[test]
fn nine_reach_each_other_over_shm() {
    let mut maker = ShmMaker::new();
    maker.replicas = 9;
    everyone_reaches_everyone(nine(maker));
}
