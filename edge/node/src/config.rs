//! The configuration file of a replica.

mod check;

use crate::fabric::FabricName;
use crate::host::HostConfig;
use crate::policy::PolicyConfig;
use plover_disk::DiskSpec;
use plover_fabric::Spin;
use plover_policy::{DEFAULT, EarlyConfig, MatchConfig, Policy, ReleaseWhen, SlotConfig};
use plover_replica::{Canary, Warm};
use plover_types::{Mac, Micros, ReplicaId, ReplicaSet};
use plover_vm::{Accel, Boot, DiskBus, DiskDevice, Firmware, Machine, QemuConfig};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Why a configuration was not taken. Nothing has been started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, has an unknown key, or a value of the wrong kind.
    #[error("the configuration {path} is not valid: {why}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        why: String,
    },
    /// The keys do not fit together.
    #[error("the configuration does not fit together: {0}")]
    Mismatch(String),
}

/// A whole configuration. Every key but those without a default may be left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// `[group]`: who replicates with whom.
    pub group: GroupConfig,
    /// `[guest]`: the virtual machine; the same on all replicas.
    pub guest: GuestConfig,
    /// `[[disk]]`: the guest's disks, in the order in which it boots from them.
    #[serde(default)]
    pub disk: Vec<DiskConfig>,
    /// `[net]`: the guest's way to its clients.
    pub net: NetConfig,
    /// `[policy]`: when state is synced and outputs are released.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// `[paths]`: where files go.
    pub paths: PathConfig,
    /// `[host]`: the CPUs to run on, where that is not the kernel's to decide.
    #[serde(default)]
    pub host: Option<HostConfig>,
    /// `[debug]`: for tests.
    #[serde(default)]
    pub debug: DebugConfig,
}

/// `[group]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// The group's name; replicas of other groups are refused.
    pub name: String,
    /// The id of this replica.
    pub me: u8,
    /// The id of the replica that boots the guest when the group starts for the first time
    /// (default 0).
    #[serde(default)]
    pub first_leader: u8,
    /// The leader's heartbeat period in ms (default 25).
    #[serde(default = "default_heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// A replica that is silent for this long, in ms, is suspected (default 150). An election
    /// begins after one to two times this.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// When a log entry counts as acknowledged: `memory` (default) or `disk`.
    #[serde(default)]
    pub durability: apus::Durability,
    /// What of the guest a witness keeps ready, so that it becomes secondary with little left to
    /// copy: `off`, `disk` (its own copy of the disks) or `full` (default: memory as well). `full`
    /// costs the witness as much memory as the guest has. Each replica chooses for itself; one with
    /// `off` keeps nobody else warm either.
    #[serde(default)]
    pub warm_witness: Warm,
    /// MiB a second that the secondary sends to the witness for that, at most (default 64).
    #[serde(default = "default_warm_mib_per_s")]
    pub warm_mib_per_s: u32,
    /// Log entries held for replicas that lag, MiB (default 8).
    #[serde(default = "default_log_mib")]
    pub log_mib: usize,
    /// The replicas, this one included: `[[group.replica]]` with `id`, `address` and, if it is
    /// not the group's, `fabric`. One alone runs the guest unreplicated. Two have no witness: each
    /// goes on without the other, so a cut between them makes two guests that both answer clients
    /// (docs/decisions/0018); policies that order all inputs refuse it.
    pub replica: Vec<PeerConfig>,
    /// The fabric of each replica that names none: `tcp` (default), `shm` or `ofi`.
    #[serde(default)]
    pub fabric: FabricName,
    /// Whether a replica looks for messages for a while before it sleeps, on the fabrics that
    /// can (`shm`, `ofi`): `never` (default), `adaptive` (30 µs at most, while that pays) or
    /// `always`, for a host with a core to spare for each replica.
    #[serde(default, deserialize_with = "spin")]
    pub spin: Spin,
    /// The directory in which replicas on one host find each other, the same for all of them,
    /// when `fabric = "shm"`; created if missing. A replica that is killed leaves a socket's file
    /// there, which its next life replaces. Without it they meet by the group's name within one
    /// network namespace, and there are no files.
    #[serde(default)]
    pub shm_dir: Option<PathBuf>,
    /// libfabric's provider, the same on all replicas, when `fabric = "ofi"`: `verbs;ofi_rxm`
    /// or `efa` with RDMA hardware.
    #[serde(default)]
    pub ofi_provider: Option<String>,
}

