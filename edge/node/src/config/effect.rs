//! When a change of a configuration key takes effect.
//!
//! [`KEYS`] has every key. docs/keys.md shows it, and `./x verify` fails for a key that is missing here.

use serde::{Deserialize, Serialize};
use std::fmt;

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// At once, by `plover reload` on this host.
    Now,
    /// When this host's service is started again, one host after the other.
    Restart,
    /// When the services of all hosts have been stopped and are started with it: it must be the same on all of them, and the
    /// guest boots anew.
    Group,
    /// Never: the replica with its state directory is bound to it.
    Never,
}

impl fmt::Display for Effect {
    /// What the operator has to do, as the end of a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Now => "takes effect at once",
            Self::Restart => "takes effect when this host's service is started again",
            Self::Group => {
                "takes effect when the services of all hosts are stopped, and started with it"
            }
            Self::Never => "cannot change",
        })
    }
}

/// The keys by the effect of their changes. Keys of `[[disk]]` and `[[group.replica]]` stand for all tables of that name;
/// these names themselves stand for the number of the tables.
pub const KEYS: &[(Effect, &[&str])] = &[
    (
        Effect::Now,
        &[
            "group.hypervisor_timeout_ms",
            "group.warm_mib_per_s",
            "group.replace_after_s",
            "guest.secondary_nice",
            "net.uplink",
            "policy.idle_threshold_us",
            "policy.slot_min_ms",
            "policy.slot_max_ms",
            "policy.quiet_max_ms",
            "policy.wait_max_ms",
            "policy.unmatched_max_ms",
            "policy.matched_max_ms",
            "policy.paced",
            "policy.unprotected_output",
            "policy.subpages",
            "policy.compress",
            "policy.input_mib",
            "debug.checksum_each_sync",
            "debug.trace_syncs",
        ],
    ),
    (
        Effect::Restart,
        &[
            "group.spare",
            "group.spare.id",
            "group.spare.address",
            // The lease rests on the timeouts, and the heartbeats fill them (docs/decisions/0053).
            "group.heartbeat_ms",
            "group.timeout_ms",
            "group.timeout_min_ms",
            "group.warm_witness",
            "group.version_max",
            "group.key_file",
            "group.trust_file",
            "group.spin",
            "guest.on_reboot",
            "guest.on_poweroff",
            "guest.on_crash",
            "guest.qemu",
            "disk.path",
            "disk.raw",
            "net.tap",
            "net.bridge",
            "nic.tap",
            "nic.bridge",
            "nic.uplink",
            "policy.clean_replies",
            "policy.guard_mib",
            "paths.state_dir",
            "paths.run_dir",
            "host.leader.guest",
            "host.leader.replica",
            "host.follower.guest",
            "host.follower.replica",
            "debug.disk_delay_us",
        ],
    ),
    (
        Effect::Group,
        &[
            "group.first_leader",
            "group.durability",
            "group.fencing",
            "group.log_mib",
            "group.plaintext",
            "group.fabric",
            "group.shm_dir",
            "group.ofi_provider",
            "group.replica",
            "group.replica.id",
            "group.replica.address",
            "group.replica.fabric",
            "guest.machine",
            "guest.machine_type",
            "guest.accel",
            "guest.vcpus",
            "guest.topology.sockets",
            "guest.topology.dies",
            "guest.topology.cores",
            "guest.topology.threads",
            "guest.cpu",
            "guest.cpu_features",
            "guest.mem_mib",
            "guest.firmware",
            "guest.kernel",
            "guest.initrd",
            "guest.cmdline",
            "guest.mac",
            "guest.nic_model",
            "nic",
            "nic.mac",
            "nic.model",
            "guest.offloads",
            "guest.rng",
            "guest.watchdog",
            "guest.display",
            "guest.agent",
            "guest.uuid",
            "guest.clock",
            "guest.system.manufacturer",
            "guest.system.product",
            "guest.system.version",
            "guest.system.serial",
            "guest.system.sku",
            "guest.system.family",
            "disk",
            "disk.bus",
            "disk.serial",
            "disk.readonly",
            "disk.cdrom",
            "disk.size_mib",
            "disk.max_size_mib",
            "policy.name",
            "policy.input",
            "policy.secondary",
            "policy.sync",
            "policy.interval_ms",
            "policy.sent",
            "policy.release",
        ],
    ),
    (Effect::Never, &["group.name", "group.me"]),
];

impl Effect {
    /// The effect of a change of `key`, such as `policy.slot_max_ms` or `disk.path`. A key that is not known takes effect
    /// with the group: nothing is promised of it.
    pub fn of(key: &str) -> Self {
        let found = KEYS.iter().find(|(_, keys)| keys.contains(&key));
        found.map_or(Self::Group, |(effect, _)| *effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_key_has_one_effect() {
        let all: Vec<_> = KEYS.iter().flat_map(|(_, keys)| keys.iter()).collect();
        let distinct: BTreeSet<_> = all.iter().collect();
        assert_eq!(all.len(), distinct.len());
        assert_eq!(Effect::of("policy.slot_max_ms"), Effect::Now);
        assert_eq!(Effect::of("group.timeout_ms"), Effect::Restart);
        assert_eq!(Effect::of("guest.mem_mib"), Effect::Group);
        assert_eq!(Effect::of("group.me"), Effect::Never);
    }
}
