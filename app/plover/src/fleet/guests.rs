//! The guests of a folder, and the cluster's node for each of their hosts.

use crate::capacity;
use anyhow::{Context, Result, bail, ensure};
use plover_node::ReplicaConfig;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A guest, as the file of one of its hosts describes it.
#[derive(Debug)]
pub struct Guest {
    /// The file's name without its ending: each host has its own of this name.
    pub file: String,
    /// The group's name.
    pub name: String,
    /// Its members by the file, and where they are.
    pub members: Vec<(u8, IpAddr)>,
    /// Its spare hosts, and where they listen.
    pub spares: Vec<(u8, SocketAddr)>,
    /// Neither of its two members goes on before the other one is known to be off.
    pub fencing: bool,
    /// The guest's memory.
    pub mem_mib: u64,
    /// The memory that each of its replicas takes.
    pub needs_mib: u64,
}

/// Reads the configuration files of a folder.
///
/// # Errors
/// There is none, one cannot be read, or two are of the same group.
pub fn read(dir: &Path) -> Result<Vec<Guest>> {
    let entries = std::fs::read_dir(dir)
        .with_context(|| format!("cannot read the folder {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    ensure!(
        !files.is_empty(),
        "no guest is in {}: put the configuration file of one of its hosts there, as NAME.toml",
        dir.display()
    );
    let mut guests: BTreeMap<String, Guest> = BTreeMap::new();
    for path in files {
        let config = ReplicaConfig::load(&path)?;
        let file = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let guest = Guest {
            file,
            name: config.group.name.clone(),
            members: config
                .group
                .replica
                .iter()
                .map(|it| (it.id, it.address.ip()))
                .collect(),
            spares: config
                .group
                .spare
                .iter()
                .map(|it| (it.id, it.address))
                .collect(),
            fencing: config.group.fencing,
            mem_mib: config.guest.mem_mib.into(),
            needs_mib: capacity::of_replica(&config),
        };
        // Pacemaker's configuration is XML, and the name is the resource's id there.
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        ensure!(
            guest
                .name
                .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && guest.name.chars().all(fits),
            "{}: Pacemaker takes no resource \"{}\": give a group.name that begins with a letter or _ and has letters, digits, -, _ \
             and . only, the same on all hosts",
            path.display(),
            guest.name
        );
        ensure!(
            guest.members.len() > 1,
            "{}: the group \"{}\" has one replica, so there is nothing to place: leave the file out",
            path.display(),
            guest.name
        );
        ensure!(
            !config.group.is_spare(),
            "{} is the file of a spare host (group.me = {}): put that of a member there",
            path.display(),
            config.group.me
        );
        if let Some(other) = guests.get(&guest.name) {
            bail!(
                "{} and {}.toml are both of the group \"{}\": keep the file of one host for each guest",
                path.display(),
                other.file,
                guest.name
            );
        }
        guests.insert(guest.name.clone(), guest);
    }
    for name in guests.keys() {
        let mut ends = ENDS.into_iter().map(|end| format!("{name}{end}"));
        if let Some(other) = ends.find(|other| guests.contains_key(other)) {
            bail!(
                "\"{other}\" is the name of something that the cluster has of the group \"{name}\": give one of them another group.name"
            );
        }
    }
    Ok(guests.into_values().collect())
}

/// Attributes of nodes and ids of resources are a guest's name with one of these behind it.
const ENDS: [&str; 13] = [
    "-awaits",
    "-lacks",
    "-protected",
    "-spare",
    "-member",
    "-members",
    "-clone",
    "-meta",
    "-parameters",
    "-start",
    "-stop",
    "-monitor",
    "-notify",
];

/// The node at an address: `ADDRESS=NODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOf {
    address: IpAddr,
    node: String,
}

impl FromStr for NodeOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || "give an address and the name of its node, such as 192.0.2.10=alpha".to_owned();
        let (address, node) = text.split_once('=').ok_or_else(form)?;
        ensure_name(node).map_err(|_| form())?;
        Ok(Self {
            address: address.parse().map_err(|_| form())?,
            node: node.into(),
        })
    }
}

fn ensure_name(node: &str) -> Result<()> {
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ensure!(!node.is_empty() && node.chars().all(is_of_a_name));
    Ok(())
}

/// The nodes of the cluster by their addresses.
#[derive(Debug, Default)]
pub struct Hosts(BTreeMap<IpAddr, String>);

impl Hosts {
    /// The nodes that `corosync-cmapctl` prints, on all rings, and over these what the operator says.
    pub fn new(cmap: &str, said: &[NodeOf]) -> Self {
        // nodelist.node.0.ring0_addr (str) = 192.0.2.10
        let fields = cmap.lines().filter_map(|line| {
            let (key, value) = line
                .strip_prefix("nodelist.node.")?
                .split_once(" (str) = ")?;
            let (number, key) = key.split_once('.')?;
            Some((number, key, value))
        });
        let named = |of: &str| {
            let mut names = fields
                .clone()
                .filter(|(number, key, _)| *number == of && *key == "name");
            names.next().map(|(_, _, name)| name.to_owned())
        };
        let rings = fields.clone().filter(|(_, key, _)| key.starts_with("ring"));
        let mut hosts: BTreeMap<_, _> = rings
            .filter_map(|(number, _, address)| Some((address.parse().ok()?, named(number)?)))
            .collect();
        hosts.extend(said.iter().map(|it| (it.address, it.node.clone())));
        Self(hosts)
    }

    /// The nodes at these addresses of a guest.
    ///
    /// # Errors
    /// One of them is not known.
    pub fn of(&self, guest: &Guest, addresses: impl Iterator<Item = IpAddr>) -> Result<Vec<&str>> {
        let node = |address: IpAddr| {
            let known = self.0.get(&address).map(String::as_str);
            known.with_context(|| {
                format!(
                    "guest {}: no node of the cluster has the address {address}: name it with --node {address}=NODE",
                    guest.name
                )
            })
        };
        addresses.map(node).collect()
    }
}
