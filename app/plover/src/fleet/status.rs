//! `plover fleet status`: all guests of the cluster, one a line.
//!
//! `crm_mon` knows where instances run, and the attributes that `plover ocf monitor` has written. A guest with a replica on
//! this host is asked itself (as by `plover status --all`), since that is newer and says why something is wrong.

use super::ask;
use crate::at::replicas_in;
use crate::output::table;
use crate::overview::Overview;
use anyhow::{Context, Result};
use plover_lab::status::GroupStatus;
use roxmltree::{Document, Node};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// All guests.
#[derive(Debug, Serialize)]
pub struct FleetStatus(Vec<GuestStatus>);

/// One guest.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct GuestStatus {
    guest: String,
    /// `protected`, `NOT PROTECTED`, or `NO LEADER`.
    state: String,
    /// The role of its replica by node, or why there is none.
    hosts: BTreeMap<String, String>,
    /// Remarks for the operator.
    troubles: Vec<String>,
}

impl FleetStatus {
    /// Asks Pacemaker, and the replicas of this host.
    ///
    /// # Errors
    /// Pacemaker does not run here.
    pub fn ask(run_dir: &Path) -> Result<Self> {
        let cluster = ask("crm_mon", &["--one-shot", "--inactive", "--output-as=xml"])?;
        let local = if replicas_in(run_dir).is_empty() {
            Vec::new()
        } else {
            Overview::ask(run_dir)?.into_answers()
        };
        Self::of(&cluster, &local)
    }

    pub(super) fn of(cluster: &str, local: &[GroupStatus]) -> Result<Self> {
        let document =
            Document::parse(cluster).context("the answer of crm_mon is not understood")?;
        let clones = document
            .descendants()
            .filter(|node| node.has_tag_name("clone"));
        let guests = clones.filter_map(|clone| {
            let is_ours =
                |node: &Node<'_, '_>| node.attribute("resource_agent") == Some("ocf:plover:guest");
            let mut instances = clone.children().filter(is_ours).peekable();
            // An instance that a cluster calls unique has its number behind the name.
            let name = instances.peek()?.attribute("id")?.split(':').next()?;
            let mut guest = GuestStatus::in_cluster(&document, name, instances);
            if let Some(group) = local.iter().find(|group| group.name == name) {
                guest.state = group.protection().into();
                guest.troubles.extend(group.troubles());
            }
            Some(guest)
        });
        Ok(Self(guests.collect()))
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl GuestStatus {
    fn in_cluster<'a, 'i: 'a>(
        document: &'a Document<'i>,
        name: &str,
        instances: impl Iterator<Item = Node<'a, 'i>>,
    ) -> Self {
        let attribute = |node: &str, key: &str| {
            let nodes = document
                .descendants()
                .filter(|it| it.has_tag_name("node_attributes"));
            let mut nodes = nodes
                .flat_map(|it| it.children())
                .filter(|it| it.attribute("name") == Some(node));
            let mut attributes = nodes
                .next()?
                .children()
                .filter(|it| it.attribute("name") == Some(key));
            attributes
                .next()?
                .attribute("value")
                .filter(|value| !value.is_empty())
        };
        let key = format!("plover-{name}");
        let (mut hosts, mut troubles) = (BTreeMap::new(), Vec::new());
        for instance in instances {
            let says = |flag: &str| instance.attribute(flag) == Some("true");
            for node in instance.children().filter_map(|it| it.attribute("name")) {
                let role = attribute(node, &key).unwrap_or("not asked yet");
                hosts.insert(node.to_owned(), role.to_owned());
                if says("blocked") {
                    troubles.push(format!(
                        "{node}: not stopped, and left alone: `crm_mon -1` says why, `crm resource cleanup {name}` tries again"
                    ));
                } else if says("failed") {
                    troubles.push(format!("{node}: has failed: `crm_mon -1` says why"));
                }
            }
        }
        let leader = hosts
            .iter()
            .find(|(_, role)| *role == "leader")
            .map(|(node, _)| node);
        let state = match leader.map(|node| attribute(node, &format!("{key}-protected"))) {
            None => "NO LEADER",
            Some(Some("yes")) => "protected",
            Some(_) => "NOT PROTECTED",
        };
        Self {
            guest: name.into(),
            state: state.into(),
            hosts,
            troubles,
        }
    }

    fn cells(&self) -> Vec<String> {
        let hosts = self
            .hosts
            .iter()
            .map(|(node, role)| format!("{node} {role}"));
        let hosts: Vec<_> = hosts.collect();
        let hosts = if hosts.is_empty() {
            "-".into()
        } else {
            hosts.join(", ")
        };
        vec![
            self.guest.clone(),
            self.state.clone(),
            hosts,
            self.troubles.join(" "),
        ]
    }
}

impl fmt::Display for FleetStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(
                f,
                "the cluster has no guests: `plover fleet apply DIR` gives it some"
            );
        }
        let head = ["guest", "state", "hosts", ""].map(String::from).to_vec();
        let rows = std::iter::once(head).chain(self.0.iter().map(GuestStatus::cells));
        f.write_str(&table(&rows.collect::<Vec<_>>()))
    }
}
