//! The configuration file of a replica.

mod check;
mod effect;
mod file;
mod meaning;
mod reload;

use crate::fabric::FabricName;
use crate::host::HostConfig;
use crate::policy::PolicyConfig;
pub use effect::{Effect, KEYS};
pub use file::ConfigFile;
pub use meaning::Attached;
use plover_fabric::Spin;
use plover_replica::Warm;
use plover_types::wire::WIRE_VERSION;
use plover_types::{Mac, ReplicaId, ReplicaSet};
use plover_vm::{
    Accel, AtEnd, ClockBase, DiskBus, Firmware, Machine, NicModel, SystemWords, Topology, Watchdog,
};
pub use reload::{Change, Reload};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Why a configuration was not taken. Nothing has been started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is not TOML, has an unknown key, or a value of the wrong kind.
    #[error("the configuration {path} is not valid: {why}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        why: String,
    },
    /// The keys do not fit together.
    #[error("the configuration {path} does not fit together: {why}")]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Which keys, and what to do.
        why: String,
    },
    /// A replica that runs does not take it. The replica goes on with what it has.
    #[error("the configuration {path} is not taken, and nothing has changed: {why}")]
    NotTaken {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
}

/// A whole configuration. Doc comments of its keys are the operator's reference: docs/keys.md is made from
/// them, and from the types and defaults. Where a default is decided elsewhere, a comment says `(default …)`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// `[group]`: the replicas that protect the guest together.
    pub group: GroupConfig,
    /// `[guest]`: the virtual machine; the same on all replicas.
    pub guest: GuestConfig,
    /// `[[disk]]`: the guest's disks, in the order in which its firmware tries them.
    #[serde(default)]
    pub disk: Vec<DiskConfig>,
    /// `[net]`: the guest's connection to its clients.
    pub net: NetConfig,
    /// `[[nic]]`: the guest's network cards beside the first.
    #[serde(default)]
    pub nic: Vec<NicConfig>,
    /// `[policy]`: how the guest is protected; the same on all replicas.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// `[paths]`: the directories for this replica's files.
    pub paths: PathConfig,
    /// `[host]`: the CPUs to run on, on hosts where the kernel should not decide that.
    #[serde(default)]
    pub host: Option<HostConfig>,
    /// `[debug]`: for tests and for finding faults.
    #[serde(default)]
    pub debug: DebugConfig,
}

