//! A guest's devices and CPUs.

use crate::Micros;
use serde::{Deserialize, Serialize};

/// The state of a guest's devices and CPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// As the hypervisor serialised it; opaque.
    pub bytes: Vec<u8>,
    /// When that guest stopped, by the clock of the host that loads it: a guest that goes on from here has
    /// missed the time since. Zero if that is not known; then it misses nothing.
    pub stopped_at: Micros,
}

/// The machine that a hypervisor has made, in words: two replicas compare theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineWords {
    /// Whatever a state must find alike where it is loaded: the hypervisor's version, the machine's type and
    /// devices.
    pub needed: String,
    /// Parts that should be alike, and that a state loads without: firmware, processor.
    pub wanted: String,
}

impl From<Vec<u8>> for DeviceState {
    /// A state whose age is not known.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            stopped_at: Micros::ZERO,
        }
    }
}