/// `[[group.replica]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// Its id, 0 to 8.
    pub id: u8,
    /// Where it listens for the others, `address:port`; over `ofi` also one port above.
    pub address: SocketAddr,
    /// How it is reached, `tcp`, `shm` or `ofi` (default: `group.fabric`). Between two replicas
    /// it is TCP unless both name the same other one.
    #[serde(default)]
    pub fabric: Option<FabricName>,
}

/// `[guest]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// QEMU's machine type: `microvm` (default), `q35` or `pc`.
    #[serde(default)]
    pub machine: Machine,
    /// `auto` (default), `kvm` or `tcg`.
    #[serde(default)]
    pub accel: Accel,
    /// Virtual processors (default 1).
    #[serde(default = "default_vcpus")]
    pub vcpus: u32,
    /// RAM in MiB (default 256).
    #[serde(default = "default_mem_mib")]
    pub mem_mib: u32,
    /// What runs before the kernel: `bios` (default) or `uefi`, with the package `ovmf` in the same
    /// version on all hosts (`q35`, `pc`). UEFI's variables are part of the guest's memory: they
    /// outlive a host, not a boot.
    #[serde(default)]
    pub firmware: Firmware,
    /// The kernel image. Without it the machine's firmware boots from the first disk (`q35`, `pc`).
    #[serde(default)]
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk.
    #[serde(default)]
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    #[serde(default)]
    pub cmdline: String,
    /// The guest's Ethernet address.
    pub mac: Mac,
    /// The nice value of a guest that runs as secondary. Where outputs are released on match
    /// clients wait for both guests, and the default is 0. Else it is 10: on a host that also runs
    /// leaders, theirs come first, since a secondary that falls behind costs some pages more at the
    /// next sync and a leader that does costs its clients time. Needs root.
    #[serde(default)]
    pub secondary_nice: Option<i32>,
    /// The QEMU binary (default: `qemu-system-x86_64` on the path).
    #[serde(default)]
    pub qemu: Option<PathBuf>,
}

/// `[[disk]]`. Replicas may differ in where the image is, and in nothing else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// This replica's own copy: a raw image, or a block device. The first leader's is what the
    /// guest starts with; the others are overwritten by what is in it. A name that ends in
    /// `.qcow2`, `.vmdk` or `.vdi` is an image that is imported when the replica first starts, and
    /// never written.
    pub path: PathBuf,
    /// Where this replica's own copy of an imported image goes (default: `disk-N.raw`, N from 0, in
    /// `paths.state_dir`).
    #[serde(default)]
    pub raw: Option<PathBuf>,
    /// `virtio` (default), `scsi` or `ide`.
    #[serde(default)]
    pub bus: DiskBus,
    /// The guest cannot write it (default false). It is not copied between replicas then: each
    /// needs the same one.
    #[serde(default)]
    pub readonly: bool,
    /// Its size in MiB. An image of another size is refused; one that does not exist is made, empty,
    /// to be filled by the leader.
    #[serde(default)]
    pub size_mib: Option<u64>,
}

/// `[net]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// The TAP device (IFF_TAP, no packet information) that leads to the clients. It must
    /// exist.
    pub tap: String,
}

/// `[paths]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathConfig {
    /// What outlives the process: promised view, in-sync set, and with `durability = "disk"`
    /// the log. Created if missing.
    pub state_dir: PathBuf,
    /// What does not: control socket, trace, console log. On tmpfs. Created if missing.
    pub run_dir: PathBuf,
}

/// `[debug]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DebugConfig {
    /// Hash the whole guest memory at every sync, on both sides, into the trace.
    pub checksum_each_sync: bool,
    /// Write every sync's report into the trace.
    pub trace_syncs: bool,
    /// A slow disk: how much longer each block takes that a sync or a copy reads or writes.
    pub disk_delay_us: u64,
}

fn spin<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Spin, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(serde::de::Error::custom)
}

fn default_heartbeat_ms() -> u64 {
    25
}

fn default_timeout_ms() -> u64 {
    150
}

fn default_log_mib() -> usize {
    8
}

fn default_warm_mib_per_s() -> u32 {
    64
}

fn default_vcpus() -> u32 {
    1
}

fn default_mem_mib() -> u32 {
    256
}

impl DiskConfig {
    fn device(&self) -> DiskDevice {
        DiskDevice {
            bus: self.bus,
            read_only: self.readonly,
        }
    }