/// `[group]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// The group's name. Replicas of other groups are refused.
    pub name: String,
    /// The id of this replica.
    pub me: u8,
    /// The id of the replica that boots the guest when the group starts for the first time, and after
    /// `plover bootstrap` (default: the lowest).
    #[serde(default)]
    pub first_leader: Option<u8>,
    /// The leader sends a heartbeat this often, in ms.
    #[serde(default = "default_heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// A replica that is silent for this long, in ms, is suspected. If it is missing: 150, or 500 in a group of two, where
    /// a wrong suspicion costs more. The secondary stands for election
    /// a sixteenth of this later. At least three heartbeats. A busy host may be silent for some 100 ms: a short
    /// timeout fails over faster, and sometimes without need.
    /// A leader is suspected sooner: when it has been silent for twice as long as it ever was in the
    /// last half minute, but not before `timeout_min_ms`.
    pub timeout_ms: Option<u64>,
    /// The shortest silence, in ms, for which a leader is suspected; in a group of two that is always `timeout_ms`. If it is missing: half of `timeout_ms`, or
    /// three heartbeats if they are longer. If it equals `timeout_ms`, nothing is learned, and a leader is suspected
    /// after `timeout_ms`.
    pub timeout_min_ms: Option<u64>,
    /// A QEMU that leaves an order unanswered for this long, in ms, is taken to stand still. Its leader hands
    /// the guest over to the secondary, if there is one; a secondary's leader goes on without it. A busy host
    /// may keep QEMU from answering for some 100 ms.
    #[serde(default = "default_hypervisor_timeout_ms")]
    pub hypervisor_timeout_ms: u64,
    /// When a replica acknowledges a log entry.
    #[serde(default)]
    pub durability: apus::Durability,
    /// The part of the guest that a witness keeps, so that it becomes secondary with little left to copy.
    /// `"full"` costs it as much memory as the guest has touched. Each replica chooses for itself; one with
    /// `"off"` does not keep others warm either.
    #[serde(default)]
    pub warm_witness: Warm,
    /// The secondary sends at most this many MiB a second to keep the witness warm.
    #[serde(default = "default_warm_mib_per_s")]
    pub warm_mib_per_s: u32,
    /// The newest wire version that this replica speaks (default: the newest of its release). While one member has an
    /// older one here, the group keeps that, and each host can still go back to the release before. Without it the
    /// group's version is raised as soon as the last member runs the new release.
    #[serde(default)]
    pub version_max: Option<u8>,
    /// MiB of log entries that are kept for replicas that lag. A slot ends when half of it is full: at 10 Gbit/s of inputs 32
    /// MiB last for 13 ms.
    #[serde(default = "default_log_mib")]
    pub log_mib: usize,
    /// The file with this replica's private key, which `plover key new` makes. With it and `trust_file` links between
    /// hosts are under TLS. No user but the one that runs the replica may read it.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The file with the public keys of all replicas, the same on all hosts. `plover key trust` adds to it. A replica that
    /// runs reads a change at once.
    #[serde(default)]
    pub trust_file: Option<PathBuf>,
    /// Links between hosts are neither encrypted nor authenticated, on a network that nobody else reaches. A group
    /// without keys needs this line, unless all its addresses are loopback addresses.
    #[serde(default)]
    pub plaintext: bool,
    /// Two replicas only: neither goes on without the other one before that one's host or process is known to be off. Then a
    /// cut between them makes no two guests, and all policies are allowed. It takes a cluster that fences, or an operator
    /// (`plover confirm-off`).
    #[serde(default)]
    pub fencing: bool,
    /// `[[group.replica]]`: all replicas, this one included. Once hosts were replaced (`plover member`) the group's log
    /// says who they are, and a file that differs is only reported. Three, or 5, 7 or 9. One alone runs the guest
    /// unreplicated. Two have no witness: without `fencing` each goes on without the other, so a cut between them makes
    /// two guests that both answer clients, and policies that order all inputs are not allowed.
    pub replica: Vec<PeerConfig>,
    /// `[[group.spare]]`: hosts that may take the place of a member. A replica that is named here waits to be added: by
    /// `plover member`, or by Pacemaker (`replace_after_s`).
    #[serde(default)]
    pub spare: Vec<SpareConfig>,
    /// Under Pacemaker: a member that has not answered for so long is replaced by a spare host (0: never). Not one whose node
    /// is on standby.
    #[serde(default = "default_replace_after_s")]
    pub replace_after_s: u64,
    /// See [`GroupConfig::is_spare`].
    #[serde(skip)]
    pub(crate) is_spare: bool,
    /// How replicas reach each other, unless a replica names another fabric.
    #[serde(default)]
    pub fabric: FabricName,
    /// Whether a replica polls for messages for a while before it sleeps (default `"never"`). For `shm` and
    /// `ofi`: `"never"`; `"adaptive"`: 30 µs at most, while that pays; `"always"`: for a host with a core to
    /// spare for each replica.
    #[serde(default, deserialize_with = "spin")]
    pub spin: Spin,
    /// With `fabric = "shm"`: the directory in which replicas on one host find each other, the same for
    /// all of them, created if missing. A replica that is killed leaves a socket's file there, which
    /// it replaces when it is started again. Without this key they meet by the group's name within one
    /// network namespace, without files.
    #[serde(default)]
    pub shm_dir: Option<PathBuf>,
    /// With `fabric = "ofi"`: libfabric's provider, the same on all replicas. `verbs;ofi_rxm` or `efa` with
    /// RDMA hardware; `fi_info -l` lists what a host has.
    #[serde(default)]
    pub ofi_provider: Option<String>,
}

