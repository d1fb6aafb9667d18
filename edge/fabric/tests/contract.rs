//! The contract suite on every fabric there is.

mod common;

use common::{ShmMaker, TcpMaker};
use plover_fabric::contract::Maker;
use plover_fabric::{Faulty, Spin, fabric_contract};
use plover_types::ReplicaId;

/// A faulty fabric whose only fault is the one the test names.
struct FaultyMaker<M>(M);

impl<M: Maker> Maker for FaultyMaker<M> {
    type Fabric = Faulty<M::Fabric>;
    fn open(&mut self, me: ReplicaId) -> Self::Fabric {
        Faulty::new(self.0.open(me), 7)
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
