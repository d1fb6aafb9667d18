//! One suite of tests for every fabric.
//!
//! The promises that the layers above rely on are written here once, as tests, and run on each
//! implementation: [`fabric_contract`] takes a [`Maker`] and makes one `#[test]` of each function.
//! The group has three replicas, 0 to 2. Small rings (some hundred KiB) keep it quick: the tests read
//! their sizes off `record_bytes_max`.
//!
//! The tests sleep on `wait_fd` and `timeout` as a real caller does, so a lost wake-up shows as
//! a test that runs into its deadline. The deadline is generous and nothing else is timed.

mod group;
mod links;
mod records;
mod sleep;

pub use links::*;
pub use records::*;
pub use sleep::*;

use plover_fabric::Fabric;
use plover_types::{ReplicaId, ReplicaSet};

/// Opens the fabrics of one group.
pub trait Maker {
    /// What is tested.
    type Fabric: Fabric;
    /// Opens replica `me`; called again after the first one was dropped, for a restart.
    fn open_with(&mut self, me: ReplicaId, how: How) -> Self::Fabric;
    /// Whether `wait_fd` alone wakes a sleeper; otherwise `timeout` has to.
    fn wakes(&self) -> bool {
        true
    }
    /// Where a replica listens.
    fn address(&self, of: ReplicaId) -> String;
    /// Opens another process of replica `me` while the first one runs, as on a cloned host.
    fn open_second(&mut self, me: ReplicaId) -> Self::Fabric {
        panic!("no second process of replica {me} can listen here");
    }
    /// Opens a replica as it should be.
    fn open(&mut self, me: ReplicaId) -> Self::Fabric {
        self.open_with(me, How::default())
    }
}

/// How to open a replica.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The members that it knows, itself aside.
    pub members: ReplicaSet,
    pub bulk_ring_bytes: usize,
}

impl Default for How {
    fn default() -> Self {
        Self {
            members: ReplicaSet::ALL,
            bulk_ring_bytes: 1 << 20,
        }
    }
}

/// Makes a module of tests that run the contract on what `$maker` opens. `$maker` is evaluated
/// anew for each test.
macro_rules! fabric_contract {
    ($module:ident, $maker:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "a maker may need none")]
            use super::*;
            fabric_contract!(@tests $maker;
                order_and_content_are_kept
                a_full_ring_says_full_then_room_and_loses_nothing
                too_large_is_refused_and_the_largest_is_not
                nobody_there_is_down
                a_restarted_peer_goes_down_and_up
                a_peer_that_is_cut_comes_back_after_a_while
                nothing_crosses_sessions
                other_rings_are_refused
                a_replica_that_is_no_member_is_refused
                a_sleeper_is_woken_for_records_and_for_what_is_attached
                who_is_not_waited_for_is_heard_all_the_same
                what_one_call_leaves_is_announced
                a_quiet_fabric_lets_its_caller_sleep
                a_bulk_flood_does_not_stop_the_log
            );
        }
    };
    (@tests $maker:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                crate::contract::$name($maker);
            }
        )*
    };
}
pub(crate) use fabric_contract;
