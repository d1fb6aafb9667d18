//! The contract suite on every fabric there is.

mod common;

use common::TcpMaker;
use plover_fabric::contract::Maker;
use plover_fabric::{Faulty, TcpFabric, fabric_contract};
use plover_types::ReplicaId;

/// A faulty fabric whose only fault is the one the test names.
struct FaultyMaker(TcpMaker);

impl Maker for FaultyMaker {
    type Fabric = Faulty<TcpFabric>;
    fn open(&mut self, me: ReplicaId) -> Self::Fabric {
        Faulty::new(self.0.open(me), 7)
    }
}

fabric_contract!(tcp, TcpMaker::new());
fabric_contract!(faulty_without_faults, FaultyMaker(TcpMaker::new()));
