//! Pacemaker's configuration: what it lacks, and how it is changed.
//!
//! A change is made on a copy first, by Pacemaker's own programs. They say what the cluster would do with it. What is sent to the
//! cluster is the difference, which Pacemaker refuses if its configuration is another one by then.

use super::guests::Guest;
use super::render::{Elements, Member, Spare, places_of};
use super::{ask, run_tool};
use crate::capacity::{self, Place};
use anyhow::{Context, Result};
use roxmltree::{Document, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The cluster's configuration and state, as XML.
#[derive(Debug)]
pub struct Cib(String);

/// The changes that the cluster lacks.
#[derive(Debug, Default)]
pub struct Plan {
    /// By guest: what its resource lacks; none if it is as it is wanted.
    guests: BTreeMap<String, Vec<String>>,
    /// Places where guests may run no more.
    stale: Vec<String>,
    /// Guests that the cluster has, and the folder has not.
    others: Vec<String>,
    /// The elements to write.
    wanted: String,
    /// Nodes that are to be known as those of members.
    members: Vec<Member>,
    /// Nodes that are to be known as spare hosts.
    spares: Vec<Spare>,
    /// Attributes of nodes that are to go.
    former: Vec<Former>,
    /// Guests whose files do not name all members: guest, node, replica. Nothing of them is changed.
    outdated: Vec<(String, String, u8)>,
    /// Nodes that the cluster has never seen, so that nothing can be written down of them.
    unseen: BTreeSet<String>,
    /// Nodes whose members do not fit: name, what they take, what there is.
    full: Vec<(String, u64, u64)>,
    /// Guests that wait for fencing where there is none.
    unfenced: Vec<String>,
}

/// An attribute of a node that is to go.
#[derive(Debug)]
struct Former {
    node: String,
    key: String,
    /// The attribute's own id.
    id: String,
}

/// A change that was tried on a copy.
pub struct Change {
    /// The actions of the cluster that would follow, in words.
    pub shown: String,
    files: TempDir,
}

impl Cib {
    /// What `cibadmin --query` prints.
    pub fn parse(xml: String) -> Self {
        Self(xml)
    }

    /// Compares the cluster with what is wanted. What the cluster has beside that, such as a role that an operator has
    /// ordered, is left alone.
    ///
    /// # Errors
    /// The cluster's answer is not understood.
    pub fn plan(&self, wanted: &[Elements], guests: &[Guest]) -> Result<Plan> {
        let live = Document::parse(&self.0).context("the answer of cibadmin is not understood")?;
        let mut plan = Plan::default();
        let (mut resources, mut constraints) = (String::new(), String::new());
        for (guest, wanted) in guests.iter().zip(wanted) {
            if plan.add(&live, &guest.name, wanted)? {
                resources += &wanted.resources;
                constraints += &wanted.constraints;
            }
        }
        let seen: BTreeSet<&str> = nodes_of(&live).map(|(_, name)| name).collect();
        let members = plan.members.iter().map(|it| &it.node);
        let all = members.chain(plan.spares.iter().map(|it| &it.node));
        plan.unseen = all
            .filter(|it| !seen.contains(it.as_str()))
            .cloned()
            .collect();
        plan.members.retain(|it| seen.contains(it.node.as_str()));
        plan.spares.retain(|it| seen.contains(it.node.as_str()));
        plan.wanted = format!(
            "<configuration><nodes>{}</nodes><resources>{resources}</resources><constraints>{constraints}</constraints></configuration>",
            nodes_with(&live, &plan.attributes()),
        );
        plan.unfenced = guests
            .iter()
            .filter(|it| it.fencing && !can_fence(&live))
            .map(|it| it.name.clone())
            .collect();
        plan.full = full_nodes(&live, guests, &plan.members);
        plan.others = guests_of(&live)
            .filter(|name| guests.iter().all(|it| it.name != **name))
            .map(str::to_owned)
            .collect();
        Ok(plan)
    }
}

impl Plan {
    /// Adds what a guest lacks. Nothing if the members have changed since its file was written: the agents know better. Returns
    /// whether it was added.
    fn add(&mut self, live: &Document<'_>, guest: &str, wanted: &Elements) -> Result<bool> {
        let xml = format!("<of>{}{}</of>", wanted.resources, wanted.constraints);
        let document = Document::parse(&xml).context("a guest's name cannot be written as XML")?;
        let by_id = |id: &str| {
            live.descendants()
                .find(|node| node.attribute("id") == Some(id))
        };
        let (of_member, of_spare) = (capacity::of_member(guest), capacity::of_spare(guest));
        let is_new = by_id(&format!("{guest}-clone")).is_none();
        for known in attributes_of_nodes(live, &of_member) {
            let place = known.value.parse().ok();
            let id = place.map_or(u8::MAX, |it: Place| it.id);
            let is_given = place.is_some_and(|it| it.given_s.is_some());
            let mut members = wanted.members.iter();
            let is_named = members.any(|it| it.node == known.node && it.place.id == id);
            if is_named || is_given && !is_new {
                continue;
            }
            if !is_new {
                self.outdated.push((guest.into(), known.node.into(), id));
                return Ok(false);
            }
            // Of a guest of this name that was removed.
            if wanted.members.iter().all(|it| it.node != known.node) {
                self.former.push(known.former(&of_member));
            }
        }
        let mut lacks = Vec::new();
        for top in document.root_element().children() {
            compare(top, &by_id, &mut lacks);
        }
        self.guests.insert(guest.into(), lacks);
        self.stale.extend(stale_places(live, &document, guest));
        let is_told = |key: &str, node: &str, value: &str| {
            attributes_of_nodes(live, key).any(|it| it.node == node && it.value == value)
        };
        let members = wanted.members.iter();
        let members = members.filter(|it| !is_told(&of_member, &it.node, &it.place.to_string()));
        self.members.extend(members.cloned());
        let spares = wanted.spares.iter();
        let spares = spares.filter(|it| !is_told(&of_spare, &it.node, &it.replica));
        self.spares.extend(spares.cloned());
        let is_spare = |node: &str| wanted.spares.iter().any(|it| it.node == node);
        let known = attributes_of_nodes(live, &of_spare).filter(|it| !is_spare(it.node));
        self.former.extend(known.map(|it| it.former(&of_spare)));
        Ok(true)
    }
}

/// Whether the cluster has a fencing device or a watchdog for that, and may use it.
fn can_fence(live: &Document<'_>) -> bool {
    let has = |key: &str, value: &str| {
        let mut all = live.descendants();
        all.any(|it| it.attribute(key) == Some(value))
    };
    let has_one = has("class", "stonith") || has("name", "stonith-watchdog-timeout");
    has_one && crate::ocf::may_fence(live)
}

/// The nodes whose members take more memory than they have for replicas, of all guests: those that the cluster has and those of
/// the folder, which is to know these members from now on.
fn full_nodes(
    live: &Document<'_>,
    guests: &[Guest],
    members: &[Member],
) -> Vec<(String, u64, u64)> {
    let names = guests.iter().map(|it| it.name.as_str());
    let guests: BTreeSet<&str> = guests_of(live).chain(names).collect();
    let told = attributes_of_nodes(live, capacity::MEMORY).filter_map(|it| {
        let (node, has): (_, u64) = (it.node, it.value.parse().ok()?);
        let new = |guest: &str| {
            let mut new = members
                .iter()
                .filter(|it| it.node == node && it.guest == guest);
            new.next().map(|it| it.place)
        };
        let known = |guest: &str| {
            let key = capacity::of_member(guest);
            let mut known = attributes_of_nodes(live, &key).filter(|it| it.node == node);
            known.next().and_then(|it| it.value.parse::<Place>().ok())
        };
        let places = guests
            .iter()
            .filter_map(|guest| new(guest).or_else(|| known(guest)));
        let need: u64 = places.map(|it| it.memory_mib).sum();
        (need > has).then(|| (node.to_owned(), need, has))
    });
    told.collect()
}

/// An attribute of a node.
struct Attribute<'a> {
    node: &'a str,
    value: &'a str,
    id: &'a str,
}

