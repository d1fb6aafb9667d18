//! Two linked fabrics of one process, for the tests of each transport.

use crate::driver::{RingFabric, Transport};
use crate::{Fabric, FabricEvent};
use plover_types::ReplicaId;
use std::time::{Duration, Instant};

pub const R0: ReplicaId = ReplicaId(0);
pub const R1: ReplicaId = ReplicaId(1);

/// Replica 0, which has dialled, replica 1, and what each has reported since they are linked.
pub struct Pair<T: Transport> {
    pub lower: RingFabric<T>,
    pub higher: RingFabric<T>,
    pub at_lower: Vec<FabricEvent>,
    pub at_higher: Vec<FabricEvent>,
}

impl<T: Transport> Pair<T> {
    pub fn linked(lower: RingFabric<T>, higher: RingFabric<T>) -> Self {
        let (at_lower, at_higher) = (Vec::new(), Vec::new());
        let mut pair = Self {
            lower,
            higher,
            at_lower,
            at_higher,
        };
        pair.until(Self::is_up);
        pair.at_lower.clear();
        pair.at_higher.clear();
        pair
    }

    pub fn is_up(&self) -> bool {
        self.lower.is_up(R1) && self.higher.is_up(R0)
    }

    /// Drives both until `done`.
    pub fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let late = start.elapsed() > Duration::from_secs(60);
            assert!(!late, "{:?} {:?}", self.at_lower, self.at_higher);
            self.lower.progress(&mut self.at_lower);
            self.higher.progress(&mut self.at_higher);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
