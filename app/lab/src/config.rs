//! The configuration that each of a lab's daemons gets.
//!
//! Three layers, the later over the earlier: the lab's defaults, the user's overlay (`--config FILE`),
//! and the flags of the command line. The overlay cannot change the addresses, paths and ids that the
//! lab gives to its replicas.

use crate::cpus;
use crate::image::Image;
use crate::net::{self, GUEST_IP, GUEST_MAC, PREFIX, TAP};
use crate::options::{DiskImage, Options};
use crate::state::ReplicaDir;
use anyhow::{Context, Result, bail};
use std::net::SocketAddrV4;
use std::path::Path;
use toml::{Table, Value};

/// The keys that the lab alone decides: a key of a table, or (`None`) the whole table.
const THE_LABS_OWN: [(&str, Option<&str>); 9] = [
    ("group", Some("name")),
    ("group", Some("me")),
    ("group", Some("replica")),
    ("group", Some("spare")),
    ("group", Some("first_leader")),
    ("policy", Some("name")),
    ("disk", None),
    ("net", None),
    ("paths", None),
];

/// The inputs of one replica's configuration, besides the user's choices.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// Its id.
    pub id: u8,
    /// The members of the group, and where each listens.
    pub members: &'a [(u8, SocketAddrV4)],
    /// The same for its spare hosts.
    pub spares: &'a [(u8, SocketAddrV4)],
    /// Its copies of the guest's disks.
    pub disks: &'a [DiskImage],
    /// The machine's CPUs.
    pub cpus: &'a [usize],
    /// Its files.
    pub files: &'a ReplicaDir,
    /// The public keys of the group.
    pub trusted: &'a Path,
}

/// Reads an overlay.
pub fn read_overlay(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration {}", path.display()))?;
    let table: Table = text
        .parse()
        .with_context(|| format!("the configuration {} is not TOML", path.display()))?;
    for (section, key) in THE_LABS_OWN {
        let found = table.get(section);
        if found.is_some_and(|found| key.is_none_or(|key| found.get(key).is_some())) {
            let name = key.map_or(section.into(), |key| format!("{section}.{key}"));
            bail!(
                "the configuration {} sets {name}, which the lab decides",
                path.display()
            );
        }
    }
    Ok(table)
}

/// One replica's configuration. A guest without `image` boots from its first disk.
pub fn generate(
    options: &Options,
    overlay: &Table,
    image: Option<&Image>,
    place: &Place<'_>,
) -> Table {
    let text = |path: &Path| Value::from(path.display().to_string());
    let replica = |(id, address): &(u8, SocketAddrV4)| {
        let pairs = [
            ("id", Value::from(i64::from(*id))),
            ("address", address.to_string().into()),
        ];
        Value::from(table(pairs))
    };
    let list = |of: &[(u8, SocketAddrV4)]| Value::Array(of.iter().map(replica).collect());
    let mut config = table([
        (
            "group",
            table([
                ("name", format!("lab-{}", options.name).into()),
                ("me", i64::from(place.id).into()),
                ("replica", list(place.members)),
                ("spare", list(place.spares)),
            ])
            .into(),
        ),
        ("guest", guest(options, image).into()),
        ("net", table([("tap", TAP.into())]).into()),
        ("nic", Value::Array((1..options.nics).map(nic).collect())),
        (
            "policy",
            table([("name", options.policy.name().into())]).into(),
        ),
        (
            "paths",
            table([
                ("state_dir", text(&place.files.state_dir())),
                ("run_dir", text(&place.files.run_dir())),
            ])
            .into(),
        ),
    ]);
    if !place.disks.is_empty() {
        let disks = place.disks.iter().map(disk_of);
        config.insert("disk".into(), Value::Array(disks.collect()));
    }
    merge(&mut config, overlay);
    merge(&mut config, &flags(options));
    let group = config.get_mut("group").and_then(Value::as_table_mut);
    if let Some(group) = group.filter(|group| !group.contains_key("plaintext")) {
        group.insert("key_file".into(), text(&place.files.key()));
        group.insert("trust_file".into(), text(place.trusted));
    }
    if place.members.len() > 1 && !options.any_cpu && !config.contains_key("host") {
        let vcpus = config["guest"].get("vcpus").and_then(Value::as_integer);
        let vcpus = vcpus.and_then(|n| n.try_into().ok()).unwrap_or(1);
        if let Some(shares) = cpus::shares(place.cpus, vcpus) {
            config.insert("host".into(), shares.into());
        }
    }
    config
}