impl Attribute<'_> {
    fn former(&self, key: &str) -> Former {
        Former {
            node: self.node.into(),
            key: key.into(),
            id: self.id.into(),
        }
    }
}

/// The nodes that have an attribute which outlives them.
fn attributes_of_nodes<'a>(
    live: &'a Document<'_>,
    key: &'a str,
) -> impl Iterator<Item = Attribute<'a>> {
    let pairs = live.descendants().filter(|it| it.has_tag_name("nvpair"));
    let pairs = pairs.filter(move |it| it.attribute("name") == Some(key));
    pairs.filter_map(|pair| {
        let node = pair.ancestors().find(|it| it.has_tag_name("node"))?;
        Some(Attribute {
            node: node.attribute("uname")?,
            value: pair.attribute("value")?,
            id: pair.attribute("id").unwrap_or_default(),
        })
    })
}

/// The nodes where a guest has members.
pub fn nodes_of_members(live: &Document<'_>, guest: &str) -> BTreeSet<String> {
    let key = capacity::of_member(guest);
    let members = attributes_of_nodes(live, &key);
    members.map(|it| it.node.to_owned()).collect()
}

/// The numbers and names of the nodes that the cluster knows.
fn nodes_of<'a>(live: &'a Document<'_>) -> impl Iterator<Item = (&'a str, &'a str)> {
    let nodes = live.descendants().filter(|it| it.has_tag_name("node"));
    nodes.filter_map(|it| Some((it.attribute("id")?, it.attribute("uname")?)))
}

