//! `plover init`: writes the configurations of a new group.

pub mod copy;
pub mod group;
mod seed;

use crate::import::domain::image_bytes;
use crate::import::hook::quoted;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use group::{Files, Group, GroupOptions, Way, bytes_of, write_new};
use plover_disk::import::Format;
use plover_types::Mac;
use plover_vm::Firmware;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The memory of a guest of which nothing else is said.
const MEM_MIB: u32 = 2048;

/// The contents of the configurations. On a terminal, a missing option without a default is asked for.
#[derive(Debug, Args)]
pub struct InitOptions {
    #[command(flatten)]
    group: GroupOptions,
    /// Each host's copy of the guest's disk: a raw image or a block device.
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// The disk's size, if FILE is not on this host.
    #[arg(long, value_name = "MIB")]
    disk_mib: Option<u64>,
    /// The image that the disk is made of by one of the printed steps, such as a distribution's cloud image: in any format that
    /// qemu-img reads.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// cloud-init's user data, by which a cloud image configures itself at its first boot, such as a file that begins with
    /// `#cloud-config`. The guest gets it on a small disk of its own, which it cannot write.
    #[arg(long, value_name = "FILE")]
    cloud_init: Option<PathBuf>,
    /// The guest's network configuration for cloud-init, version 2. Without it the guest asks DHCP.
    #[arg(long, value_name = "FILE", requires = "cloud_init")]
    network_config: Option<PathBuf>,
    /// The guest's memory.
    #[arg(long, value_name = "MIB", default_value_t = MEM_MIB)]
    mem_mib: u32,
    /// The guest's processors.
    #[arg(long, default_value_t = 1)]
    vcpus: u32,
    /// Boot by UEFI, not by SeaBIOS.
    #[arg(long)]
    uefi: bool,
    /// Boot by UEFI with Secure Boot and Microsoft's keys.
    #[arg(long, conflicts_with = "uefi")]
    secure_boot: bool,
    /// The guest's MAC address, if it has one already. If not, a random one is made.
    #[arg(long)]
    mac: Option<Mac>,
}

impl InitOptions {
    /// A guest of a cloud image, with defaults for everything that has one.
    pub fn of_cloud_image(
        group: GroupOptions,
        disk: PathBuf,
        disk_mib: u64,
        image: PathBuf,
        user_data: PathBuf,
    ) -> Self {
        Self {
            group,
            disk: Some(disk),
            disk_mib: Some(disk_mib),
            image: Some(image),
            cloud_init: Some(user_data),
            network_config: None,
            mem_mib: MEM_MIB,
            vcpus: 1,
            uefi: false,
            secure_boot: false,
            mac: None,
        }
    }
}

/// Writes the files of each host, and says what to do with them.
pub fn run(options: &InitOptions) -> Result<ExitCode> {
    let (mut group, disk) = group_of(options)?;
    let seed = match &options.cloud_init {
        Some(user_data) => Some(Seed::of(&mut group, options, user_data)?),
        None => None,
    };
    if let Some(seed) = &seed {
        // User data often has secrets.
        write_new(&seed.file, &seed.content, 0o600)?;
    }
    let files = group.write().inspect_err(|_| {
        if let Some(seed) = &seed {
            let _ = std::fs::remove_file(&seed.file);
        }
    })?;
    let copied = match options.group.copy {
        true => copy_all(&group, &files, seed.as_ref()).map(|()| true),
        false => Ok(false),
    };
    let is_copied = copied.as_ref().is_ok_and(|is_copied| *is_copied);
    let mut place = image_step(options, &group, &disk);
    if let Some(seed) = seed.as_ref().filter(|_| !is_copied) {
        let file = quoted(&seed.file.to_string_lossy());
        let path = seed.path.display();
        place += "   and on every host the disk for cloud-init, with the secrets that are in the user data:\n";
        for host in &group.hosts {
            let _ = writeln!(
                place,
                "     ssh root@{host} \"umask 077; runuser -u plover -- tee {path} >/dev/null\" < {file}",
            );
        }
    }
    let others: Vec<PathBuf> = seed.into_iter().map(|seed| seed.file).collect();
    output::print(group.next_steps(&files, &others, &place, is_copied))?;
    copied.map(|_| ExitCode::SUCCESS)
}

