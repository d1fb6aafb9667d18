//! `plover fleet status`: all guests of the cluster, one a line.
//!
//! `crm_mon` knows where instances run, and the attributes that `plover ocf monitor` has written; `cibadmin`, where members are
//! whose host is off. A guest with a replica on this host is asked itself (as by `plover status --all`), since that is newer and
//! says why something is wrong.

use super::cib::nodes_of_members;
use super::{cibadmin, crm_mon};
use crate::at::replicas_in;
use crate::output::table;
use crate::overview::Overview;
use anyhow::{Context, Result};
use plover_lab::status::GroupStatus;
use roxmltree::{Document, Node};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

const PROTECTED: &str = "protected";
const LEADER: &str = "leader";
/// The roles of replicas that are whole.
const WELL: [&str; 3] = [LEADER, "secondary", "witness"];

/// The nodes of the cluster that are online, and whether they may have replicas.
#[derive(Debug)]
pub(super) struct Nodes(BTreeMap<String, bool>);

impl Nodes {
    /// As `crm_mon` prints them.
    pub fn of(cluster: &str) -> Result<Self> {
        let document = parsed(cluster)?;
        let mut all = document.descendants().filter(|it| it.has_tag_name("nodes"));
        let nodes = all.next().into_iter().flat_map(|it| it.children());
        let online = nodes.filter(|node| node.attribute("online") == Some("true"));
        let ready = online.filter_map(|node| {
            let says = |key: &str| node.attribute(key) == Some("true");
            let is_away = ["standby", "standby_onfail", "maintenance"]
                .into_iter()
                .any(says);
            Some((node.attribute("name")?.to_owned(), !is_away))
        });
        Ok(Self(ready.collect()))
    }

    /// Whether no node is there, not even this one: the cluster is just starting here.
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the node is there.
    pub fn is_online(&self, node: &str) -> bool {
        self.0.contains_key(node)
    }

    /// Whether the node is there and not on standby.
    pub fn is_ready(&self, node: &str) -> bool {
        self.0.get(node) == Some(&true)
    }
}

fn parsed(cluster: &str) -> Result<Document<'_>> {
    Document::parse(cluster).context("the answer of crm_mon is not understood")
}

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
    /// Nodes of members where none runs.
    #[serde(skip)]
    missing: BTreeSet<String>,
    /// Why the group has not all its members, says the leader's agent.
    #[serde(skip)]
    lacks: Option<String>,
    /// Nodes where a replica did not end.
    #[serde(skip)]
    blocked: BTreeSet<String>,
}

impl FleetStatus {
    /// Asks Pacemaker, and the replicas of this host.
    ///
    /// # Errors
    /// Pacemaker does not run here.
    pub fn ask(run_dir: &Path) -> Result<Self> {
        Self::with_local(&crm_mon()?, &cibadmin()?, run_dir)
    }

    /// The same, with what `crm_mon` and `cibadmin` have printed.
    pub(super) fn with_local(cluster: &str, cib: &str, run_dir: &Path) -> Result<Self> {
        let local = if replicas_in(run_dir).is_empty() {
            Vec::new()
        } else {
            Overview::ask(run_dir)?.into_answers()
        };
        Self::of(cluster, cib, &local)
    }

    /// The same, with what replicas of this host have answered.
    pub fn of(cluster: &str, cib: &str, local: &[GroupStatus]) -> Result<Self> {
        let document = parsed(cluster)?;
        let cib = Document::parse(cib).context("the answer of cibadmin is not understood")?;
        let clones = document
            .descendants()
            .filter(|node| node.has_tag_name("clone"));
        let guests = clones.filter_map(|clone| {
            let is_ours =
                |node: &Node<'_, '_>| node.attribute("resource_agent") == Some("ocf:plover:guest");
            let mut instances = clone.children().filter(is_ours).peekable();
            // An instance that a cluster calls unique has its number behind the name.
            let name = instances.peek()?.attribute("id")?.split(':').next()?;
            let members = nodes_of_members(&cib, name);
            let mut guest = GuestStatus::in_cluster(&document, name, instances, members);
            if let Some(group) = local.iter().find(|group| group.name == name) {
                guest.state = group.protection().into();
                guest.troubles.extend(group.troubles());
            }
            Some(guest)
        });
        Ok(Self(guests.collect()))
    }

    /// The nodes with replicas.
    pub(super) fn nodes(&self) -> BTreeSet<&str> {
        let nodes = self.0.iter().flat_map(|guest| guest.hosts.keys());
        nodes.map(String::as_str).collect()
    }

    /// The guests with a replica on `node`.
    pub(super) fn on(&self, node: &str) -> Vec<&str> {
        let there = self.0.iter().filter(|guest| guest.hosts.contains_key(node));
        there.map(|guest| guest.guest.as_str()).collect()
    }

    /// How many guests `node` leads.
    pub(super) fn leads(&self, node: &str) -> usize {
        let role = |guest: &GuestStatus| guest.hosts.get(node).map(String::as_str) == Some(LEADER);
        self.0.iter().filter(|guest| role(guest)).count()
    }

