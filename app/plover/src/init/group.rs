//! The files of a new group, and what to do with them: for `plover init` and `plover import`.

use super::ask;
use crate::import::hook::quoted;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use plover_fabric::keys::make_all;
use plover_node::ReplicaConfig;
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A group's hosts, network and files: all but its guest.
#[derive(Clone, Debug, Args)]
pub struct GroupOptions {
    /// The group's name, such as the guest's.
    #[arg(long)]
    pub name: Option<String>,
    /// The hosts' addresses on the network between the replicas; the first one boots the guest. Three, or two without a
    /// witness.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    hosts: Vec<IpAddr>,
    /// The port on which replicas listen for each other.
    #[arg(long, default_value_t = 7700)]
    port: u16,
    /// The TAP device that leads to the clients.
    #[arg(long, default_value = "guest0")]
    pub tap: String,
    /// The bridge of each host that leads to the clients, of which the service makes the TAP device a port; br0 if it is not
    /// named, and no domain names another. Of a guest with several network cards, one for each: br0,br1. With `plover init` an
    /// empty one ('') means that the TAP device is made by hand.
    #[arg(long, value_name = "BRIDGE")]
    pub bridge: Option<String>,
    /// The hosts' device towards the clients, such as eth0. A leader that loses it hands the guest over.
    #[arg(long, value_name = "DEVICE")]
    uplink: Option<String>,
    /// Make no keys: the links between the hosts are neither encrypted nor authenticated.
    #[arg(long)]
    plaintext: bool,
    /// The directory for the configurations and the keys, in a folder for each host.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub to: PathBuf,
    /// Copy the folders to their hosts as well, by ssh as root, and remove the keys here. A file that a host has is kept.
    #[arg(long)]
    pub copy: bool,
}

/// The ending of the file with the libvirt domain that a group was imported from.
pub const ORIGINAL: &str = "domain.xml";

/// The most characters of a network device's name.
const DEVICE_NAME_MAX: usize = 15;

/// The TAP of the network card of this place, where `first` is the first card's.
pub fn tap(first: &str, place: usize) -> String {
    match place {
        0 => first.to_owned(),
        _ => format!("{first}-{place}"),
    }
}

/// A host's address as `scp` takes it.
fn in_brackets(host: &IpAddr) -> String {
    match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}

/// Keys of one table of a configuration, in the order in which they are written. A key may be dotted.
pub type Keys = Vec<(String, toml::Value)>;

/// A group to be written.
pub struct Group<'a> {
    options: &'a GroupOptions,
    pub name: String,
    pub hosts: Vec<IpAddr>,
    /// `[guest]`.
    pub guest: Keys,
    /// Each `[[disk]]`.
    pub disks: Vec<Keys>,
    /// Each `[[nic]]`, without its TAP.
    pub nics: Vec<Keys>,
    /// How each card's TAP gets to the clients' network, the first one's at first.
    pub ways: Vec<Way>,
    /// More files of each host, by their endings, and their texts.
    pub beside: Vec<(String, String)>,
}

/// How a TAP gets to the clients' network.
pub enum Way {
    /// The service makes it a port of this bridge.
    Bridge(String),
    /// By this command, which follows the one that makes it.
    ByHand(String),
}

/// The files of a group: a folder for each host, with what belongs into its /etc/plover.
pub struct Files {
    pub folders: Vec<PathBuf>,
    /// The names of the files in each folder: the configuration first, then key and public keys, if links are under TLS.
    pub names: Vec<String>,
}