/// `[[group.replica]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// The replica's id, 0 to 15, different for each replica. A new host gets one that no host of the group has had.
    pub id: u8,
    /// The address at which it listens for the others, such as `"192.0.2.10:7700"`. Over `ofi` it also uses
    /// the next higher port.
    pub address: SocketAddr,
    /// The fabric by which it is reached (default: `group.fabric`). Two replicas use TCP unless both name the
    /// same other fabric.
    #[serde(default)]
    pub fabric: Option<FabricName>,
}

/// `[[group.spare]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpareConfig {
    /// The id that its replica will have, 0 to 15: one that no host of the group has had.
    pub id: u8,
    /// The address at which it listens for the others.
    pub address: SocketAddr,
}

/// `[guest]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// QEMU's machine type.
    #[serde(default)]
    pub machine: Machine,
    /// QEMU's versioned name of the machine type, such as `pc-q35-7.2` (default: the newest that the installed QEMU has).
    /// Every host's QEMU must have it.
    #[serde(default)]
    pub machine_type: Option<String>,
    /// The accelerator, which executes the guest's instructions.
    #[serde(default)]
    pub accel: Accel,
    /// Virtual processors, 1 to 255.
    #[serde(default = "default_vcpus")]
    pub vcpus: u32,
    /// `[guest.topology]`: sockets, dies, cores and threads. Without it QEMU arranges the processors.
    #[serde(default)]
    pub topology: Option<Topology>,
    /// The processor, by QEMU's name for the model, such as `Haswell` (default: the host's own under KVM, all that QEMU can
    /// translate under TCG). Under KVM a host that lacks one of its features does not start the guest, so a model that all
    /// hosts have makes hosts of different processors fit together.
    #[serde(default)]
    pub cpu: Option<String>,
    /// Features that the processor has beside those of the model, or lacks: `+` or `-` and QEMU's name, such as `"-svm"`; for
    /// those with a number name, `=` and number, such as `"hv-spinlocks=8191"`.
    #[serde(default)]
    pub cpu_features: Vec<String>,
    /// RAM in MiB, from 16.
    #[serde(default = "default_mem_mib")]
    pub mem_mib: u32,
    /// The firmware of `q35` and `pc`. UEFI needs the package `ovmf` in the same version on all hosts; its variables are
    /// part of the guest, as its disks are.
    #[serde(default)]
    pub firmware: Firmware,
    /// The kernel image. Without it the firmware of `q35` or `pc` boots from the first disk.
    #[serde(default)]
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk that goes with `kernel`.
    #[serde(default)]
    pub initrd: Option<PathBuf>,
    /// The command line of `kernel`.
    #[serde(default)]
    pub cmdline: String,
    /// The guest's MAC address, which no other machine of its network may have.
    pub mac: Mac,
    /// The model of the guest's network card: `"virtio"`, or on `q35` and `pc` a card for guests without virtio's driver:
    /// `"e1000e"`, as Windows has it, `"e1000"` or `"rtl8139"`. These are slower.
    #[serde(default)]
    pub nic_model: NicModel,
    /// Whether the guest may leave checksums, and the cutting of long TCP segments, to its host. It then sends and
    /// gets segments of up to 64 KiB, at a fraction of the cost. All replicas must have the same.
    #[serde(default = "default_offloads")]
    pub offloads: bool,
    /// Whether the machine has a virtio-rng device. Its random bytes are each host's own, so what the two guests make of them
    /// differs until the next sync, as it does with a processor's RDRAND.
    #[serde(default)]
    pub rng: bool,
    /// A watchdog, which reboots a guest that no longer restarts its timer (default: none): `"itco"`, that of `q35`'s chip
    /// set, or `"i6300esb"`, a PCI device of `q35` and `pc`. Something in the guest must start it, such as systemd's
    /// `RuntimeWatchdogSec=`.
    #[serde(default)]
    pub watchdog: Option<Watchdog>,
    /// Whether the machine has a display: a VGA card with 16 MiB of memory, a keyboard, and a USB tablet as its pointer.
    /// `plover display` shows it to viewers that speak VNC. On `q35` and `pc`.
    #[serde(default)]
    pub display: bool,
    /// Whether the machine has a channel to an agent in the guest, by which `plover guest` and `plover backup --quiesce` reach
    /// it: the virtio-serial port `org.qemu.guest_agent.0`. In the guest it takes the package qemu-guest-agent.
    #[serde(default)]
    pub agent: bool,
    /// The machine's UUID, which the guest reads in its SMBIOS (default: zeros).
    #[serde(default)]
    pub uuid: Option<String>,
    /// The base of the guest's real-time clock.
    #[serde(default)]
    pub clock: ClockBase,
    /// `[guest.system]`: names and numbers in the guest's SMBIOS.
    #[serde(default)]
    pub system: SystemWords,
    /// What becomes of a guest that reboots (default `"restart"`). With `"destroy"` it is off until
    /// `plover start`.
    #[serde(default)]
    pub on_reboot: Option<AtEnd>,
    /// The same for one that powers off (default `"destroy"`).
    #[serde(default)]
    pub on_poweroff: Option<AtEnd>,
    /// The same for one whose kernel crashes and says so, by a `pvpanic` device that `q35` and `pc` have (default
    /// `"restart"`).
    #[serde(default)]
    pub on_crash: Option<AtEnd>,
    /// The nice value, 0 to 19, of the guest's vCPUs while it is secondary (default: 0 where outputs are
    /// released on match, because clients then wait for both guests; else 10). On a host that also runs
    /// leaders, their guests should come first: if a secondary falls behind, the next sync has some pages
    /// more; if a leader falls behind, its clients wait. Needs root, or `LimitNICE=` in the unit.
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
    /// This replica's own copy: a raw image or a block device. The guest starts with the first leader's; the
    /// other replicas' are overwritten with its content. A file whose name ends in `.qcow2`, `.vmdk` or
    /// `.vdi` is imported when the replica first starts, and never written.
    pub path: PathBuf,
    /// The file for the raw copy of an imported image (default: `disk-N.raw` in `paths.state_dir`, N from 0).
    #[serde(default)]
    pub raw: Option<PathBuf>,
    /// The bus on which the guest sees the disk.
    #[serde(default)]
    pub bus: DiskBus,
    /// The serial number that the guest reads, up to 20 characters (default: `plover-N`, N from 0).
    #[serde(default)]
    pub serial: Option<String>,
    /// The guest cannot write the disk. It is then not copied between replicas: put the same file on each host.
    #[serde(default)]
    pub readonly: bool,
    /// The disk is a CD in a drive, on the bus `scsi` or `ide`: `path` is an ISO image. It is `readonly`.
    #[serde(default)]
    pub cdrom: bool,
    /// The disk's size in MiB (default: the image's). An image of another size is refused. With this key an
    /// image that does not exist is made, empty, and the leader fills it.
    #[serde(default)]
    pub size_mib: Option<u64>,
    /// The size in MiB to which `plover disk grow` may grow the disk while the guest runs (default: it may not). With
    /// this key the image may be larger than `size_mib`, and one that a guest has used may have any size. The room
    /// costs each replica as much as an empty disk of that size does: it is compared, but not stored. Only for `virtio`
    /// and `scsi`, and for images that are files.
    #[serde(default)]
    pub max_size_mib: Option<u64>,
}