/// The nodes with these attributes (node, key, value), as `crm_attribute` would write them.
fn nodes_with(live: &Document<'_>, attributes: &[(&str, String, String)]) -> String {
    let one = |(number, name): (&str, &str)| {
        let own = attributes.iter().filter(|it| it.0 == name);
        let pairs = own.map(|(_, key, value)| {
            format!("<nvpair id=\"nodes-{number}-{key}\" name=\"{key}\" value=\"{value}\"/>")
        });
        let set = format!(
            "<instance_attributes id=\"nodes-{number}\">{}</instance_attributes>",
            pairs.collect::<String>()
        );
        format!("<node id=\"{number}\" uname=\"{name}\">{set}</node>")
    };
    let has_some = |it: &(&str, &str)| attributes.iter().any(|of| of.0 == it.1);
    nodes_of(live).filter(has_some).map(one).collect()
}

/// The guests that the cluster has.
pub fn guests_of<'a>(live: &'a Document<'_>) -> impl Iterator<Item = &'a str> {
    let ours = live.descendants().filter(|node| {
        node.has_tag_name("primitive")
            && node.attribute("provider") == Some("plover")
            && node.attribute("type") == Some("guest")
    });
    ours.filter_map(|node| node.attribute("id"))
}

/// The places of a guest that this program has made and that are not wanted any more.
fn stale_places(live: &Document<'_>, wanted: &Document<'_>, guest: &str) -> Vec<String> {
    let (clone, begin) = (format!("{guest}-clone"), places_of(guest));
    let places = live
        .descendants()
        .filter(|node| node.has_tag_name("rsc_location"));
    let own = places.filter(|node| node.attribute("rsc") == Some(&clone));
    let ids = own
        .filter_map(|node| node.attribute("id"))
        .filter(|id| id.starts_with(&begin));
    let is_wanted = |id: &&str| {
        wanted
            .descendants()
            .any(|node| node.attribute("id") == Some(id))
    };
    ids.filter(|id| !is_wanted(id)).map(str::to_owned).collect()
}

/// Says what the element with the id of `wanted` lacks.
fn compare<'a, 'i>(
    wanted: Node<'_, '_>,
    by_id: &impl Fn(&str) -> Option<Node<'a, 'i>>,
    lacks: &mut Vec<String>,
) where
    'i: 'a,
{
    if let Some(id) = wanted.attribute("id") {
        let Some(found) = by_id(id) else {
            lacks.push(format!("{id} is new"));
            return;
        };
        for attribute in wanted.attributes() {
            let has = found.attribute(attribute.name());
            if has != Some(attribute.value()) {
                let (name, value) = (attribute.name(), attribute.value());
                lacks.push(format!(
                    "{id}: {name} becomes {value}, is {}",
                    has.unwrap_or("not set")
                ));
            }
        }
    }
    for child in wanted.children() {
        compare(child, by_id, lacks);
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, lacks) in &self.guests {
            match &lacks[..] {
                [] => writeln!(f, "{name}: as it is")?,
                lacks => writeln!(f, "{name}: {}", lacks.join("; "))?,
            }
        }
        for it in &self.members {
            writeln!(
                f,
                "{}: is known as the host of replica {}, which takes {} MiB ({})",
                it.node,
                it.place.id,
                it.place.memory_mib,
                capacity::of_member(&it.guest)
            )?;
        }
        for it in &self.spares {
            let key = capacity::of_spare(&it.guest);
            writeln!(
                f,
                "{}: is known as a spare host, {} ({key})",
                it.node, it.replica
            )?;
        }
        for it in &self.former {
            writeln!(f, "{}: its attribute {} is removed", it.node, it.key)?;
        }
        for (guest, node, id) in &self.outdated {
            writeln!(
                f,
                "{guest}: NOT CHANGED: replica {id} is a member on {node} ({}), which its file does not name. Bring \
                 [[group.replica]] up to date; a host that is to become a member belongs into [[group.spare]]. If the guest was \
                 begun anew, delete that attribute of the node",
                capacity::of_member(guest)
            )?;
        }
        for node in &self.unseen {
            writeln!(
                f,
                "{node}: the cluster has never seen this node, and starts nothing there: run this again when it has joined"
            )?;
        }
        for name in &self.unfenced {
            writeln!(
                f,
                "{name}: has group.fencing, and this cluster cannot fence (no fencing device, or stonith-enabled=false): when a \
                 host is lost the guest stands still until a person says that it is off"
            )?;
        }
        for place in &self.stale {
            writeln!(
                f,
                "{place}: is removed, no replica of the guest is there any more"
            )?;
        }
        for (node, need, has) in &self.full {
            writeln!(
                f,
                "{node}: its members need {need} MiB, and it has {has} for replicas (its attribute {}): move one to another host",
                capacity::MEMORY
            )?;
        }
        for name in &self.others {
            writeln!(
                f,
                "{name}: is not in the folder, and stays; when it is to go: plover shutdown, crm resource stop \
                 {name}-clone, crm configure delete {name}-clone"
            )?;
        }
        Ok(())
    }
}

