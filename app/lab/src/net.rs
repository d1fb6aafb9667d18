//! The network of a lab: hosts, a switch and a client, out of namespaces on one machine.
//!
//! ```text
//!  namespace plover-NAME-sw                        one bridge `br0`: the switch
//!  ├── client ────── plover-NAME-client            eth0   10.77.0.1/24
//!  ├── r0-edge ───── plover-NAME-r0                edge0 ─ br0 ─ guest0 (TAP, for the guest)
//!  ├── r0-repl ────── ″                            repl0  10.77.1.10/24 (between replicas)
//!  ├── r1-edge ───── plover-NAME-r1                …
//!  ┊
//! ```
//!
//! A guest with several NICs has a network of its own for each further one ([`Topology::add_network`]): a bridge `br1` in the
//! switch and in each replica's namespace, `guest1`, `edge1`, and `eth1` of the client.
//!
//! The guest answers at 10.77.0.100 behind whichever `guest0` its frames come from; the switch
//! learns that like a real one, from the source address of frames, and a client's connection
//! follows the guest to another host.
//!
//! # Nothing of the machine changes
//! Every device is created inside a namespace and every setting is a setting of one; the
//! machine's own links, routes and sysctls stay as they are. What a lab owns follows from its
//! name alone, so [`Topology::destroy`] also removes what a crashed lab left.
//!
//! # The lab sends no frames of its own
//! Frames on `guest0` are the guest's inputs and go through consensus. So the lab makes none: no IPv6,
//! no spanning tree, no multicast snooping, and the replicas know each other's addresses from fixed
//! neighbour entries instead of asking by broadcast.
//!
//! # Whole frames with whole checksums
//! A namespace's TCP hands over segments of up to 64 KiB with the checksum left to "the
//! hardware". A TAP without negotiated offloads (`TUNSETOFFLOAD 0`, the state it is created in)
//! is not such hardware, so the kernel cuts and sums before it queues a frame on `guest0`. No
//! `ethtool` is needed for that; a test reads the TAP and checks.
//!
//! # Why the `ip` tool
//! `rtnetlink` would bring `tokio` and its threads into a program that has no other use for them. A lab
//! is made of about fifty commands, given in one batch a namespace, and that takes a tenth of a second.
//! A person can type the same commands to look at the lab or to repeat one that failed.

mod cut;
mod namespace;
mod tool;

pub use namespace::Namespace;

use crate::state::LabName;
use anyhow::{Context, Result, bail, ensure};
use plover_types::{Frame, Mac};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// The client's address.
pub const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The guest's address.
pub const GUEST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// The length of the prefix of both networks.
pub const PREFIX: u8 = 24;
/// The guest's Ethernet address.
pub const GUEST_MAC: Mac = Mac([0x52, 0x54, 0x00, 0x77, 0x00, 0x01]);
/// The TAP device in each replica's namespace.
pub const TAP: &str = "guest0";
/// The device of the replication network in each replica's namespace.
pub const REPLICATION_DEVICE: &str = "repl0";

/// The TAP device of the guest's NIC of this number, from 0.
pub fn tap(nic: u8) -> String {
    format!("guest{nic}")
}

/// The Ethernet address of the guest's NIC of this number.
pub const fn guest_mac(nic: u8) -> Mac {
    let Mac([a, b, c, d, e, f]) = GUEST_MAC;
    Mac([a, b, c, d, e, f + nic])
}

/// An address on the network of the guest's NIC of this number: the client's and the guest's end as on the first.
pub const fn on_network(nic: u8, first: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, d] = first.octets();
    let net = if nic == 0 { c } else { 10 + nic };
    Ipv4Addr::new(a, b, net, d)
}

/// A replica's address on the replication network.
pub const fn replica_ip(replica: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, 10 + replica as u8)
}

/// A replica's Ethernet address on the replication network. Locally administered.
const fn replica_mac(replica: usize) -> Mac {
    Mac([0x02, 0x00, 0x00, 0x77, 0x01, 10 + replica as u8])
}

