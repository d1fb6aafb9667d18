//! `plover init`: writes the configurations of a new group.

use crate::output;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use plover_node::ReplicaConfig;
use plover_types::Mac;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The contents of the configurations. On a terminal, a missing option without a default is asked for.
#[derive(Debug, Args)]
pub struct InitOptions {
    /// The group's name, such as the guest's.
    #[arg(long)]
    name: Option<String>,
    /// The hosts' addresses on the network between the replicas; the first one boots the guest. Three, or two without a
    /// witness.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    hosts: Vec<IpAddr>,
    /// The port on which replicas listen for each other.
    #[arg(long, default_value_t = 7700)]
    port: u16,
    /// Each host's copy of the guest's disk: a raw image or a block device.
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// The disk's size, if FILE is not on this host.
    #[arg(long, value_name = "MIB")]
    disk_mib: Option<u64>,
    /// The guest's memory.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    mem_mib: u32,
    /// The guest's processors.
    #[arg(long, default_value_t = 1)]
    vcpus: u32,
    /// Boot by UEFI, not by SeaBIOS.
    #[arg(long)]
    uefi: bool,
    /// The guest's MAC address, if it has one already. If not, a random one is made.
    #[arg(long)]
    mac: Option<Mac>,
    /// The TAP device that leads to the clients.
    #[arg(long, default_value = "guest0")]
    tap: String,
    /// The hosts' device towards the clients, such as eth0. A leader that loses it hands the guest over.
    #[arg(long, value_name = "DEVICE")]
    uplink: Option<String>,
    /// The directory for the configurations.
    #[arg(long, value_name = "DIR", default_value = ".")]
    to: PathBuf,
}

/// The answers.
struct Group {
    name: String,
    hosts: Vec<IpAddr>,
    disk: PathBuf,
    disk_mib: u64,
    mac: Mac,
}

