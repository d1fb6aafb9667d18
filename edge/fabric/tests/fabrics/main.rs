//! The contract suite on every fabric there is, and what each fabric has of its own.

mod allocation;
mod contract;
mod makers;
#[cfg(feature = "ofi")]
mod ofi;
mod processes;
mod ring;
mod shm;
mod tcp;
mod tls;

use contract::{How, Maker, everyone_reaches_everyone, fabric_contract, peers_come_and_go};
use makers::{ShmMaker, TcpMaker};
use plover_fabric::{BoxedFabric, Mixed, Spin};
use plover_types::{ReplicaId, ReplicaSet};

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

impl MixedMaker {
    fn in_directory() -> Self {
        Self {
            tcp: TcpMaker::new(),
            shm: ShmMaker::in_directory(),
        }
    }

    fn put_together(&mut self, me: ReplicaId, how: How, is_second: bool) -> Mixed {
        let near = |id: ReplicaId| id.0 < 2 && me.0 < 2;
        let others = (0..3).map(ReplicaId).filter(|id| *id != me);
        let others = others.filter(|id| how.members.contains(*id));
        let (near, far): (Vec<_>, Vec<_>) = others.partition(|id| near(*id));
        let of = |ids: &[ReplicaId]| How {
            members: ReplicaSet::of(ids.iter().copied()),
            ..how
        };
        let tcp: BoxedFabric = match is_second {
            true => Box::new(self.tcp.open_second_with(me, of(&far))),
            false => Box::new(self.tcp.open_with(me, of(&far))),
        };
        let mut parts = vec![(tcp, far)];
        if me.0 < 2 {
            let shm = match is_second {
                true => self.shm.open_second_with(me, of(&near)),
                false => self.shm.open_with(me, of(&near)),
            };
            parts.push((Box::new(shm), near));
        }
        Mixed::new(parts).expect("no peer twice")
    }
}

impl Maker for MixedMaker {
    type Fabric = Mixed;

    fn open_with(&mut self, me: ReplicaId, how: How) -> Mixed {
        self.put_together(me, how, false)
    }

    fn open_second(&mut self, me: ReplicaId) -> Mixed {
        self.put_together(me, How::default(), true)
    }

    fn address(&self, of: ReplicaId) -> String {
        self.tcp.address(of)
    }
}

fabric_contract!(over_tcp, TcpMaker::new());
fabric_contract!(over_tls, TcpMaker::encrypted());
fabric_contract!(over_shm, ShmMaker::new());
fabric_contract!(
    over_shm_spinning,
    ShmMaker::tuned(|config| config.spin = Spin::Adaptive)
);
fabric_contract!(over_mixed, MixedMaker::new());

#[test]
fn shm_in_a_directory() {
    contract::a_restarted_peer_goes_down_and_up(ShmMaker::in_directory());
}

#[test]
fn peers_of_tcp_come_and_go() {
    peers_come_and_go(TcpMaker::new());
}

#[test]
fn peers_of_shm_come_and_go() {
    peers_come_and_go(ShmMaker::new());
}

/// A second process of a replica can be opened on these.
macro_rules! second_processes {
    ($module:ident, $maker:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "a maker may need none")]
            use super::*;

            #[test]
            fn is_refused_while_the_first_lives() {
                crate::contract::a_second_process_is_refused_while_the_first_lives($maker);
            }

            #[test]
            fn that_was_replaced_does_not_come_back() {
                crate::contract::a_process_that_was_replaced_does_not_come_back($maker);
            }
        }
    };
}
#[cfg(feature = "ofi")]
pub(crate) use second_processes;

second_processes!(a_second_process_over_tcp, TcpMaker::new());
second_processes!(a_second_process_over_tls, TcpMaker::encrypted());
second_processes!(a_second_process_over_shm, ShmMaker::in_directory());
second_processes!(a_second_process_over_mixed, MixedMaker::in_directory());

#[test]
fn nine_reach_each_other_over_tcp() {
    everyone_reaches_everyone(9, TcpMaker::of(9));
}

#[test]
fn nine_reach_each_other_over_shm() {
    let mut maker = ShmMaker::new();
    maker.replicas = 9;
    everyone_reaches_everyone(9, maker);
}