    /// The guest whose replica does not end on `node`.
    pub(super) fn blocked_on(&self, node: &str) -> Option<&str> {
        let guest = self.0.iter().find(|guest| guest.blocked.contains(node));
        guest.map(|guest| guest.guest.as_str())
    }

    /// The faults of guests that run. Replicas of this host add their own words.
    pub(super) fn ills(&self) -> BTreeSet<String> {
        let running = self.0.iter().filter(|guest| !guest.hosts.is_empty());
        running
            .flat_map(|guest| {
                // Warnings are of how the group is made, and stay.
                let words = guest.troubles.iter();
                let words = words.filter(|it| !it.starts_with("Warning: "));
                // The attribute says it already.
                let words = words.filter(|it| {
                    let said = it.strip_suffix('.');
                    said.is_none() || said != guest.lacks.as_deref()
                });
                let words = words.map(|it| format!("{}: {it}", guest.guest));
                guest.ills().into_iter().chain(words)
            })
            .collect()
    }

    /// The faults of now that were not there `before`.
    pub(super) fn worse_than(&self, before: &Self) -> Vec<String> {
        let mut worse = Vec::new();
        for was in before.0.iter().filter(|guest| !guest.hosts.is_empty()) {
            let Some(is) = self.0.iter().find(|guest| guest.guest == was.guest) else {
                worse.push(format!("{}: the cluster has it no more", was.guest));
                continue;
            };
            let missing = was
                .hosts
                .keys()
                .filter(|node| !is.hosts.contains_key(*node) && !is.missing.contains(*node));
            worse.extend(missing.map(|node| format!("{}: no replica on {node}", was.guest)));
            // Not the replicas' own words: they are of this moment, and may have numbers in them.
            let known = was.ills();
            worse.extend(is.ills().into_iter().filter(|ill| !known.contains(ill)));
        }
        worse
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
        members: BTreeSet<String>,
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
        let mut blocked = BTreeSet::new();
        for instance in instances {
            let says = |flag: &str| instance.attribute(flag) == Some("true");
            for node in instance.children().filter_map(|it| it.attribute("name")) {
                let role = attribute(node, &key).unwrap_or("not asked yet");
                hosts.insert(node.to_owned(), role.to_owned());
                if says("blocked") {
                    blocked.insert(node.to_owned());
                    troubles.push(format!(
                        "{node}: not stopped, and left alone: `crm_mon -1` says why, `crm resource cleanup {name}` tries again"
                    ));
                } else if says("failed") {
                    troubles.push(format!("{node}: has failed: `crm_mon -1` says why"));
                }
            }
        }
        let mut missing = members;
        missing.retain(|node| !hosts.contains_key(node) && !hosts.is_empty());
        troubles.extend(missing.iter().map(|it| not_running(it)));
        let leaders = hosts
            .iter()
            .filter(|(_, role)| *role == LEADER)
            .map(|(node, _)| node);
        let leaders = Vec::from_iter(leaders);
        if let [first, others @ ..] = &leaders[..] {
            troubles.extend(others.iter().map(|node| {
                format!(
                    "{node}: led, and so did {first}, when they were looked at last, up to 10 s ago: if that stays, one is cut off \
                     from the others (`plover status` on both)"
                )
            }));
        }
        let says = |node: &str, what: &str| attribute(node, &format!("{key}-{what}"));
        let lacks = leaders.iter().find_map(|node| says(node, "lacks"));
        troubles.extend(lacks.map(|it| format!("{it}.")));
        let state = match &leaders[..] {
            [] => "NO LEADER",
            all if all
                .iter()
                .all(|node| says(node, "protected") == Some("yes")) =>
            {
                PROTECTED
            }
            _ => "NOT PROTECTED",
        };
        Self {
            guest: name.into(),
            state: state.into(),
            hosts,
            troubles,
            missing,
            lacks: lacks.map(str::to_owned),
            blocked,
        }
    }

    /// The faults that the cluster shows.
    fn ills(&self) -> Vec<String> {
        let unwell = self
            .hosts
            .iter()
            .filter(|(_, role)| !WELL.contains(&role.as_str()));
        let mut ills = Vec::new();
        if self.state != PROTECTED {
            ills.push(self.state.clone());
        }
        ills.extend(unwell.map(|(node, role)| format!("{node} {role}")));
        ills.extend(self.missing.iter().map(|it| not_running(it)));
        ills.extend(self.lacks.clone());
        let of_the_cluster = |it: &&String| {
            self.hosts
                .keys()
                .any(|node| it.starts_with(&format!("{node}: ")))
        };
        ills.extend(self.troubles.iter().filter(of_the_cluster).cloned());
        ills.into_iter()
            .map(|ill| format!("{}: {ill}", self.guest))
            .collect()
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

fn not_running(node: &str) -> String {
    format!(
        "no replica on {node}: the host is off or on standby, or a start is under way or has failed (`crm_mon -1 -r`)."
    )
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