/// The addresses and names above have no room for more.
const REPLICAS_MAX: usize = 9;

/// The namespaces of one lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    name: String,
    replicas: usize,
}

impl Topology {
    /// Creates the namespaces and plugs everything together. Needs root. Fails if any of them
    /// exists; after any failure nothing is left.
    pub fn create(name: &str, replicas: usize) -> Result<Self> {
        ensure!(
            (1..=REPLICAS_MAX).contains(&replicas),
            "a lab has 1 to {REPLICAS_MAX} replicas"
        );
        check_name(name)?;
        if !names_of(name)?.is_empty() {
            bail!("there are namespaces of a lab '{name}' already: take it down first");
        }
        let topology = Self {
            name: name.into(),
            replicas,
        };
        topology.build().inspect_err(|_| {
            // The first error is the one to report.
            let _ = Self::remove(name);
        })?;
        Ok(topology)
    }

    /// The lab `name`, if all its namespaces are there.
    pub fn open(name: &str) -> Result<Option<Self>> {
        let found = names_of(name)?;
        let count = found.iter().filter(|part| part.starts_with('r')).count();
        let whole = count > 0
            && ["sw", "client"]
                .iter()
                .all(|part| found.iter().any(|f| f == part))
            && (0..count).all(|i| found.contains(&format!("r{i}")));
        Ok(whole.then(|| Self {
            name: name.into(),
            replicas: count,
        }))
    }

    /// Whether any namespace of a lab `name` exists, even if only a crashed lab's.
    pub fn exists(name: &str) -> bool {
        names_of(name).is_ok_and(|found| !found.is_empty())
    }

    /// Removes every namespace and device of the lab, also the leftovers of a crashed one. No error if
    /// there is nothing.
    pub fn destroy(self) -> Result<()> {
        Self::remove(&self.name)
    }

    /// [`Topology::destroy`] by name, for a lab that cannot be opened any more.
    pub fn remove(name: &str) -> Result<()> {
        check_name(name)?;
        let parts = names_of(name)?;
        if parts.is_empty() {
            return Ok(());
        }
        // A namespace lives on, nameless, while a process is in it. Unplugging first makes sure that
        // even then nothing that is left can send.
        let mut result = Ok(());
        if parts.iter().any(|part| part == "sw") {
            result = unplug_all(&namespace(name, "sw"));
        }
        for part in parts {
            let deleted = tool::ip(None, &[format!("netns del {}", full_name(name, &part))]);
            result = result.and(deleted);
        }
        result
    }

    /// How many replicas it has.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// The namespace of the switch.
    pub fn switch(&self) -> Namespace {
        namespace(&self.name, "sw")
    }

    /// The namespace of the client.
    pub fn client(&self) -> Namespace {
        namespace(&self.name, "client")
    }