impl Plan {
    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        let is_whole = self.guests.values().all(Vec::is_empty);
        let is_known = self.attributes().is_empty() && self.former.is_empty();
        is_whole && is_known && self.stale.is_empty()
    }

    /// Whether the files of all guests name their members.
    pub fn is_up_to_date(&self) -> bool {
        self.outdated.is_empty()
    }

    /// The attributes to write: node, key and value.
    fn attributes(&self) -> Vec<(&str, String, String)> {
        let members = self.members.iter();
        let members = members.map(|it| {
            let key = capacity::of_member(&it.guest);
            (&it.node[..], key, it.place.to_string())
        });
        let spares = self.spares.iter();
        let spares = spares.map(|it| {
            let key = capacity::of_spare(&it.guest);
            (&it.node[..], key, it.replica.clone())
        });
        members.chain(spares).collect()
    }

    /// Makes the change on a copy, and lets Pacemaker say what it would do.
    ///
    /// # Errors
    /// Pacemaker refuses the change.
    pub fn rehearse(&self, live: &Cib) -> Result<Change> {
        let files = tempfile::tempdir().context("cannot make a folder for the copy")?;
        let [before, after] = ["before.xml", "after.xml"].map(|name| files.path().join(name));
        for file in [&before, &after] {
            std::fs::write(file, &live.0)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        // In a file: many guests are more than an argument may hold.
        let wanted = files.path().join("wanted.xml");
        std::fs::write(&wanted, &self.wanted).context("cannot write what is wanted")?;
        let wanted = wanted.to_string_lossy();
        let modify = ["--modify", "--allow-create", "--scope", "configuration"];
        on_copy(&after, &[&modify[..], &["--xml-file", &wanted]].concat())?;
        let places = self.stale.iter();
        let places = places.map(|id| format!("<rsc_location id=\"{id}\"/>"));
        let spares = self.former.iter();
        let spares = spares.map(|it| format!("<nvpair id=\"{}\"/>", it.id));
        for element in places.chain(spares) {
            on_copy(&after, &["--delete", "--xml-text", &element])?;
        }
        let [before, after] = [&before, &after].map(|file| file.to_string_lossy().into_owned());
        // It ends with 1 if the two differ.
        let mut diff = Command::new("crm_diff");
        let diff = run_tool(diff.args(["--original", &before, "--new", &after]), 1)?;
        std::fs::write(files.path().join("patch.xml"), diff)
            .context("cannot write the difference")?;
        let simulated = ask("crm_simulate", &["--run", "--xml-file", &after])?;
        Ok(Change {
            shown: what_it_does(&simulated),
            files,
        })
    }
}

/// Runs `cibadmin` on a copy of the configuration.
fn on_copy(file: &Path, arguments: &[&str]) -> Result<()> {
    run_tool(
        Command::new("cibadmin")
            .env("CIB_file", file)
            .args(arguments),
        0,
    )
    .map(drop)
}

/// The actions among what `crm_simulate` prints.
fn what_it_does(simulated: &str) -> String {
    let summary = simulated
        .split_once("Transition Summary:\n")
        .map_or("", |(_, rest)| rest);
    let actions: Vec<_> = summary
        .lines()
        .take_while(|line| line.trim_start().starts_with('*'))
        .collect();
    if actions.is_empty() {
        return "Pacemaker would start and stop nothing\n".into();
    }
    format!(
        "Pacemaker would (a replica that runs already is found, and left as it is):\n{}\n",
        actions.join("\n")
    )
}

impl Change {
    /// Sends the change to the cluster.
    ///
    /// # Errors
    /// The configuration has changed meanwhile, or Pacemaker does not answer.
    pub fn make(self) -> Result<()> {
        let patch = self.files.path().join("patch.xml");
        ask("cibadmin", &["--patch", "--xml-file", &patch.to_string_lossy()]).map(drop).context(
            "the cluster has not taken the change; if its configuration has changed meanwhile, run this again",
        )
    }
}
