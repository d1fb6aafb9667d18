//! The configurations of a replica's parts, by its file: of QEMU, the disks, and the core.

use super::{DiskConfig, GuestConfig, ReplicaConfig};
use plover_disk::DiskSpec;
use plover_policy::{DEFAULT, MatchConfig, Policy, ReleaseWhen, SlotConfig};
use plover_replica::{Canary, GroupRecord, Tuning};
use plover_types::{Mac, Micros, PageLayout, ReplicaId};
use plover_vm::{Boot, DiskDevice, Ends, Identity, NicDevice, QemuConfig};

impl GuestConfig {
    fn identity(&self) -> Identity {
        Identity {
            machine_type: self.machine_type.clone(),
            cpu: self.cpu.clone(),
            cpu_features: self.cpu_features.clone(),
            topology: self.topology,
            uuid: self.uuid.clone(),
            clock: self.clock,
            system: self.system.clone(),
        }
    }
}

impl DiskConfig {
    /// Whether the guest can only read it, so that replicas do not copy it.
    pub fn is_read_only(&self) -> bool {
        self.readonly || self.cdrom
    }

    fn device(&self) -> DiskDevice {
        DiskDevice {
            bus: self.bus,
            read_only: self.is_read_only(),
            cdrom: self.cdrom,
            serial: self.serial.clone(),
        }
    }

    pub fn spec(&self) -> DiskSpec {
        DiskSpec {
            path: self.path.clone(),
            read_only: self.is_read_only(),
            bytes: self.size_mib.map(|mib| mib << 20),
            bytes_max: self.max_size_mib.map(|mib| mib << 20),
            delay: std::time::Duration::ZERO,
        }
    }
}

/// This host's devices for one of the guest's NICs.
#[derive(Clone, Copy, Debug)]
pub struct Attached<'a> {
    /// The NIC's address.
    pub mac: Mac,
    /// The TAP device.
    pub tap: &'a str,
    /// The bridge that the service makes it a port of.
    pub bridge: Option<&'a str>,
    /// The device behind that bridge, towards the clients.
    pub uplink: Option<&'a str>,
}