impl GroupOptions {
    /// The name, of which file names are made; `usual` if none is given, or asked for if that is `None`, too.
    pub fn name(&self, usual: Option<&str>) -> Result<String> {
        let name = match (&self.name, usual) {
            (Some(name), _) => name.clone(),
            (None, Some(usual)) => usual.into(),
            (None, None) => ask("The group's name", "--name", Some("guest"))?,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        ensure!(
            name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(fits),
            "the name \"{name}\" is part of file names, and the id of a cluster's resource: give one that begins with a letter \
             and has letters, digits, - and _ with --name"
        );
        Ok(name)
    }

    /// The hosts, asked for if they are not given.
    pub fn hosts(&self) -> Result<Vec<IpAddr>> {
        let mut hosts = self.hosts.clone();
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
        if let Some(twice) = hosts
            .iter()
            .enumerate()
            .find(|(at, it)| hosts[..*at].contains(it))
        {
            bail!(
                "the host {} is named twice with --hosts: each replica needs a host of its own",
                twice.1
            );
        }
        Ok(hosts)
    }
}

impl GroupOptions {
    /// The bridges that are named, in the order of the network cards.
    pub fn bridges(&self) -> Vec<String> {
        let bridges = self.bridge.iter().flat_map(|names| names.split(','));
        bridges.map(str::to_owned).collect()
    }
}

impl<'a> Group<'a> {
    pub fn new(options: &'a GroupOptions, name: String, hosts: Vec<IpAddr>) -> Self {
        Self {
            options,
            name,
            hosts,
            guest: Keys::new(),
            disks: Vec::new(),
            nics: Vec::new(),
            ways: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Where each host keeps its replica's state.
    pub fn state_dir(&self) -> PathBuf {
        Path::new("/var/lib/plover").join(&self.name)
    }

    /// A file of this group, by its ending.
    pub fn file(&self, ending: &str) -> PathBuf {
        self.options.to.join(format!("{}.{ending}", self.name))
    }

    /// Writes configurations and keys, all of them or none.
    pub fn write(&self) -> Result<Files> {
        let options = self.options;
        let last = tap(&options.tap, self.nics.len());
        ensure!(
            last.len() <= DEVICE_NAME_MAX,
            "the TAP's name \"{last}\" is too long: Linux takes {DEVICE_NAME_MAX} characters"
        );
        let files = self.files();
        let in_all = |ending: &str| -> Vec<PathBuf> {
            let name = format!("{}.{ending}", self.name);
            let folders = files.folders.iter();
            folders.map(|folder| folder.join(&name)).collect()
        };
        let configs = in_all("toml");
        let texts = (0..self.hosts.len()).map(|me| self.configuration(me));
        let mut texts: Vec<_> = configs.iter().cloned().zip(texts).collect();
        for (ending, text) in &self.beside {
            texts.extend(in_all(ending).into_iter().map(|file| (file, text.clone())));
        }
        let undo = |made: &[PathBuf]| {
            for file in made {
                let _ = std::fs::remove_file(file);
            }
            for folder in &files.folders {
                let _ = std::fs::remove_dir(folder);
            }
        };
        write_all_new(&texts).inspect_err(|_| undo(&[]))?;
        let mut made: Vec<_> = texts.into_iter().map(|(file, _)| file).collect();
        let mut all = || -> Result<()> {
            for file in &configs {
                ReplicaConfig::load(file)?.qemu().validate()?;
            }
            if options.plaintext {
                return Ok(());
            }
            let (keys, trusted) = (in_all("key"), in_all("trust"));
            make_all(&keys, &trusted[0])?;
            made.extend(keys);
            made.push(trusted[0].clone());
            let content = std::fs::read(&trusted[0])
                .with_context(|| format!("cannot read {}", trusted[0].display()))?;
            for file in &trusted[1..] {
                write_new(file, &content, 0o644)?;
                made.push(file.clone());
            }
            Ok(())
        };
        all().inspect_err(|_| undo(&made))?;
        Ok(files)
    }

    /// The folders of the hosts, and the files that belong into each.
    fn files(&self) -> Files {
        let folder = |me| self.options.to.join(format!("{}-{me}", self.name));
        let keys: &[&str] = match self.options.plaintext {
            true => &[],
            false => &["key", "trust"],
        };
        let beside = self.beside.iter().map(|(ending, _)| ending.as_str());
        let endings = ["toml"]
            .into_iter()
            .chain(keys.iter().copied())
            .chain(beside);
        Files {
            folders: (0..self.hosts.len()).map(folder).collect(),
            names: endings
                .map(|ending| format!("{}.{ending}", self.name))
                .collect(),
        }
    }

    /// The configuration of replica `me`.
    fn configuration(&self, me: usize) -> String {
        let options = self.options;
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut text = format!(
            "# Replica {me} of the group {}. The other hosts' files differ in group.me alone.\n\
             # Every key: /usr/share/doc/plover/docs/keys.md.\n\n[group]\nname = {}\nme = {me}\nreplica = [\n",
            self.name,
            quoted(&self.name)
        );
        for (id, host) in self.hosts.iter().enumerate() {
            let address = SocketAddr::new(*host, options.port);
            let _ = writeln!(text, "    {{ id = {id}, address = \"{address}\" }},");
        }
        text += "]\n";
        if options.plaintext {
            text += "plaintext = true                        # anybody on this network reads and changes everything\n";
        } else {
            for (key, ending) in [("key_file", "key"), ("trust_file", "trust")] {
                let file = format!("/etc/plover/{}.{ending}", self.name);
                let _ = writeln!(text, "{key} = {}", quoted(&file));
            }
        }
        let tables = self.disks.iter().map(|keys| ("[[disk]]", keys));
        for (head, keys) in [("[guest]", &self.guest)].into_iter().chain(tables) {
            let _ = writeln!(text, "\n{head}");
            for (key, value) in keys {
                let note = match key.as_str() {
                    "mac" => "             # on no other machine of its network",
                    _ => "",
                };
                let _ = writeln!(text, "{key} = {value}{note}");
            }
        }
        let _ = write!(text, "\n[net]\ntap = {}\n", quoted(&options.tap));
        let bridge = |place: usize| match self.ways.get(place) {
            Some(Way::Bridge(bridge)) => format!("bridge = {}\n", quoted(bridge)),
            _ => String::new(),
        };
        text += &bridge(0);
        if let Some(uplink) = &options.uplink {
            let _ = writeln!(text, "uplink = {}", quoted(uplink));
        }
        for (place, keys) in self.nics.iter().enumerate() {
            let tap = quoted(&tap(&options.tap, place + 1));
            let _ = write!(text, "\n[[nic]]\ntap = {tap}\n{}", bridge(place + 1));
            for (key, value) in keys {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        if self.hosts.len() == 2 {
            // The default policy needs a majority, or fencing.
            text += "\n[policy]\nname = \"colo\"   # with group.fencing any: docs/pairs.md\n";
        }
        let _ = write!(
            text,
            "\n[paths]\nstate_dir = {}\nrun_dir = {}\n",
            quoted(&self.state_dir().to_string_lossy()),
            quoted(&format!("/run/plover/{}", self.name)),
        );
        text
    }

    /// The list of written files, and the next steps of an operator. `disks` is the step that puts the guest's disks in place.
    /// `others` are more files that were written. `is_copied`: each host has its files.
    pub fn next_steps(
        &self,
        files: &Files,
        others: &[PathBuf],
        disks: &str,
        is_copied: bool,
    ) -> String {
        let target = format!("/etc/plover/{}.toml", self.name);
        let mut text = String::from("written:\n");
        for (folder, host) in files.folders.iter().zip(&self.hosts) {
            let (folder, names) = (folder.display(), files.names.join(", "));
            let _ = writeln!(text, "  {folder}, for {host}: {names}");
        }
        for file in others {
            let _ = writeln!(text, "  {}", file.display());
        }
        if is_copied {
            text += match self.options.plaintext {
                true => "copied to /etc/plover of each host\n",
                false => "copied to /etc/plover of each host; the private keys are removed here\n",
            };
        }
        text += "\nnext, as root:\n";
        let mut steps = Vec::new();
        if !is_copied {
            let mut step = String::from("copy each folder's files to its host:\n");
            for (folder, host) in files.folders.iter().zip(&self.hosts) {
                let (folder, host) = (quoted(&folder.to_string_lossy()), in_brackets(host));
                let _ = writeln!(step, "     scp -p {folder}/* root@{host}:/etc/plover/");
            }
            if !self.options.plaintext {
                step += "   and remove the folders here: the .key files are each host's secret\n";
            }
            steps.push(step);
        }
        let tap = |place: usize| tap(&self.options.tap, place);
        let (mut ports, mut by_hand) = (Vec::new(), String::new());
        for (place, way) in self.ways.iter().enumerate() {
            match way {
                Way::Bridge(bridge) => ports.push(format!("{} a port of {bridge}", tap(place))),
                Way::ByHand(connect) => {
                    let tap = tap(place);
                    let _ = writeln!(
                        by_hand,
                        "     ip tuntap add {tap} mode tap user plover && {connect}"
                    );
                }
            }
        }
        if !by_hand.is_empty() {
            steps.push(format!(
                "on each host, make the TAP device and connect it to the clients' network; docs/networks.md keeps it over reboots:\n{by_hand}"
            ));
        }
        steps.push(disks.to_owned());
        steps.push(format!(
            "on each host, look as the service's user whether something is missing:\n     \
             runuser -u plover -- plover check --config {target}\n"
        ));
        let mut start = format!(
            "on each host, start the replica{}:\n     systemctl enable --now plover@{}\n   or, without the package:\n",
            match ports.as_slice() {
                [] => String::new(),
                ports => format!("; the service makes {}", ports.join(", and ")),
            },
            self.name,
        );
        if !ports.is_empty() {
            let _ = writeln!(start, "     plover tap --config {target}");
        }
        let _ = writeln!(start, "     plover replica --config {target}");
        steps.push(start);
        for (number, step) in steps.iter().enumerate() {
            let _ = write!(text, "{}. {step}", number + 1);
        }
        text
    }
}

/// Writes files that must not exist yet, all of them or none.
pub fn write_all_new(files: &[(PathBuf, String)]) -> Result<()> {
    for (made, (file, text)) in files.iter().enumerate() {
        let written = write_new(file, text.as_bytes(), 0o644);
        if written.is_err() {
            for (made, _) in &files[..made] {
                let _ = std::fs::remove_file(made);
            }
            return written;
        }
    }
    Ok(())
}

/// Writes a file that must not exist yet, with this mode but for the process' mask; its folder is made if it is missing.
pub fn write_new(file: &Path, content: &[u8], mode: u32) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut options = File::options();
    options.write(true).create_new(true).mode(mode);
    let mut made = options.open(file).with_context(|| {
        format!(
            "cannot write {}: choose another --to or --name, or move it away",
            file.display()
        )
    })?;
    // The umask of root is often one that leaves the service's user out.
    let written = made.set_permissions(Permissions::from_mode(mode));
    let written = written.and_then(|()| made.write_all(content));
    written.map_err(|error| {
        let _ = std::fs::remove_file(file);
        anyhow::Error::new(error).context(format!("cannot write {}", file.display()))
    })
}

/// The size of an image on this host, in bytes, if it is there.
pub fn bytes_of(disk: &Path) -> Result<Option<u64>> {
    use std::io::{Seek, SeekFrom};
    let Ok(mut file) = File::open(disk) else {
        return Ok(None);
    };
    // Of a block device, the end tells its size.
    let bytes = file
        .seek(SeekFrom::End(0))
        .with_context(|| format!("cannot ask for the size of {}", disk.display()))?;
    if bytes == 0 {
        bail!("{} is empty: name the guest's image", disk.display());
    }
    Ok(Some(bytes))
}
