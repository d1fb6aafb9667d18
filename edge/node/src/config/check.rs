//! Whether a configuration's keys fit together.

use super::{DiskConfig, GroupConfig, ReplicaConfig};
use crate::policy::PolicyName;
use plover_disk::import::Format;
use plover_policy::Secondary;
use plover_types::wire::Versions;
use plover_types::{ReplicaId, ReplicaSet};

/// A heartbeat a minute: a timeout is three of them at least.
const HEARTBEAT_MS_MAX: u64 = 60_000;
/// 1 TiB, the most that a guest's memory has, too.
const LOG_MIB_MAX: usize = 1 << 20;
/// 8 TiB, the most that all disks have.
const DISK_MIB_MAX: u64 = 8 << 20;

impl ReplicaConfig {
    /// Checks the conditions that the types do not express.
    ///
    /// # Errors
    /// The text says which keys do not fit together.
    pub fn check(&self) -> Result<(), String> {
        let group = &self.group;
        group.check()?;
        let members = self.members();
        match (self.policy.name, members.len()) {
            (PolicyName::None, 1) | (PolicyName::Preset(_), 2 | 3 | 5 | 7 | 9) => {}
            (PolicyName::None, n) => {
                return Err(format!(
                    "policy.name = \"none\" runs one replica alone, the group has {n}"
                ));
            }
            (name, n) => {
                return Err(format!(
                    "policy.name = \"{name}\" needs 3, 5, 7 or 9 replicas, or 2 \
                     under some policies (plover policy list) or with group.fencing, the group has {n}"
                ));
            }
        }
        if group.fencing && !self.is_pair() {
            return Err(format!(
                "group.fencing is for two replicas, the group has {}: a majority of it decides, so take the line out",
                members.len()
            ));
        }
        let axes = self.policy.axes()?;
        // With fencing two agree as three do.
        if self.can_split() {
            axes.check_pair().map_err(|error| error.to_string())?;
        }
        let writable = self.disk.iter().any(|disk| !disk.is_read_only());
        if writable && axes.secondary == Secondary::Waits {
            return Err(
                "a [[disk]] that the guest writes needs a policy whose secondary runs \
                 (policy.secondary = \"runs\" or \"semi\"), or readonly = true"
                    .into(),
            );
        }
        if let Some(host) = &self.host {
            host.check()?;
        }
        let nice = self.secondary_nice();
        if !(0..20).contains(&nice) {
            return Err(format!("guest.secondary_nice = {nice} must be 0 to 19"));
        }
        if self.guest.kernel.is_none()
            && (self.guest.initrd.is_some() || !self.guest.cmdline.is_empty())
        {
            return Err("guest.initrd and guest.cmdline go with guest.kernel".into());
        }
        if group.warm_mib_per_s == 0 {
            return Err(
                "group.warm_mib_per_s must be at least 1; group.warm_witness = \"off\" keeps no \
                 witness warm"
                    .into(),
            );
        }
        for disk in &self.disk {
            disk.check()?;
        }
        self.check_taps()?;
        let (policy, slot) = (&self.policy, self.tuning().slot);
        for (key, mib) in [
            ("guard_mib", policy.guard_mib),
            ("input_mib", policy.input_mib),
        ] {
            if let Some(mib) = mib.filter(|mib| !(1..=4096).contains(mib)) {
                return Err(format!("policy.{key} = {mib} must be 1 to 4096"));
            }
        }
        if policy.idle_threshold_us == Some(0) {
            return Err(
                "policy.idle_threshold_us must be at least 1: a guest is not idle at once".into(),
            );
        }
        if policy.slot_min_ms.is_some() && slot.slot_min > slot.slot_max {
            return Err(format!(
                "policy.slot_min_ms = {} is above policy.slot_max_ms = {}",
                slot.slot_min.0 / 1000,
                slot.slot_max.0 / 1000
            ));
        }
        let guest = self.qemu().validate();
        guest.map_err(|error| error.to_string())
    }

    fn check_taps(&self) -> Result<(), String> {
        let taps = self.taps();
        let is_second = |at: &usize| taps[..*at].contains(&taps[*at]);
        match (0..taps.len()).find(is_second) {
            Some(at) => Err(format!(
                "net.tap and nic.tap have '{}' twice: give each network card a TAP of its own",
                taps[at]
            )),
            None => Ok(()),
        }
    }
}