/// Writes one file a host, and says what to do with them.
pub fn run(options: &InitOptions) -> Result<ExitCode> {
    let group = Group::of(options)?;
    let files: Vec<PathBuf> = (0..group.hosts.len())
        .map(|me| options.to.join(format!("{}-{me}.toml", group.name)))
        .collect();
    std::fs::create_dir_all(&options.to)
        .with_context(|| format!("cannot create {}", options.to.display()))?;
    for (me, file) in files.iter().enumerate() {
        let written = write_new(file, &group.configuration(options, me)).and_then(|()| {
            let checked = ReplicaConfig::load(file).map(drop);
            checked.inspect_err(|_| drop(std::fs::remove_file(file)))?;
            Ok(())
        });
        if let Err(error) = written {
            for made in &files[..me] {
                let _ = std::fs::remove_file(made);
            }
            return Err(error);
        }
    }
    output::print(group.next_steps(options, &files))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a file that must not exist yet.
fn write_new(file: &Path, text: &str) -> Result<()> {
    let made = File::create_new(file).with_context(|| {
        format!(
            "cannot write {}: choose another --to or --name, or remove it",
            file.display()
        )
    });
    Ok(made?.write_all(text.as_bytes())?)
}

impl Group {
    fn of(options: &InitOptions) -> Result<Self> {
        let name = match &options.name {
            Some(name) => name.clone(),
            None => ask("The group's name", "--name", Some("guest"))?,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        ensure!(
            !name.is_empty() && name.chars().all(fits),
            "the name \"{name}\" is part of file names: use letters, digits, - and _"
        );
        let mut hosts = options.hosts.clone();
        if hosts.is_empty() {
            for place in ["first", "second", "third"] {
                let question = format!("Address of the {place} host");
                let address = ask(&question, "--hosts A,B,C", None)?;
                let address = address.parse();
                hosts.push(address.context("an address looks like 192.0.2.10")?);
            }
        }
        ensure!(
            matches!(hosts.len(), 2 | 3),
            "{} host(s) named with --hosts: a group has three, or two without a witness",
            hosts.len()
        );
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
        let mac = match options.mac {
            Some(mac) => mac,
            None => random_mac()?,
        };
        Ok(Self {
            name,
            hosts,
            disk,
            disk_mib,
            mac,
        })
    }

    /// The configuration of replica `me`.
    fn configuration(&self, options: &InitOptions, me: usize) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let path = |path: &Path| quoted(&path.to_string_lossy());
        let mut text = format!(
            "# Replica {me} of the group {}. The other hosts' files differ in group.me alone.\n\
             # Every key: docs/keys.md.\n\n[group]\nname = {}\nme = {me}\nreplica = [\n",
            self.name,
            quoted(&self.name)
        );
        for (id, host) in self.hosts.iter().enumerate() {
            let address = SocketAddr::new(*host, options.port);
            let _ = writeln!(text, "    {{ id = {id}, address = \"{address}\" }},");
        }
        let firmware = if options.uefi { "uefi" } else { "bios" };
        let _ = write!(
            text,
            "]\n\n[guest]\nmachine = \"q35\"\nfirmware = \"{firmware}\"\nvcpus = {}\nmem_mib = {}\n\
             mac = \"{}\"             # on no other machine of its network\n\n\
             [[disk]]\npath = {}\nsize_mib = {}\n\n[net]\ntap = {}\n",
            options.vcpus,
            options.mem_mib,
            self.mac,
            path(&self.disk),
            self.disk_mib,
            quoted(&options.tap),
        );
        if let Some(uplink) = &options.uplink {
            let _ = writeln!(text, "uplink = {}", quoted(uplink));
        }
        if self.hosts.len() == 2 {
            // The default policy needs a majority.
            text += "\n[policy]\nname = \"colo\"\n";
        }
        let _ = write!(
            text,
            "\n[paths]\nstate_dir = {}\nrun_dir = {}\n",
            quoted(&format!("/var/lib/plover/{}", self.name)),
            quoted(&format!("/run/plover/{}", self.name)),
        );
        text
    }

    fn next_steps(&self, options: &InitOptions, files: &[PathBuf]) -> String {
        let target = format!("/etc/plover/{}.toml", self.name);
        let mut text = String::from("written:\n");
        for (file, host) in files.iter().zip(&self.hosts) {
            let _ = writeln!(text, "  {}, for {host}", file.display());
        }
        text += "\nnext, as root:\n1. copy each file to its host:\n";
        for (file, host) in files.iter().zip(&self.hosts) {
            let _ = writeln!(text, "     scp {} root@{host}:{target}", file.display());
        }
        let (disk, hosts) = (self.disk.display(), &self.hosts);
        let tap = &options.tap;
        let _ = write!(
            text,
            "2. on each host, make the TAP device and connect it to the clients' bridge:\n     \
             ip tuntap add {tap} mode tap user plover && ip link set {tap} master br0 up\n\
             3. on {} alone, put the guest's image at {disk}; the others get its content:\n     \
             install -o plover IMAGE {disk}\n\
             4. on each host, look as the service's user whether something is missing:\n     \
             runuser -u plover -- plover check --config {target}\n\
             5. on each host, start the replica:\n     systemctl enable --now plover@{}\n   \
             or, without the Debian package:\n     plover replica --config {target}\n",
            hosts[0], self.name,
        );
        text
    }
}

/// The size of an image on this host, if it is there.
fn size_mib(disk: &Path) -> Result<Option<u64>> {
    use std::io::{Seek, SeekFrom};
    let Ok(mut file) = File::open(disk) else {
        return Ok(None);
    };
    // Of a block device, the end tells its size.
    let bytes = file
        .seek(SeekFrom::End(0))
        .with_context(|| format!("cannot ask for the size of {}", disk.display()))?;
    ensure!(
        bytes > 0 && bytes % (1 << 20) == 0,
        "{} has {bytes} bytes, which are no whole MiB: `truncate -s %1M {}` fills the last one up",
        disk.display(),
        disk.display()
    );
    Ok(Some(bytes >> 20))
}

/// An address of the range that QEMU uses.
fn random_mac() -> Result<Mac> {
    let mut low = [0; 3];
    File::open("/dev/urandom")?.read_exact(&mut low)?;
    Ok(Mac([0x52, 0x54, 0x00, low[0], low[1], low[2]]))
}

/// Asks on the terminal. Without one, or without an answer, says which option is missing.
fn ask(question: &str, option: &str, usual: Option<&str>) -> Result<String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        bail!("{} is missing: give {option}", question.to_lowercase());
    }
    let hint = usual.map_or_else(String::new, |usual| format!(" [{usual}]"));
    output::print(format_args!("{question}{hint}: "))?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match (answer.trim(), usual) {
        ("", Some(usual)) => Ok(usual.into()),
        ("", None) => bail!("{} is missing: give {option}", question.to_lowercase()),
        (answer, _) => Ok(answer.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

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
            let config = ReplicaConfig::load(&dir.join(format!("shop-{me}.toml"))).unwrap();
            assert_eq!((config.group.me, config.group.replica.len()), (me, 3));
            assert_eq!(config.disk[0].path, Path::new("/no/disk \"1\".raw"));
            assert_eq!(config.disk[0].size_mib, Some(64));
        }
        std::fs::remove_file(dir.join("shop-0.toml")).unwrap();
        let error = run(&options(&words)).unwrap_err();
        assert!(format!("{error:#}").contains("shop-1.toml"), "{error:#}");
        assert!(!dir.join("shop-0.toml").exists(), "all or none");
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
            "--to",
            dir.to_str().unwrap(),
        ];
        run(&options(&words)).unwrap();
        ReplicaConfig::load(&dir.join("two-1.toml")).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |words: &[&str]| format!("{:#}", Group::of(&options(words)).err().unwrap());
        assert!(refused(&["--name", "a/b"]).contains("letters"));
        assert!(refused(&["--name", "a", "--hosts", "192.0.2.1"]).contains("1 host(s)"));
        let relative = ["--name", "a", "--hosts", HOSTS, "--disk", "disk.raw"];
        assert!(refused(&relative).contains("path from /"));
    }
}