/// Gives all hosts their files.
fn copy_all(group: &Group<'_>, files: &Files, seed: Option<&Seed>) -> Result<()> {
    if let Some(seed) = seed {
        copy::put(&group.hosts, &seed.content, &seed.path)?;
    }
    copy::copy(files, &group.hosts)
}

/// The step that puts the guest's disk in place.
fn image_step(options: &InitOptions, group: &Group<'_>, disk: &Path) -> String {
    let (host, at) = (group.hosts[0], disk.display());
    if disk.starts_with("/dev") {
        let image = options.image.as_deref().unwrap_or(Path::new("IMAGE"));
        return format!(
            "on every host, let the service have the block device {at}, as docs/install.md says: a udev rule with \
             OWNER=\"plover\",\n   and a line DeviceAllow={at} rw by `systemctl edit plover@{}`. On {host} alone, put the guest's \
             image on it; the others get its content:\n     qemu-img convert -n -f {} -O raw {} {at}      # an image that you trust\n",
            group.name,
            Format::of_name(image).unwrap_or(Format::Raw).name(),
            quoted(&image.to_string_lossy())
        );
    }
    let elsewhere = match disk.parent() {
        Some(folder) if !disk.starts_with("/var/lib/plover") => format!(
            "   and on every host a line ReadWritePaths={} by `systemctl edit plover@{}`, below [Service]\n",
            folder.display(),
            group.name
        ),
        _ => String::new(),
    };
    let image = options.image.as_deref().unwrap_or(Path::new("IMAGE"));
    let size = options
        .disk_mib
        .map_or_else(String::new, |mib| format!(" --size {mib}M"));
    format!(
        "on {host} alone, put the guest's image at {at}; the others get its content:\n     plover disk import {} {}{size}\n{elsewhere}",
        quoted(&image.to_string_lossy()),
        quoted(&disk.to_string_lossy())
    )
}

/// cloud-init's disk.
struct Seed {
    content: Vec<u8>,
    /// Where it is written to here.
    file: PathBuf,
    /// Where it is on each host.
    path: PathBuf,
}

impl Seed {
    /// Makes it, and gives it to the guest.
    fn of(group: &mut Group<'_>, options: &InitOptions, user_data: &Path) -> Result<Self> {
        let instance = format!("{}-{}", group.name, random_mac()?);
        let network = options.network_config.as_deref();
        let content = seed::make(user_data, network, &instance, &group.name)?;
        let path = format!("/var/lib/plover/{}-cloud-init.raw", group.name);
        let mib = i64::try_from(content.len() >> 20).context("user data is small")?;
        group.disks.push(vec![
            ("path".into(), path.as_str().into()),
            ("size_mib".into(), mib.into()),
            ("readonly".into(), true.into()),
        ]);
        Ok(Self {
            content,
            file: group.file("cloud-init.raw"),
            path: path.into(),
        })
    }
}