impl DiskConfig {
    fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        for (key, mib) in [
            ("size_mib", self.size_mib),
            ("max_size_mib", self.max_size_mib),
        ] {
            if let Some(mib) = mib.filter(|mib| *mib > DISK_MIB_MAX) {
                return Err(format!(
                    "disk.{key} = {mib} of {path} must be at most {DISK_MIB_MAX}: all disks together have 8 TiB at most"
                ));
            }
        }
        if self.cannot_grow() {
            return Err(format!(
                "disk.max_size_mib of {path} goes with bus = \"virtio\" or \"scsi\", without readonly, and is at least size_mib"
            ));
        }
        if self.raw.is_some() && Format::of_name(&self.path).is_none() {
            return Err(format!(
                "disk.raw goes with an image that is imported, and {path} is none by its name (.qcow2, .vmdk, .vdi)"
            ));
        }
        Ok(())
    }

    /// Whether it has a `max_size_mib` that cannot be kept.
    fn cannot_grow(&self) -> bool {
        let hears = self.bus != plover_vm::DiskBus::Ide && !self.is_read_only();
        self.max_size_mib
            .is_some_and(|max| !hears || self.size_mib.is_some_and(|size| size > max))
    }
}

impl GroupConfig {
    /// The same for the keys of `[group]` alone.
    ///
    /// # Errors
    /// The text says which keys do not fit together.
    pub fn check(&self) -> Result<(), String> {
        let ids: Vec<u8> = self.named().map(|r| r.id).collect();
        let named = ReplicaSet::of(ids.iter().copied().map(ReplicaId));
        if named.len() != ids.len() || ids.iter().any(|id| *id > 15) {
            return Err(format!(
                "the ids {ids:?} of [[group.replica]] and [[group.spare]] must be distinct and 0 to 15"
            ));
        }
        let addresses: Vec<_> = self.named().map(|r| r.address).collect();
        let is_second = |at: &usize| addresses[..*at].contains(&addresses[*at]);
        if let Some(at) = (0..addresses.len()).find(is_second) {
            return Err(format!(
                "[[group.replica]] and [[group.spare]] have the address {} twice: each replica listens at one of its own",
                addresses[at]
            ));
        }
        let members = ReplicaSet::of(self.replica.iter().map(|r| ReplicaId(r.id)));
        if !members.contains(ReplicaId(self.me)) {
            return Err(format!(
                "group.me = {} has no [[group.replica]] and no [[group.spare]]",
                self.me
            ));
        }
        if !self.spare.is_empty() && members.len() < 3 {
            return Err(format!(
                "[[group.spare]] needs a group of three or more, this one has {}: only there a host is replaced",
                members.len()
            ));
        }
        let first = self.first_leader();
        if !members.contains(ReplicaId(first)) {
            return Err(format!(
                "group.first_leader = {first} has no [[group.replica]]: leave it out, and it is the lowest id"
            ));
        }
        let newest = self.newest_version();
        if !Versions::OURS.fits(newest) || newest == 0 {
            return Err(format!(
                "group.version_max = {newest} is not among the {} that this release speaks",
                Versions::OURS
            ));
        }
        if !(1..=HEARTBEAT_MS_MAX).contains(&self.heartbeat_ms) {
            return Err(format!(
                "group.heartbeat_ms = {} must be 1 to {HEARTBEAT_MS_MAX}",
                self.heartbeat_ms
            ));
        }
        if self.timeout_ms() < 3 * self.heartbeat_ms {
            return Err(format!(
                "group.timeout_ms = {} must be at least three heartbeats (group.heartbeat_ms = {})",
                self.timeout_ms(),
                self.heartbeat_ms
            ));
        }
        let min = self.timeout_min_ms();
        if !(3 * self.heartbeat_ms..=self.timeout_ms()).contains(&min) {
            return Err(format!(
                "group.timeout_min_ms = {min} must be at least three heartbeats \
                 (group.heartbeat_ms = {}) and at most group.timeout_ms = {}",
                self.heartbeat_ms,
                self.timeout_ms()
            ));
        }
        if !(1..=LOG_MIB_MAX).contains(&self.log_mib) {
            return Err(format!(
                "group.log_mib = {} must be 1 to {LOG_MIB_MAX}",
                self.log_mib
            ));
        }
        if self.hypervisor_timeout_ms == 0 {
            return Err(
                "group.hypervisor_timeout_ms must be at least 1: no QEMU answers in no time".into(),
            );
        }
        self.check_keys()?;
        self.check_fabrics()
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use plover_types::PageLayout;

    const GOOD: &str = r#"
        [group]
        name = "lab"
        me = 1
        plaintext = true
        replica = [
            { id = 0, address = "10.77.1.10:7700" },
            { id = 1, address = "10.77.1.11:7700" },
            { id = 2, address = "10.77.1.12:7700" },
        ]
        [guest]
        kernel = "/k"
        mac = "52:54:00:77:00:01"
        [net]
        tap = "guest0"
        [paths]
        state_dir = "/s"
        run_dir = "/r"
    "#;

    fn parse(text: &str) -> Result<ReplicaConfig, String> {
        let config: ReplicaConfig = toml::from_str(text).map_err(|e| e.to_string())?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn defaults_are_enough() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.members().len(), 3);
        let brain = config.brain(
            1000,
            [0; 32],
            1,
            PageLayout::new(config.qemu().ram_pages(), 10),
            None,
        );
        assert_eq!((brain.layout.pages(), brain.warm), (65546, Warm::Full));
    }