/// `[net]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// The TAP device (`IFF_TAP`, no packet information) on the clients' network. Without `bridge` it must exist. No other
    /// process may use it.
    pub tap: String,
    /// The bridge of this host that leads to the clients, such as `"br0"`. With it, the service makes the TAP device before
    /// each start, as a port of this bridge, and removes it when it has stopped (default: it is made by hand, and kept).
    #[serde(default)]
    pub bridge: Option<String>,
    /// The device by which this host reaches the clients, such as `"eth0"`: the uplink of the TAP's bridge. A leader
    /// that loses it, or its TAP, hands the guest over to a secondary that has both (default: only the TAP is
    /// watched).
    #[serde(default)]
    pub uplink: Option<String>,
}

/// `[[nic]]`: a network card of the guest's beside its first, which is `guest.mac` and `[net]`. At most three, in the same order on
/// all hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicConfig {
    /// Its MAC address.
    pub mac: Mac,
    /// Its model, as `guest.nic_model`.
    #[serde(default)]
    pub model: NicModel,
    /// Its TAP device, as `net.tap` is the first card's.
    pub tap: String,
    /// The bridge that the service makes that TAP a port of, as `net.bridge`.
    #[serde(default)]
    pub bridge: Option<String>,
    /// The uplink of that TAP's bridge, as `net.uplink`. A leader that loses one of them hands the guest over.
    #[serde(default)]
    pub uplink: Option<String>,
}