/// The group, and the guest's disk.
fn group_of(options: &InitOptions) -> Result<(Group<'_>, PathBuf)> {
    let name = options.group.name(None)?;
    let hosts = options.group.hosts()?;
    let disk = match &options.disk {
        Some(disk) => disk.clone(),
        None => {
            let usual = format!("/var/lib/plover/{name}.raw");
            ask("The guest's disk", "--disk", Some(&usual))?.into()
        }
    };
    ensure!(
        disk.is_absolute(),
        "the disk {} needs a path from / on, which is the same on all hosts",
        disk.display()
    );
    ensure!(
        options.image.is_none() || options.disk_mib.is_some(),
        "the disk's size is missing: give --disk-mib, at least as much as `qemu-img info` says of the image"
    );
    let disk_mib = match (options.disk_mib, size_mib(&disk)?) {
        (Some(said), Some(found)) if said != found => bail!(
            "{} has {found} MiB here, and --disk-mib says {said}",
            disk.display()
        ),
        (said, found) => match said.or(found) {
            Some(mib) => mib,
            None => ask("Its size in MiB", "--disk-mib", None)?
                .parse()
                .context("a size in MiB is a number")?,
        },
    };
    // It may be on the first host only, or of a format whose size only `qemu-img` knows.
    let is_known =
        |image: &&Path| Format::of_name(image).is_none_or(|format| format.name() == "qcow2");
    let image = options.image.as_deref().filter(is_known);
    if let Some((image, Ok(bytes))) = image.map(|image| (image, image_bytes(image))) {
        let mib = bytes.div_ceil(1 << 20);
        ensure!(
            mib <= disk_mib,
            "the image {} has {mib} MiB, and --disk-mib says {disk_mib}: the guest would lose its end",
            image.display()
        );
    }
    let mac = match options.mac {
        Some(mac) => mac,
        None => random_mac()?,
    };
    let mut group = Group::new(&options.group, name, hosts);
    let firmware = match (options.uefi, options.secure_boot) {
        (_, true) => Firmware::UefiSecure,
        (true, false) => Firmware::Uefi,
        (false, false) => Firmware::Bios,
    };
    let key = |key: &str, value: toml::Value| (key.to_owned(), value);
    let size = i64::try_from(disk_mib).context("a disk has at most 8 TiB")?;
    group.guest = vec![
        key("machine", "q35".into()),
        key("firmware", firmware.name().into()),
        key("vcpus", options.vcpus.into()),
        key("mem_mib", options.mem_mib.into()),
        key("mac", mac.to_string().into()),
    ];
    group.ways = vec![match &options.group.bridges()[..] {
        [] => Way::Bridge("br0".into()),
        [none] if none.is_empty() => Way::ByHand(format!("ip link set {} up", options.group.tap)),
        [bridge] => Way::Bridge(bridge.clone()),
        several => bail!(
            "{} bridges are named with --bridge, and the guest has one network card: name one, and add a [[nic]] to the \
             configurations for each of the others",
            several.len()
        ),
    }];
    group.disks = vec![vec![
        key("path", disk.to_string_lossy().as_ref().into()),
        key("size_mib", size.into()),
    ]];
    Ok((group, disk))
}

/// The size of an image on this host in whole MiB, if it is there.
fn size_mib(disk: &Path) -> Result<Option<u64>> {
    let Some(bytes) = bytes_of(disk)? else {
        return Ok(None);
    };
    ensure!(
        bytes % (1 << 20) == 0,
        "{} has {bytes} bytes, which are no whole MiB: `truncate -s %1M {}` fills the last one up",
        disk.display(),
        disk.display()
    );
    Ok(Some(bytes >> 20))
}

/// An address of the range that QEMU uses.
pub fn random_mac() -> Result<Mac> {
    let mut low = [0; 3];
    File::open("/dev/urandom")?.read_exact(&mut low)?;
    Ok(Mac([0x52, 0x54, 0x00, low[0], low[1], low[2]]))
}

/// Asks on the terminal. Without one, or without an answer, says which option is missing.
fn ask(question: &str, option: &str, usual: Option<&str>) -> Result<String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        bail!("{} is missing: give {option}", uncapitalized(question));
    }
    let hint = usual.map_or_else(String::new, |usual| format!(" [{usual}]"));
    output::print(format_args!("{question}{hint}: "))?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match (answer.trim(), usual) {
        ("", Some(usual)) => Ok(usual.into()),
        ("", None) => bail!("{} is missing: give {option}", uncapitalized(question)),
        (answer, _) => Ok(answer.into()),
    }
}