/// A `[[nic]]`.
fn nic(number: u8) -> Value {
    let mac = net::guest_mac(number).to_string();
    table([("mac", mac.into()), ("tap", net::tap(number).into())]).into()
}

/// The section `[guest]`: the guest's hardware, and what it starts from.
fn guest(options: &Options, image: Option<&Image>) -> Table {
    let text = |path: &Path| Value::from(path.display().to_string());
    let mut guest = table([("mac", GUEST_MAC.to_string().into())]);
    if let Some(mem_mib) = options.guest.mem_mib() {
        guest.insert("mem_mib".into(), i64::from(mem_mib).into());
    }
    let Some(image) = image.filter(|_| options.firmware().is_none()) else {
        // The default has no firmware.
        guest.insert("machine".into(), "q35".into());
        return guest;
    };
    guest.insert("kernel".into(), text(&image.kernel));
    let cmdline = format!("{} plover.ip={GUEST_IP}/{PREFIX}", image.cmdline);
    guest.insert("cmdline".into(), cmdline.into());
    if let Some(initrd) = &image.initrd {
        guest.insert("initrd".into(), text(initrd));
    }
    guest
}

fn disk_of(disk: &DiskImage) -> Value {
    let pairs = [
        ("path", Value::from(disk.path.display().to_string())),
        ("bus", disk.bus.as_deref().unwrap_or("virtio").into()),
        ("readonly", disk.read_only.into()),
        ("cdrom", disk.cdrom.into()),
    ];
    let mut table = table(pairs);
    if let Some(mib) = disk.max_size_mib {
        table.insert("max_size_mib".into(), (mib as i64).into());
    }
    table.into()
}

/// The guest's settings from the command line.
fn flags(options: &Options) -> Table {
    let guest = [
        ("machine", options.machine.clone().map(Value::from)),
        ("accel", options.accel.clone().map(Value::from)),
        ("vcpus", options.vcpus.map(|n| i64::from(n).into())),
        ("mem_mib", options.mem_mib.map(|n| i64::from(n).into())),
        ("firmware", options.firmware().map(|it| it.name().into())),
    ];
    let given = guest
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    table([(
        "guest",
        Value::from(given.map(|(k, v)| (k.to_owned(), v)).collect::<Table>()),
    )])
}