    /// The namespace of a replica.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn replica(&self, replica: usize) -> Namespace {
        assert!(
            replica < self.replicas,
            "no replica {replica} in a lab of {}",
            self.replicas
        );
        namespace(&self.name, &format!("r{replica}"))
    }

    fn build(&self) -> Result<()> {
        let mut namespaces = vec![self.switch(), self.client()];
        namespaces.extend((0..self.replicas).map(|i| self.replica(i)));
        let add: Vec<_> = namespaces
            .iter()
            .map(|n| format!("netns add {}", n.name()))
            .collect();
        tool::ip(None, &add)
            .context("cannot create network namespaces: this needs root and the 'ip' tool")?;
        for namespace in &namespaces {
            // Before any device exists, so that no device ever sends anything of its own.
            namespace.set_sysctls(&[
                ("net/ipv6/conf/all/disable_ipv6", "1"),
                ("net/ipv6/conf/default/disable_ipv6", "1"),
                // A switch does not look into packets, even where the machine's own do.
                ("net/bridge/bridge-nf-call-iptables", "0"),
                ("net/bridge/bridge-nf-call-arptables", "0"),
            ])?;
            tool::ip(Some(namespace), &["link set lo up".into()])?;
        }

        tool::ip(
            Some(&self.switch()),
            &[add_bridge("br0"), "link set br0 up".into()],
        )?;
        self.plug_client()?;
        (0..self.replicas).try_for_each(|replica| self.plug_replica(replica))?;
        (0..self.replicas).try_for_each(|replica| self.introduce(replica))?;
        self.add_void()
    }

    fn plug_client(&self) -> Result<()> {
        let client = self.client();
        tool::ip(
            Some(&self.switch()),
            &[
                format!(
                    "link add client type veth peer name eth0 netns {}",
                    client.name()
                ),
                "link set client master br0 up".into(),
            ],
        )?;
        tool::ip(
            Some(&client),
            &[
                format!("addr add {CLIENT_IP}/{PREFIX} dev eth0"),
                "link set eth0 up".into(),
            ],
        )
    }

    fn plug_replica(&self, replica: usize) -> Result<()> {
        let host = self.replica(replica);
        let (edge, repl) = (edge_port(replica), format!("r{replica}-repl"));
        let (ip, mac) = (replica_ip(replica), replica_mac(replica));
        tool::ip(
            Some(&self.switch()),
            &[
                format!(
                    "link add {edge} type veth peer name edge0 netns {}",
                    host.name()
                ),
                format!("link set {edge} master br0 up"),
                format!(
                    "link add {repl} type veth peer name {REPLICATION_DEVICE} address {mac} \
                     netns {}",
                    host.name()
                ),
                format!("link set {repl} master br0 up"),
            ],
        )?;
        tool::ip(
            Some(&host),
            &[
                add_bridge("br0"),
                format!("tuntap add dev {TAP} mode tap"),
                format!("link set {TAP} txqueuelen 1000 master br0 up"),
                "link set edge0 master br0 up".into(),
                "link set br0 up".into(),
                format!("addr add {ip}/{PREFIX} dev {REPLICATION_DEVICE}"),
                format!("link set {REPLICATION_DEVICE} up"),
            ],
        )?;
        // The switch must know at any time where the replicas are: a frame to an address that it
        // has forgotten is flooded, and would reach the guests.
        tool::bridge(
            &self.switch(),
            &[format!("fdb replace {mac} dev {repl} master static")],
        )
    }

    /// Makes the network of a further NIC of the guest's, of this number.
    pub fn add_network(&self, nic: u8) -> Result<()> {
        let (bridge, switch, client) = (format!("br{nic}"), self.switch(), self.client());
        let up = |device: &str| format!("link set {device} master {bridge} up");
        let mut lines = vec![
            add_bridge(&bridge),
            format!("link set {bridge} up"),
            format!(
                "link add client{nic} type veth peer name eth{nic} netns {}",
                client.name()
            ),
            up(&format!("client{nic}")),
        ];
        for replica in 0..self.replicas {
            let (host, port) = (self.replica(replica), format!("r{replica}-edge{nic}"));
            lines.push(format!(
                "link add {port} type veth peer name edge{nic} netns {}",
                host.name()
            ));
            lines.push(up(&port));
        }
        tool::ip(Some(&switch), &lines)?;
        let address = on_network(nic, CLIENT_IP);
        tool::ip(
            Some(&client),
            &[
                format!("addr add {address}/{PREFIX} dev eth{nic}"),
                format!("link set eth{nic} up"),
            ],
        )?;
        let tap = tap(nic);
        (0..self.replicas).try_for_each(|replica| {
            tool::ip(
                Some(&self.replica(replica)),
                &[
                    add_bridge(&bridge),
                    format!("tuntap add dev {tap} mode tap"),
                    format!("link set {tap} txqueuelen 1000 master {bridge} up"),
                    up(&format!("edge{nic}")),
                    format!("link set {bridge} up"),
                ],
            )
        })
    }

    /// Tells a replica the others' Ethernet addresses.
    fn introduce(&self, replica: usize) -> Result<()> {
        let peers = (0..self.replicas).filter(|peer| *peer != replica);
        let lines: Vec<_> = peers
            .map(|peer| cut::neighbour(peer, replica_mac(peer)))
            .collect();
        tool::ip(Some(&self.replica(replica)), &lines)
    }

    /// Gives the switch an entry that drops what cut links send.
    fn add_void(&self) -> Result<()> {
        tool::bridge(
            &self.switch(),
            &[format!("fdb replace {} dev br0 self local", cut::VOID)],
        )
    }
}

