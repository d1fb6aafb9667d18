//! Pacemaker without a cluster: its scheduler on a file (`crm_simulate`), with the rules that `plover fleet apply` writes.

use anyhow::{Context, Result, bail, ensure};
use roxmltree::Document;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A guest and a host, by their numbers.
pub type Place = (usize, usize);

/// The cluster's configuration and state, in a file.
#[derive(Debug)]
pub struct Pacemaker {
    dir: TempDir,
    hosts: usize,
}

/// A guest for its configuration file.
#[derive(Debug)]
pub struct GuestFile<'a> {
    pub members: &'a [usize],
    pub spares: &'a [usize],
    pub mem_mib: u64,
}

pub fn host_name(host: usize) -> String {
    format!("host{host:02}")
}

fn guest_name(guest: usize) -> String {
    format!("guest{guest:03}")
}

fn address(host: usize, guest: usize) -> String {
    format!("192.0.2.{}:{}", host + 1, 7700 + guest)
}

impl Pacemaker {
    /// A cluster of online hosts with these guests, whose replicas run as Pacemaker has placed them.
    pub fn new(plover: &Path, hosts: usize, guests: &[GuestFile<'_>]) -> Result<Self> {
        ensure!(hosts < 250, "at most 250 hosts");
        let it = Self {
            dir: tempfile::tempdir()?,
            hosts,
        };
        let empty = run(Command::new("cibadmin").arg("--empty"))?;
        let (mut nodes, mut states) = (String::new(), String::new());
        for host in 0..hosts {
            let (id, name) = (host + 1, host_name(host));
            write!(nodes, "<node id=\"{id}\" uname=\"{name}\"/>")?;
            write!(
                states,
                "<node_state id=\"{id}\" uname=\"{name}\" in_ccm=\"true\" crmd=\"online\" join=\"member\" expected=\"member\"/>"
            )?;
        }
        let options = "<crm_config><cluster_property_set id=\"options\"><nvpair id=\"fencing\" name=\"stonith-enabled\" \
                       value=\"false\"/></cluster_property_set></crm_config>";
        let cib = empty
            .replace("<crm_config/>", options)
            .replace("<nodes/>", &format!("<nodes>{nodes}</nodes>"))
            .replace("<status/>", &format!("<status>{states}</status>"));
        std::fs::write(it.cib(), cib)?;
        it.apply(plover, guests)?;
        it.settle(&[])?;
        Ok(it)
    }

    fn cib(&self) -> PathBuf {
        self.dir.path().join("cib.xml")
    }

    /// `plover fleet apply`, with a corosync that knows the hosts.
    fn apply(&self, plover: &Path, guests: &[GuestFile<'_>]) -> Result<()> {
        let (bin, folder) = (self.dir.path().join("bin"), self.dir.path().join("guests"));
        std::fs::create_dir(&bin)?;
        std::fs::create_dir(&folder)?;
        let mut cmap = "#!/bin/sh\ncat << END\n".to_owned();
        for host in 0..self.hosts {
            let (name, ip) = (host_name(host), format!("192.0.2.{}", host + 1));
            writeln!(cmap, "nodelist.node.{host}.name (str) = {name}")?;
            writeln!(cmap, "nodelist.node.{host}.ring0_addr (str) = {ip}")?;
        }
        let tool = bin.join("corosync-cmapctl");
        std::fs::write(&tool, cmap + "END\n")?;
        std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755))?;
        for (number, guest) in guests.iter().enumerate() {
            let list = |of: &[usize], from: usize| -> String {
                let of = of.iter().enumerate();
                let of = of.map(|(i, host)| {
                    let at = address(*host, number);
                    format!("{{ id = {}, address = \"{at}\" }}, ", from + i)
                });
                of.collect()
            };
            let text = format!(
                "[group]\nname = \"{name}\"\nme = 0\nplaintext = true\nreplica = [{}]\nspare = [{}]\n\
                 [guest]\nmachine = \"q35\"\nmac = \"52:54:00:00:00:01\"\nmem_mib = {}\n\
                 [[disk]]\npath = \"/images/{name}.raw\"\nsize_mib = 64\n[net]\ntap = \"guest0\"\n\
                 [paths]\nstate_dir = \"/var/lib/plover/{name}\"\nrun_dir = \"/run/plover/{name}\"\n",
                list(guest.members, 0),
                list(guest.spares, guest.members.len()),
                guest.mem_mib,
                name = guest_name(number),
            );
            std::fs::write(folder.join(format!("{}.toml", guest_name(number))), text)?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut apply = Command::new(plover);
        apply.args(["fleet", "apply"]).arg(&folder);
        apply.env("PATH", format!("{}:{path}", bin.display()));
        run(apply.env("CIB_file", self.cib())).map(drop)
    }

    /// Lets the cluster do all that it wants to, after these events (arguments of `crm_simulate`).
    pub fn settle(&self, events: &[String]) -> Result<()> {
        let (now, next) = (self.cib(), self.dir.path().join("next.xml"));
        let mut events = events;
        let mut last = String::new();
        for _ in 0..4 {
            let mut simulate = Command::new("crm_simulate");
            simulate.arg("--simulate").args(events);
            simulate.arg("--xml-file").arg(&now);
            let told = run(simulate.arg("--save-output").arg(&next))?;
            std::fs::rename(&next, &now)?;
            let summary = told.split("Transition Summary:").nth(1).unwrap_or_default();
            let summary = summary.split("Executing").next().unwrap_or_default();
            if !summary.lines().any(|line| line.trim().starts_with('*')) {
                return Ok(());
            }
            last = summary.to_owned();
            events = &[];
        }
        bail!("the cluster does not come to rest: {last}")
    }

    /// Puts a host on standby, or takes it back.
    pub fn standby(&self, host: usize, is: bool) -> Result<()> {
        let value = if is { "on" } else { "off" };
        self.attribute(host, "standby", &["--update", value])?;
        self.settle(&[])
    }

    /// Writes the attribute by which the agents give a spare host a place, or deletes that of one that has left.
    pub fn place(&self, guest: usize, host: usize, place: Option<&str>) -> Result<()> {
        let key = format!("plover-{}-member", guest_name(guest));
        let words = place.map_or(vec!["--delete"], |place| vec!["--update", place]);
        self.attribute(host, &key, &words)
    }

    fn attribute(&self, host: usize, key: &str, words: &[&str]) -> Result<()> {
        let mut tool = Command::new("crm_attribute");
        tool.args([
            "--node",
            &host_name(host),
            "--name",
            key,
            "--lifetime",
            "forever",
        ]);
        run(tool.args(words).env("CIB_file", self.cib())).map(drop)
    }

    /// Where replicas run.
    pub fn running(&self) -> Result<BTreeSet<Place>> {
        let mut monitor = Command::new("crm_mon");
        monitor.args(["--one-shot", "--output-as=xml"]);
        let shown = run(monitor.env("CIB_file", self.cib()))?;
        let document = Document::parse(&shown).context("the answer of crm_mon")?;
        let number = |name: &str, prefix: &str| -> Option<usize> {
            let name = name.strip_prefix(prefix)?;
            name.split(':').next()?.parse().ok()
        };
        let instances = document.descendants().filter(|it| {
            it.has_tag_name("resource")
                && it.attribute("resource_agent") == Some("ocf:plover:guest")
        });
        let places = instances.flat_map(|it| {
            let guest = it.attribute("id").and_then(|id| number(id, "guest"));
            let nodes = it.children().filter_map(|node| node.attribute("name"));
            nodes.filter_map(move |node| Some((guest?, number(node, "host")?)))
        });
        Ok(places.collect())
    }
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.output();
    let ended = ended.with_context(|| {
        format!("cannot run {name}: it needs the packages pacemaker and pacemaker-cli-utils")
    })?;
    ensure!(
        ended.status.success(),
        "{name}: {}: {}",
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    );
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}