    #[test]
    fn a_link_uses_the_fabric_that_both_ends_name() {
        use FabricName::{Ofi, Shm, Tcp};
        let peers = |text: &str, name| {
            let group = parse(text).unwrap().group;
            let ids = group.peers_over(name).into_iter().map(|id| id.0);
            ids.collect::<Vec<_>>()
        };
        assert_eq!(peers(GOOD, Tcp), [0, 2]);
        let all = GOOD.replace("me = 1", "me = 1\nfabric = \"shm\"\nspin = \"adaptive\"");
        assert_eq!(peers(&all, Shm), [0, 2]);
        assert!(peers(&all, Tcp).is_empty());
        let two = all.replace("id = 2,", "id = 2, fabric = \"tcp\",");
        assert_eq!(peers(&two, Shm), [0]);
        assert_eq!(peers(&two, Tcp), [2], "the other end names another");
        assert!(peers(&two, Ofi).is_empty());
        let from_the_third = two.replace("me = 1", "me = 2");
        assert_eq!(peers(&from_the_third, Tcp), [0, 1]);
    }

    #[test]
    fn two_replicas_go_with_policies_that_need_no_third() {
        let two = GOOD.replace("{ id = 2, address = \"10.77.1.12:7700\" },", "");
        for (policy, runs) in [
            ("remus-25", true),
            ("adaptive-remus", true),
            ("colo", true),
            ("plan1", true),
            ("vsmr", false),
            ("hybrid", false),
            ("str", false),
        ] {
            let text = two.replace("[net]", &format!("[policy]\nname = '{policy}'\n[net]"));
            let config = parse(&text);
            assert_eq!(config.is_ok(), runs, "{policy}: {config:?}");
            match config {
                Ok(config) => assert!(config.can_split()),
                Err(why) => assert!(why.contains("witness") && why.contains("remus"), "{why}"),
            }
            let config = parse(&text.replace("me = 1", "me = 1\nfencing = true")).unwrap();
            assert!(config.is_pair() && !config.can_split());
        }
        assert!(!parse(GOOD).unwrap().can_split());
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, names) in [
            ("me = 1", "me = 1\nfencing = true", "for two replicas"),
            ("me = 1", "me = 1\nfabric = \"pigeon\"", "pigeon"),
            (
                "me = 1",
                "me = 1\nshm_dir = \"/d\"",
                "no replica has fabric",
            ),
            ("me = 1", "me = 1\nspin = \"always\"", "always sleeps"),
            ("me = 1", "me = 1\nfabric = \"ofi\"", "ofi_provider"),
            ("me = 1", "me = 1\nofi_provider = \"efa\"", "no replica has"),
            ("me = 1", "me = 1\nspin = \"often\"", "adaptive"),
            ("id = 2,", "id = 2, fabric = \"shm\",", "both of its ends"),
            ("me = 1", "me = 7", "group.me"),
            ("me = 1", "me = 1\nfirst_leader = 5", "first_leader"),
            ("plaintext = true", "", "plover key new"),
            ("plaintext = true", "key_file = \"/k\"", "group.trust_file"),
            (
                "me = 1",
                "me = 1\nkey_file = \"/k\"\ntrust_file = \"/t\"",
                "leave out",
            ),
            ("me = 1", "me = 1\ntimeout_ms = 30", "heartbeat"),
            ("me = 1", "me = 1\nheartbeat_ms = 0", "heartbeat_ms = 0"),
            // Numbers that overflow in milliseconds or bytes.
            (
                "me = 1",
                "me = 1\nheartbeat_ms = 9000000000000000000",
                "must be 1 to 60000",
            ),
            (
                "me = 1",
                "me = 1\nlog_mib = 17592186044417",
                "must be 1 to 1048576",
            ),
            (
                "[net]",
                "[[disk]]\npath = '/d'\nsize_mib = 17592186044417\n[net]",
                "disk.size_mib = 17592186044417 of /d must be at most",
            ),
            (
                "[net]",
                "[[disk]]\npath = '/d'\nmax_size_mib = 17592186044417\n[net]",
                "disk.max_size_mib = 17592186044417 of /d must be at most",
            ),
            (
                "[paths]",
                "[[nic]]\nmac = '52:54:00:77:00:02'\ntap = 'guest0'\n[paths]",
                "'guest0' twice",
            ),
            ("me = 1", "me = 1\ncolour = 3", "colour"),
            ("me = 1", "me = 1\nwarm_witness = \"tepid\"", "disk"),
            ("me = 1", "me = 1\nwarm_mib_per_s = 0", "warm_mib_per_s"),
            (
                "me = 1",
                "me = 1\nhypervisor_timeout_ms = 0",
                "no QEMU answers",
            ),
            ("[net]", "[policy]\ninput_mib = 0\n[net]", "input_mib"),
            (
                "[net]",
                "[policy]\nidle_threshold_us = 0\n[net]",
                "idle_threshold_us",
            ),
            (
                "[net]",
                "[policy]\nslot_min_ms = 51\n[net]",
                "slot_min_ms = 51 is above policy.slot_max_ms = 50",
            ),
            ("kernel =", "vcpus = 300\nkernel =", "1 to 255"),
            (
                "kernel =",
                "watchdog = 'itco'\nkernel =",
                "the chip set of machine = \"q35\"",
            ),
            (
                "[net]",
                "[[disk]]\npath = '/d'\nbus = 'scuzzy'\n[net]",
                "scuzzy",
            ),
            ("[net]", "[[disk]]\nfile = '/d'\n[net]", "file"),
            (
                "[net]",
                "[[disk]]\npath = '/d.raw'\nraw = '/e'\n[net]",
                "imported",
            ),
            (
                "[net]",
                "[[disk]]\npath = '/d'\nsize_mib = 8\nmax_size_mib = 7\n[net]",
                "max_size_mib",
            ),
            (
                "[net]",
                "[[disk]]\npath = '/d'\nreadonly = true\nmax_size_mib = 7\n[net]",
                "max_size_mib",
            ),
            ("kernel =", "initrd =", "go with guest.kernel"),
            (
                "[net]",
                "[policy]\nname = 'remus-25'\n[[disk]]\npath = '/d'\n[net]",
                "secondary runs",
            ),
            ("id = 2", "id = 1", "distinct"),
            ("[net]", "[policy]\nname = \"none\"\n[net]", "alone"),
            ("[net]", "[policy]\nname = \"remos\"\n[net]", "remos"),
            (
                "[net]",
                "[policy]\nsecondary = \"waits\"\n[net]",
                "go together",
            ),
            ("10.77.1.12:7700", "nowhere", "address"),
            ("52:54:00:77:00:01", "52:54", "Ethernet"),
        ] {
            let error = parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.contains(names), "{to}: {error}");
        }
    }
}
