//! Pacemaker's configuration: what it lacks, and how it is changed.
//!
//! A change is made on a copy first, by Pacemaker's own programs. They say what the cluster would do with it. What is sent to the
//! cluster is the difference, which Pacemaker refuses if its configuration is another one by then.

use super::guests::Guest;
use super::render::{Elements, places_of};
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
    /// Nodes that are to be known as those of members: name, attribute, value.
    members: Vec<(String, String, Place)>,
    /// Nodes whose members do not fit: name, what they take, what there is.
    full: Vec<(String, u64, u64)>,
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
    pub fn plan(&self, wanted: &Elements, guests: &[Guest]) -> Result<Plan> {
        let elements = format!(
            "<resources>{}</resources><constraints>{}</constraints>",
            wanted.resources, wanted.constraints
        );
        let xml = format!("<configuration>{elements}</configuration>");
        let live = Document::parse(&self.0).context("the answer of cibadmin is not understood")?;
        let document = Document::parse(&xml).context("a guest's name cannot be written as XML")?;
        let by_id = |id: &str| {
            live.descendants()
                .find(|node| node.attribute("id") == Some(id))
        };
        let mut plan = Plan::default();
        for guest in guests {
            let clone = format!("{}-clone", guest.name);
            let is_own = |node: &Node<'_, '_>| match node.tag_name().name() {
                "clone" => node.attribute("id") == Some(&clone),
                "rsc_location" => node.attribute("rsc") == Some(&clone),
                _ => false,
            };
            let mut lacks = Vec::new();
            for top in document.descendants().filter(is_own) {
                compare(top, &by_id, &mut lacks);
            }
            plan.guests.insert(guest.name.clone(), lacks);
            plan.stale
                .extend(stale_places(&live, &document, &guest.name));
        }
        for member in &wanted.members {
            let key = capacity::of_member(&member.guest);
            let known: Vec<_> = attributes_of_nodes(&live, &key).collect();
            // A member that the file does not name: they have changed since, and the agents know better.
            let is_of_the_file = |id: &str| {
                let mut own = wanted.members.iter().filter(|it| it.guest == member.guest);
                id.parse()
                    .is_ok_and(|id: Place| own.any(|it| it.place.id == id.id))
            };
            let value = member.place.to_string();
            let is_told = known.iter().any(|it| *it == (&member.node, &value));
            if !is_told && known.iter().all(|(_, id)| is_of_the_file(id)) {
                plan.members.push((member.node.clone(), key, member.place));
            }
        }
        plan.wanted = format!(
            "<configuration><nodes>{}</nodes>{elements}</configuration>",
            nodes_of_members(&live, &plan.members),
        );
        plan.full = full_nodes(&live, guests, &plan.members);
        plan.others = guests_of(&live)
            .filter(|name| !plan.guests.contains_key(*name))
            .map(str::to_owned)
            .collect();
        Ok(plan)
    }
}

/// The nodes whose members take more memory than they have for replicas, of all guests: those that the cluster has and those of
/// the folder, which is to know these members from now on.
fn full_nodes(
    live: &Document<'_>,
    guests: &[Guest],
    members: &[(String, String, Place)],
) -> Vec<(String, u64, u64)> {
    let names = guests.iter().map(|it| it.name.as_str());
    let keys: BTreeSet<String> = guests_of(live)
        .chain(names)
        .map(capacity::of_member)
        .collect();
    let told = attributes_of_nodes(live, capacity::MEMORY);
    let told = told.filter_map(|(node, has)| {
        let has: u64 = has.parse().ok()?;
        let new = |key: &str| {
            let mut new = members.iter().filter(|it| it.0 == node && it.1 == key);
            new.next().map(|it| it.2)
        };
        let known = |key: &str| {
            let mut known = attributes_of_nodes(live, key).filter(|it| it.0 == node);
            known.next().and_then(|it| it.1.parse::<Place>().ok())
        };
        let places = keys
            .iter()
            .filter_map(|key| new(key).or_else(|| known(key)));
        let need: u64 = places.map(|it| it.memory_mib).sum();
        (need > has).then(|| (node.to_owned(), need, has))
    });
    told.collect()
}

/// The nodes that have an attribute, and its values.
fn attributes_of_nodes<'a>(
    live: &'a Document<'_>,
    key: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let pairs = live.descendants().filter(|it| it.has_tag_name("nvpair"));
    let pairs = pairs.filter(move |it| it.attribute("name") == Some(key));
    pairs.filter_map(|pair| {
        let node = pair.ancestors().find(|it| it.has_tag_name("node"))?;
        Some((node.attribute("uname")?, pair.attribute("value")?))
    })
}

/// The nodes with the attributes of members, as `crm_attribute` would write them. A node that the cluster has never seen has no
/// number yet, and its agent writes the attribute.
fn nodes_of_members(live: &Document<'_>, members: &[(String, String, Place)]) -> String {
    let nodes = live.descendants().filter(|it| it.has_tag_name("node"));
    let nodes = nodes.filter_map(|it| Some((it.attribute("id")?, it.attribute("uname")?)));
    let one = |(number, name): (&str, &str)| {
        let own = members.iter().filter(|it| it.0 == name);
        let pairs = own.map(|(_, key, place)| {
            format!("<nvpair id=\"nodes-{number}-{key}\" name=\"{key}\" value=\"{place}\"/>")
        });
        let set = format!(
            "<instance_attributes id=\"nodes-{number}\">{}</instance_attributes>",
            pairs.collect::<String>()
        );
        format!("<node id=\"{number}\" uname=\"{name}\">{set}</node>")
    };
    let has_some = |it: &(&str, &str)| members.iter().any(|member| member.0 == it.1);
    nodes.filter(has_some).map(one).collect()
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
        for (node, key, place) in &self.members {
            writeln!(
                f,
                "{node}: is known as the host of replica {}, which takes {} MiB ({key})",
                place.id, place.memory_mib
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
        is_whole && self.stale.is_empty() && self.members.is_empty()
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
        for place in &self.stale {
            on_copy(
                &after,
                &[
                    "--delete",
                    "--xml-text",
                    &format!("<rsc_location id=\"{place}\"/>"),
                ],
            )?;
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