impl ReplicaConfig {
    /// This host's devices for each of the guest's NICs, by the numbers of these.
    pub fn attached(&self) -> impl Iterator<Item = Attached<'_>> {
        let first = Attached {
            mac: self.guest.mac,
            tap: &self.net.tap,
            bridge: self.net.bridge.as_deref(),
            uplink: self.net.uplink.as_deref(),
        };
        let others = self.nic.iter().map(|nic| Attached {
            mac: nic.mac,
            tap: &nic.tap,
            bridge: nic.bridge.as_deref(),
            uplink: nic.uplink.as_deref(),
        });
        std::iter::once(first).chain(others)
    }

    /// The TAP devices, by the numbers of the guest's NICs.
    pub fn taps(&self) -> Vec<&str> {
        self.attached().map(|it| it.tap).collect()
    }

    /// The devices that must carry frames for clients to reach the guest here.
    pub(crate) fn net_devices(&self) -> Vec<String> {
        let uplinks = self.attached().filter_map(|it| it.uplink);
        let devices = self.taps().into_iter().chain(uplinks);
        devices.map(str::to_owned).collect()
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
        config.identity = guest.identity();
        config.firmware = guest.firmware;
        config.accel = guest.accel;
        config.vcpus = guest.vcpus;
        config.mem_mib = guest.mem_mib;
        let first = NicDevice {
            mac: guest.mac,
            model: guest.nic_model,
        };
        let others = self.nic.iter().map(|nic| NicDevice {
            mac: nic.mac,
            model: nic.model,
        });
        config.nics = std::iter::once(first).chain(others).collect();
        config.offloads = guest.offloads;
        config.rng = guest.rng;
        config.watchdog = guest.watchdog;
        config.display = guest.display;
        config.agent = guest.agent;
        config.name = format!("{}-{}", self.group.name, self.group.me);
        let usual = Ends::default();
        config.ends = Ends {
            on_reboot: guest.on_reboot.unwrap_or(usual.on_reboot),
            on_poweroff: guest.on_poweroff.unwrap_or(usual.on_poweroff),
            on_crash: guest.on_crash.unwrap_or(usual.on_crash),
        };
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

    /// The policy's axes; this was checked with the configuration.
    fn axes(&self) -> Policy {
        self.policy.axes().unwrap_or(DEFAULT.policy)
    }

    /// The part of the core's configuration that may change while the replica runs.
    pub(crate) fn tuning(&self) -> Tuning {
        let policy = &self.policy;
        let (defaults, matching) = (SlotConfig::default(), MatchConfig::of(&self.axes()));
        let ms = |value: Option<u64>, default: Micros| value.map_or(default, Micros::from_ms);
        Tuning {
            hypervisor_timeout: Micros::from_ms(self.group.hypervisor_timeout_ms),
            slot: SlotConfig {
                idle_threshold: policy
                    .idle_threshold_us
                    .map_or(defaults.idle_threshold, Micros),
                slot_min: ms(policy.slot_min_ms, defaults.slot_min),
                slot_max: ms(policy.slot_max_ms, defaults.slot_max),
                quiet_max: ms(policy.quiet_max_ms, defaults.quiet_max),
                wait_max: ms(policy.wait_max_ms, defaults.wait_max),
            },
            matching: MatchConfig {
                unmatched_max: ms(policy.unmatched_max_ms, matching.unmatched_max),
                slot_max: ms(policy.matched_max_ms, matching.slot_max),
                always: matching.always,
                paced: policy.paced.unwrap_or(matching.paced),
            },
            unprotected_output: policy.unprotected_output,
            warm_bytes_per_s: u64::from(self.group.warm_mib_per_s) << 20,
            subpages: policy.subpages.unwrap_or(true),
            input_bytes_max: policy.input_mib.unwrap_or(16) << 20,
        }
    }

    pub(crate) fn brain(
        &self,
        message_bytes_max: usize,
        hash_key: [u8; 32],
        seed: u64,
        layout: PageLayout,
        members: Option<&GroupRecord>,
    ) -> plover_replica::Config {
        let (policy, axes, tuning) = (&self.policy, self.axes(), self.tuning());
        let qemu = self.qemu();
        let record = members.cloned().unwrap_or_else(|| self.group.record());
        let contacts = self.group.contacts(&record);
        let voters = record.members.voters;
        // The one that the file names may have left.
        let named = ReplicaId(self.group.first_leader());
        let lowest = voters.iter().next().filter(|_| !voters.contains(named));
        let first_leader = lowest.unwrap_or(named);
        plover_replica::Config {
            me: ReplicaId(self.group.me),
            members: voters,
            pair: record.is_pair(),
            fencing: self.group.fencing && record.is_pair(),
            record,
            contacts,
            first_leader,
            heartbeat: Micros::from_ms(self.group.heartbeat_ms),
            timeout: Micros::from_ms(self.group.timeout_ms()),
            timeout_min: Micros::from_ms(self.group.timeout_min_ms()),
            hypervisor_timeout: tuning.hypervisor_timeout,
            durability: self.group.durability,
            log_bytes_max: self.group.log_mib << 20,
            message_bytes_max,
            policy: axes,
            known_after: Micros::from_ms(self.group.heartbeat_ms * 100),
            newest_version: self.group.newest_version(),
            slot: tuning.slot,
            matching: tuning.matching,
            unprotected_output: tuning.unprotected_output,
            layout,
            needs_reset: qemu.machine.needs_reset(),
            warm: self.group.warm_witness,
            warm_bytes_per_s: tuning.warm_bytes_per_s,
            drained: false,
            subpages: tuning.subpages,
            guard_bytes_max: policy.guard_mib.unwrap_or(8) << 20,
            input_bytes_max: tuning.input_bytes_max,
            hash_key,
            seed,
            canary: Canary::None,
        }
    }
}
