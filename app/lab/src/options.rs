//! What a user may choose about a lab.

use crate::guests::Guest;
use crate::state::LabName;
pub use plover_node::PolicyName;
use std::path::PathBuf;

/// The choices of `plover lab up`. What is `None` is left to the overlay, then to the default.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The lab's name.
    pub name: LabName,
    /// How the guest is protected.
    pub policy: PolicyName,
    /// QEMU's machine type: `microvm` (default), `q35`, `pc`.
    pub machine: Option<String>,
    /// `auto` (default), `kvm`, `tcg`.
    pub accel: Option<String>,
    /// Virtual processors (default 1).
    pub vcpus: Option<u32>,
    /// Guest RAM in MiB (default 256, or what the guest needs).
    pub mem_mib: Option<u32>,
    /// Which guest of the cache, and so which service is expected.
    pub guest: Guest,
    /// A kernel to boot instead.
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk that goes with it.
    pub initrd: Option<PathBuf>,
    /// Images of the guest's disks; each replica gets copies of its own.
    pub disks: Vec<PathBuf>,
    /// How they are connected: `virtio` (default), `scsi`, `ide`.
    pub disk_bus: Option<String>,
    /// A TOML file whose keys go into every replica's configuration.
    pub overlay: Option<PathBuf>,
    /// The `plover` program that runs the daemons; without it the running program.
    pub program: Option<PathBuf>,
}

impl Options {
    /// How many replicas the policy takes: `none` is one, everything else three.
    pub fn replicas(&self) -> u8 {
        match self.policy {
            PolicyName::None => 1,
            PolicyName::Preset(_) => 3,
        }
    }
}