/// The switch's port to which a replica's `guest0` leads.
pub fn edge_port(replica: usize) -> String {
    format!("r{replica}-edge")
}

/// A bridge that forwards from the first moment and sends nothing of its own.
fn add_bridge(name: &str) -> String {
    format!("link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
}

/// Unplugs everything from the switch: deleting one end of a veth deletes the other, wherever
/// it is.
fn unplug_all(switch: &Namespace) -> Result<()> {
    let ports = || -> Result<Vec<String>> {
        let bridges = (0..Frame::NICS_MAX).map(|nic| format!("br{nic}"));
        let ports: Result<Vec<_>> = bridges.map(|it| tool::ports_of(switch, &it)).collect();
        Ok(ports?.concat())
    };
    // The kernel removes the devices of a deleted namespace a little later, perhaps just before us. So a
    // failed command is no error if nothing is left.
    let result = tool::ip_all(
        switch,
        ports()?.iter().map(|port| format!("link del {port}")),
    );
    if ports()?.is_empty() { Ok(()) } else { result }
}

/// The name of a lab is a part of commands and of file names.
fn check_name(name: &str) -> Result<()> {
    let parsed = name.parse::<LabName>();
    parsed.map(drop).map_err(anyhow::Error::msg)
}

fn full_name(lab: &str, part: &str) -> String {
    format!("plover-{lab}-{part}")
}

fn namespace(lab: &str, part: &str) -> Namespace {
    Namespace::named(full_name(lab, part))
}

/// The namespaces of the lab that exist, by the last part of their name: `sw`, `client`, `r0` ….
fn names_of(lab: &str) -> Result<Vec<String>> {
    let names = namespace::all()?;
    let mut parts: Vec<String> = names
        .iter()
        .filter_map(|name| lab_and_part(name))
        .filter(|(of, _)| *of == lab)
        .map(|(_, part)| part.to_owned())
        .collect();
    parts.sort();
    Ok(parts)
}

/// The files of these namespaces.
pub(crate) fn namespaces_of(lab: &str) -> Vec<PathBuf> {
    let parts = names_of(lab).unwrap_or_default();
    let path = |part: &String| namespace(lab, part).path();
    parts.iter().map(path).collect()
}

/// The labs of which a namespace exists.
pub(crate) fn labs() -> Vec<LabName> {
    let names = namespace::all().unwrap_or_default();
    let lab = |name: &String| lab_and_part(name)?.0.parse().ok();
    names.iter().filter_map(lab).collect()
}

/// The lab and the part of a namespace called `plover-LAB-PART`. A lab "a" and a lab "a-b" have no
/// namespace in common.
fn lab_and_part(namespace: &str) -> Option<(&str, &str)> {
    let (lab, part) = namespace.strip_prefix("plover-")?.rsplit_once('-')?;
    let is_replica = matches!(part.as_bytes(), [b'r', b'0'..=b'9']);
    (matches!(part, "sw" | "client") || is_replica).then_some((lab, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_labs_own_namespaces_are_its() {
        let lab = |text| lab_and_part(text).map(|(lab, _)| lab);
        assert_eq!(lab("plover-default-sw"), Some("default"));
        assert_eq!(lab("plover-a-b-r2"), Some("a-b"));
        for other in [
            "default",
            "plover-sw",
            "plover-a-b",
            "plover-a-rx",
            "plover-a-r10",
            "x-a-r1",
        ] {
            assert_eq!(lab(other), None, "{other}");
        }
    }
}