/// `[paths]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathConfig {
    /// The directory for state that outlives the process: promised view, in-sync set, the disks' journal,
    /// and with `durability = "disk"` the log. On a disk of this host, never shared. Created if missing.
    pub state_dir: PathBuf,
    /// The directory for files that need not outlive a reboot: control socket, trace, console log. On tmpfs.
    /// Created if missing.
    pub run_dir: PathBuf,
}

impl PathConfig {
    /// The memory of a backup that `plover restore` has left for the first start of a new group.
    pub fn restored_memory(&self) -> PathBuf {
        self.state_dir.join("restored-memory")
    }
}

/// `[debug]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DebugConfig {
    /// Write a hash of the guest's whole memory into the trace at every sync, on both sides. Slow.
    pub checksum_each_sync: bool,
    /// Write every sync into the trace, and why outputs differed.
    pub trace_syncs: bool,
    /// Makes a disk slow: this many µs more for each block that a sync or a copy reads or writes.
    pub disk_delay_us: u64,
}

fn spin<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Spin, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(serde::de::Error::custom)
}

fn default_replace_after_s() -> u64 {
    600
}

fn default_heartbeat_ms() -> u64 {
    25
}

fn default_hypervisor_timeout_ms() -> u64 {
    600
}

fn default_log_mib() -> usize {
    32
}

fn default_warm_mib_per_s() -> u32 {
    64
}

fn default_vcpus() -> u32 {
    1
}

fn default_offloads() -> bool {
    true
}

fn default_mem_mib() -> u32 {
    256
}

impl GroupConfig {
    /// How long a replica may be silent, in ms.
    pub fn timeout_ms(&self) -> u64 {
        let usual = if self.replica.len() == 2 { 500 } else { 150 };
        self.timeout_ms.unwrap_or(usual)
    }

    /// The newest wire version that this replica speaks.
    pub fn newest_version(&self) -> u8 {
        self.version_max.unwrap_or(WIRE_VERSION)
    }

    /// The shortest silence for which a leader is suspected, in ms.
    pub fn timeout_min_ms(&self) -> u64 {
        let beats = 3 * self.heartbeat_ms;
        let usual = beats.max(self.timeout_ms() / 2).min(self.timeout_ms());
        self.timeout_min_ms.unwrap_or(usual)
    }
}

/// Reads a configuration file.
pub fn read<C: serde::de::DeserializeOwned>(path: &Path) -> Result<C, ConfigError> {
    parse(path, &text(path)?)
}

fn text(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })
}

fn parse<C: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<C, ConfigError> {
    toml::from_str(text).map_err(|e| ConfigError::Parse {
        path: path.into(),
        why: e.to_string(),
    })
}

impl ReplicaConfig {
    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Ok(ConfigFile::load(path)?.config)
    }

    /// Whether this is a group of two, which has no third replica to decide.
    pub(crate) fn is_pair(&self) -> bool {
        self.members().len() == 2
    }

    /// Whether two replicas may lead at once after a cut.
    pub(crate) fn can_split(&self) -> bool {
        self.is_pair() && !self.group.fencing
    }

    pub(crate) fn members(&self) -> ReplicaSet {
        ReplicaSet::of(self.group.replica.iter().map(|r| ReplicaId(r.id)))
    }
}