fn table<const N: usize>(pairs: [(&str, Value); N]) -> Table {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Puts `over` over `base`: tables are merged key by key, everything else is replaced.
fn merge(base: &mut Table, over: &Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Firmware;
    use crate::state::LabDir;
    use std::path::PathBuf;

    fn config(options: &Options, overlay: &str) -> Table {
        let image = Image {
            kernel: "/k".into(),
            initrd: Some("/i".into()),
            disk: None,
            cmdline: "console=ttyS0".into(),
        };
        let addresses =
            [0, 1, 2].map(|id| (id, SocketAddrV4::new([10, 77, 1, 10 + id].into(), 7700)));
        let place = Place {
            id: 1,
            members: &addresses,
            spares: &[],
            disks: &[
                PathBuf::from("/var/d.raw").into(),
                "/var/e.iso,bus=ide,cdrom".parse().unwrap(),
            ],
            cpus: &[0, 1],
            files: &LabDir::of(&options.name).replica(1),
            trusted: Path::new("/trusted"),
        };
        generate(options, &overlay.parse().unwrap(), Some(&image), &place)
    }

    #[test]
    fn defaults_then_overlay_then_flags() {
        let options = Options {
            machine: Some("q35".into()),
            ..Options::default()
        };
        let config = config(
            &options,
            "[guest]\nmachine = 'pc'\nvcpus = 2\n[policy]\nslot_max_ms = 20\n[debug]\nx = 1",
        );
        let guest = config["guest"].as_table().unwrap();
        assert_eq!(guest["machine"].as_str(), Some("q35"), "flags win");
        assert_eq!(guest["vcpus"].as_integer(), Some(2), "the overlay adds");
        assert_eq!(
            guest["cmdline"].as_str(),
            Some("console=ttyS0 plover.ip=10.77.0.100/24")
        );
        assert_eq!(
            config["policy"]["name"].as_str(),
            Some("hybrid"),
            "the rest stays"
        );
        assert_eq!(config["policy"]["slot_max_ms"].as_integer(), Some(20));
        assert_eq!(config["group"]["me"].as_integer(), Some(1));
        let key = |name| config["group"].get(name).and_then(Value::as_str);
        assert_eq!(key("trust_file"), Some("/trusted"));
        assert!(key("key_file").is_some_and(|key| key.ends_with("replica.key")));
        let [first, second] = [&config["disk"][0], &config["disk"][1]];
        assert_eq!(first["path"].as_str(), Some("/var/d.raw"));
        assert_eq!(first["bus"].as_str(), Some("virtio"));
        assert_eq!(second["bus"].as_str(), Some("ide"));
        assert_eq!(second["readonly"].as_bool(), Some(true));
        assert_eq!(
            config["group"]["replica"][2]["address"].as_str(),
            Some("10.77.1.12:7700")
        );
        // The lab passes on a key that no replica knows. The replica names it when it refuses.
        assert_eq!(config["debug"]["x"].as_integer(), Some(1));
    }

    #[test]
    fn links_have_keys_unless_they_are_to_be_plain() {
        let plain = config(&Options::default(), "[group]\nplaintext = true");
        assert!(!plain["group"].as_table().unwrap().contains_key("key_file"));
    }

    #[test]
    fn the_guests_are_kept_apart_unless_they_are_placed_otherwise() {
        let any_cpu = Options {
            any_cpu: true,
            ..Options::default()
        };
        let leader = |options: &Options, overlay: &str| {
            let host = config(options, overlay).get("host")?.clone();
            host["leader"]["guest"][0].as_integer()
        };
        let one = Options::default();
        assert_eq!(leader(&one, ""), Some(0));
        assert_eq!(leader(&one, "[host.leader]\nguest = [1]"), Some(1));
        assert_eq!(leader(&any_cpu, ""), None);
        assert_eq!(leader(&one, "[guest]\nvcpus = 2"), None, "too few");
    }

    #[test]
    fn a_firmware_starts_the_disk_and_not_the_kernel() {
        let with = |firmware, machine: Option<&str>| {
            let options = Options {
                uefi: firmware == Some(Firmware::Uefi),
                bios: firmware == Some(Firmware::Bios),
                machine: machine.map(Into::into),
                ..Options::default()
            };
            config(&options, "")["guest"].as_table().unwrap().clone()
        };
        let uefi = with(Some(Firmware::Uefi), None);
        assert_eq!(uefi["firmware"].as_str(), Some("uefi"));
        assert_eq!(uefi["machine"].as_str(), Some("q35"));
        for key in ["kernel", "initrd", "cmdline"] {
            assert!(!uefi.contains_key(key), "{key}");
        }
        let bios = with(Some(Firmware::Bios), Some("pc"));
        assert_eq!(bios["firmware"].as_str(), Some("bios"));
        assert_eq!(bios["machine"].as_str(), Some("pc"));
        assert!(with(None, None).contains_key("kernel"));
    }

    #[test]
    fn the_overlay_does_not_move_a_replica() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overlay");
        for (text, named) in [
            ("[paths]\nrun_dir = '/'", "sets paths"),
            ("[group]\nme = 2", "group.me"),
            ("[policy]\nname = 'none'", "policy.name"),
            ("[group", "not TOML"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", read_overlay(&path).unwrap_err());
            assert!(
                error.contains(named) && error.contains("/overlay"),
                "{error}"
            );
        }
        std::fs::write(&path, "[group]\ntimeout_ms = 100").unwrap();
        assert_eq!(
            read_overlay(&path).unwrap()["group"]["timeout_ms"].as_integer(),
            Some(100)
        );
        assert!(format!("{:#}", read_overlay(Path::new("/none")).unwrap_err()).contains("/none"));
    }
}
