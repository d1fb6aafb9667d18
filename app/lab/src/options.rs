//! What a user may choose about a lab.

use crate::state::LabName;
use std::path::PathBuf;

/// The choices of `plover lab up`. What is `None` is left to the overlay, then to the default.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The lab's name.
    pub name: LabName,
    /// How the guest is protected.
    pub policy: Policy,
    /// QEMU's machine type: `microvm` (default), `q35`, `pc`.
    pub machine: Option<String>,
    /// `auto` (default), `kvm`, `tcg`.
    pub accel: Option<String>,
    /// Virtual processors (default 1).
    pub vcpus: Option<u32>,
    /// Guest RAM in MiB (default 256).
    pub mem_mib: Option<u32>,
    /// Which guest image of the cache.
    pub guest: Guest,
    /// A kernel to boot instead.
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk that goes with it.
    pub initrd: Option<PathBuf>,
    /// A TOML file whose keys go into every replica's configuration.
    pub overlay: Option<PathBuf>,
    /// The `plover` program that runs the daemons; without it the running program.
    pub program: Option<PathBuf>,
}

/// How the guest is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Three replicas, virtualized state machine replication.
    #[default]
    Vsmr,
    /// One replica and no protection: the baseline to compare with.
    None,
}

impl Policy {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vsmr => "vsmr",
            Self::None => "none",
        }
    }

    /// How many replicas it takes.
    pub fn replicas(self) -> u8 {
        match self {
            Self::Vsmr => 3,
            Self::None => 1,
        }
    }
}

/// A guest that `guests/build` can make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guest {
    /// Redis on port 6379, without persistence.
    #[default]
    Redis,
}

impl Guest {
    /// Its name in the cache.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
        }
    }

    /// The port on which its service answers.
    pub fn port(self) -> u16 {
        match self {
            Self::Redis => 6379,
        }
    }
}