fn uncapitalized(question: &str) -> String {
    let mut letters = question.chars();
    let first = letters.next().into_iter().flat_map(char::to_lowercase);
    first.chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use plover_fabric::Keys;
    use plover_node::ReplicaConfig;
    use plover_types::ReplicaId;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        options: InitOptions,
    }

    fn options(words: &[&str]) -> InitOptions {
        let words = ["init"].iter().chain(words);
        Alone::try_parse_from(words).unwrap().options
    }

    fn dir() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("plover-init-{}", random_mac().unwrap()));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    const HOSTS: &str = "192.0.2.10,192.0.2.11,192.0.2.12";

    #[test]
    fn three_configurations_are_written_and_never_overwritten() {
        let dir = dir();
        let to = dir.to_str().unwrap();
        let words = [
            "--name",
            "shop",
            "--hosts",
            HOSTS,
            "--disk",
            "/no/disk \"1\".raw",
            "--disk-mib",
            "64",
            "--uplink",
            "eth0",
            "--to",
            to,
        ];
        run(&options(&words)).unwrap();
        for me in 0..3 {
            let folder = dir.join(format!("shop-{me}"));
            let config = ReplicaConfig::load(&folder.join("shop.toml")).unwrap();
            assert_eq!(config.net.bridge.as_deref(), Some("br0"));
            assert_eq!((config.group.me, config.group.replica.len()), (me, 3));
            assert_eq!(config.disk[0].path, Path::new("/no/disk \"1\".raw"));
            assert_eq!(config.disk[0].size_mib, Some(64));
            // As they lie on the host.
            let (trusted, ids) = (folder.join("shop.trust"), (0..3).map(ReplicaId));
            let key = folder.join("shop.key");
            Keys::load(&key, &trusted, ReplicaId(me), ids).unwrap();
        }
        // The error names the file in the way, and no other file is left.
        let is_left = |file: &str| dir.join(file).exists();
        std::fs::remove_dir_all(dir.join("shop-0")).unwrap();
        let error = run(&options(&words)).unwrap_err();
        assert!(
            format!("{error:#}").contains("shop-1/shop.toml"),
            "{error:#}"
        );
        assert!(!is_left("shop-0"));
        for me in 1..3 {
            std::fs::remove_file(dir.join(format!("shop-{me}/shop.toml"))).unwrap();
        }
        let error = run(&options(&words)).unwrap_err();
        assert!(
            format!("{error:#}").contains("shop-1/shop.key"),
            "{error:#}"
        );
        assert!(!is_left("shop-0") && !is_left("shop-1/shop.toml"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_example_of_the_package_is_a_configuration() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("package/shop-db.toml");
        let config = ReplicaConfig::load(&file).unwrap();
        assert_eq!(
            (&config.group.name[..], config.group.replica.len()),
            ("shop-db", 3)
        );
    }

    /// Two hosts cannot agree on one order of inputs.
    #[test]
    fn two_hosts_get_a_policy_that_two_may_have() {
        let dir = dir();
        let words = [
            "--name",
            "two",
            "--hosts",
            "192.0.2.10,192.0.2.11",
            "--disk",
            "/no/disk",
            "--disk-mib",
            "64",
            "--plaintext",
            "--to",
            dir.to_str().unwrap(),
        ];
        run(&options(&words)).unwrap();
        let config = ReplicaConfig::load(&dir.join("two-1/two.toml")).unwrap();
        assert!(config.group.plaintext && !dir.join("two-1/two.key").exists());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |words: &[&str]| format!("{:#}", group_of(&options(words)).err().unwrap());
        assert!(refused(&["--name", "a/b"]).contains("letters"));
        assert!(refused(&["--name", "a", "--hosts", "192.0.2.1"]).contains("1 host(s)"));
        let relative = ["--name", "a", "--hosts", HOSTS, "--disk", "disk.raw"];
        assert!(refused(&relative).contains("path from /"));
    }
}