    pub(crate) fn spec(&self) -> DiskSpec {
        DiskSpec {
            path: self.path.clone(),
            read_only: self.readonly,
            bytes: self.size_mib.map(|mib| mib << 20),
            delay: std::time::Duration::ZERO,
        }
    }
}

impl ReplicaConfig {
    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        let config: Self = toml::from_str(&text).map_err(|e| ConfigError::Parse {
            path: path.into(),
            why: e.to_string(),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Whether two replicas may lead at once after a cut: there is no third to decide.
    pub(crate) fn can_split(&self) -> bool {
        self.members().len() == 2
    }

    pub(crate) fn members(&self) -> ReplicaSet {
        ReplicaSet::of(self.group.replica.iter().map(|r| ReplicaId(r.id)))
    }

    /// The guest as the hypervisor driver wants it.
    pub fn qemu(&self) -> QemuConfig {
        let guest = &self.guest;
        let boot = match &guest.kernel {
            Some(kernel) => Boot::Kernel {
                kernel: kernel.clone(),
                initrd: guest.initrd.clone(),
                cmdline: guest.cmdline.clone(),
            },
            None => Boot::Firmware,
        };
        let mut config = QemuConfig::new(boot, guest.mac);
        config.qemu.clone_from(&guest.qemu);
        config.machine = guest.machine;
        config.firmware = guest.firmware;
        config.accel = guest.accel;
        config.vcpus = guest.vcpus;
        config.mem_mib = guest.mem_mib;
        config.name = format!("{}-{}", self.group.name, self.group.me);
        config.disks = self.disk.iter().map(DiskConfig::device).collect();
        config
    }

    /// The nice value of a guest that runs as secondary.
    pub(crate) fn secondary_nice(&self) -> i32 {
        let on_match = |policy: Policy| policy.release == ReleaseWhen::Matched;
        let usual = if self.policy.axes().is_ok_and(on_match) {
            0
        } else {
            10
        };
        self.guest.secondary_nice.unwrap_or(usual)
    }

    pub(crate) fn brain(
        &self,
        message_bytes_max: usize,
        hash_key: [u8; 32],
        seed: u64,
        disk_blocks: u32,
    ) -> plover_replica::Config {
        let policy = &self.policy;
        // Checked when the configuration was.
        let axes = policy.axes().unwrap_or(DEFAULT.policy);
        let (defaults, matching) = (SlotConfig::default(), MatchConfig::of(&axes));
        let early = EarlyConfig::default();
        let ms = |value: Option<u64>, default: Micros| value.map_or(default, Micros::from_ms);
        let qemu = self.qemu();
        plover_replica::Config {
            me: ReplicaId(self.group.me),
            members: self.members(),
            first_leader: ReplicaId(self.group.first_leader),
            heartbeat: Micros::from_ms(self.group.heartbeat_ms),
            timeout: Micros::from_ms(self.group.timeout_ms),
            durability: self.group.durability,
            log_bytes_max: self.group.log_mib << 20,
            message_bytes_max,
            policy: axes,
            slot: SlotConfig {
                kind: policy.slot,
                idle_threshold: policy
                    .idle_threshold_us
                    .map_or(defaults.idle_threshold, Micros),
                slot_min: ms(policy.slot_min_ms, defaults.slot_min),
                slot_max: ms(policy.slot_max_ms, defaults.slot_max),
                quiet_max: ms(policy.quiet_max_ms, defaults.quiet_max),
                wait_max: ms(policy.wait_max_ms, defaults.wait_max),
            },
            early: EarlyConfig {
                on: policy.early_work,
                pages_min: policy.early_pages.unwrap_or(early.pages_min),
                ..early
            },
            matching: MatchConfig {
                unmatched_max: ms(policy.unmatched_max_ms, matching.unmatched_max),
                slot_max: ms(policy.matched_max_ms, matching.slot_max),
                always: matching.always,
                paced: policy.paced.unwrap_or(matching.paced),
            },
            unprotected_output: policy.unprotected_output,
            pages: qemu.pages() + disk_blocks,
            disk_blocks,
            needs_reset: qemu.machine.needs_reset(),
            warm: self.group.warm_witness,
            warm_bytes_per_s: u64::from(self.group.warm_mib_per_s) << 20,
            blocks: policy.blocks.unwrap_or(true),
            guard_bytes_max: policy.guard_mib.unwrap_or(8) << 20,
            input_frames_max: policy.input_frames.unwrap_or(1024),
            hash_key,
            seed,
            canary: Canary::None,
        }
    }
}
