//! The nodes of the cluster, as agents read them and write down the memory of their hosts.
//!
//! | attribute of a node | who writes it |
//! |---|---|
//! | `plover-NAME-member` | the agent of that member; the leader's for one that joins, and when one has left |
//! | `plover-NAME-spare` | the agent of the replica that waits there |
//! | `plover_memory_mib` | the first agent there, or the operator |
//! | `plover_room_mib` | the first agent there, then those of all leaders, for each node that is online |

use super::Instance;
use crate::capacity::{self, Place};
use crate::fleet::guests_of;
use anyhow::{Context, Result};
use roxmltree::{Document, Node as Element};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

/// A node of the cluster, as its attributes tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub name: String,
    pub is_online: bool,
    /// It is to have no replicas: an operator works on it.
    pub is_away: bool,
    /// The member whose host it is.
    pub member: Option<Place>,
    /// The memory that it has for replicas, in MiB, if that is written down.
    pub memory_mib: Option<i64>,
    /// The memory that members of other guests take there.
    pub taken_mib: i64,
    /// The room that is written down. The rule for spare replicas reads it.
    pub room_told: Option<i64>,
    /// The replica that waits there to be added, and its address.
    pub spare: Option<(u8, String)>,
}

impl Node {
    /// The memory that members of other guests leave. A node that has not told its memory has room for all.
    fn room_mib(&self) -> i64 {
        self.memory_mib.map_or(i64::MAX, |it| it - self.taken_mib)
    }

    /// Whether one more replica that takes so much fits there.
    pub fn has_room(&self, mib: u64) -> bool {
        self.room_mib() >= mib as i64
    }

    /// Whether it is the host of this member.
    pub fn is_of(&self, id: u8) -> bool {
        self.member.is_some_and(|it| it.id == id)
    }

    /// The memory that all members leave, if what is written down is another figure.
    fn new_room(&self) -> Option<i64> {
        let own = self.member.map_or(0, |it| it.memory_mib as i64);
        let left = self.memory_mib? - self.taken_mib - own;
        Some(left).filter(|it| self.room_told != Some(*it))
    }
}

/// The nodes of the cluster, as `cibadmin --query` prints them. A node that is lost forgets some of its attributes, such as that
/// of a spare replica.
pub(super) fn nodes(cib: &str, guest: &str) -> Result<Vec<Node>> {
    let document = Document::parse(cib).context("the answer of cibadmin is not understood")?;
    // The attributes of a guest that was removed are still there.
    let guests: BTreeSet<String> = guests_of(&document).map(capacity::of_member).collect();
    let own = capacity::of_member(guest);
    let spare = format!("plover-{guest}-spare");
    let mut nodes: BTreeMap<&str, Node> = BTreeMap::new();
    let is_node = |it: &Element<'_, '_>| {
        let of = it.parent().map(|it| it.tag_name().name());
        matches!(
            (of, it.tag_name().name()),
            (Some("nodes"), "node") | (Some("status"), "node_state")
        )
    };
    for element in document.descendants().filter(is_node) {
        let Some(name) = element.attribute("uname") else {
            continue;
        };
        let node = nodes.entry(name).or_default();
        node.name = name.into();
        node.is_online |= element.attribute("crmd") == Some("online");
        let pairs = element.descendants().filter(|it| it.has_tag_name("nvpair"));
        // The utilization of a node is in other elements.
        let pairs = pairs.filter(|it| {
            let parent = it.parent();
            parent.is_some_and(|it| it.has_tag_name("instance_attributes"))
        });
        for pair in pairs {
            let (Some(key), Some(value)) = (pair.attribute("name"), pair.attribute("value")) else {
                continue;
            };
            match key {
                _ if key == own => node.member = value.parse().ok(),
                _ if key == spare => node.spare = waiting(value),
                _ if guests.contains(key) => {
                    let place = value.parse::<Place>();
                    node.taken_mib += place.map_or(0, |it| it.memory_mib as i64);
                }
                // A figure that cannot be read must not count as none: it is the operator's.
                capacity::MEMORY => node.memory_mib = Some(value.parse().unwrap_or(0)),
                capacity::ROOM => node.room_told = value.parse().ok(),
                "standby" | "maintenance" => {
                    node.is_away |= matches!(value, "on" | "true" | "yes" | "1");
                }
                _ => {}
            }
        }
    }
    Ok(nodes.into_values().collect())
}

/// `ID@ADDRESS`.
fn waiting(value: &str) -> Option<(u8, String)> {
    let (id, address) = value.split_once('@')?;
    Some((id.parse().ok()?, address.into()))
}

impl Instance {
    /// At a probe: writes down the memory of this host and the room there. Nothing is done if the cluster does not answer.
    pub(super) fn tell_memory_and_room(&self) {
        let Some(name) = &self.node else { return };
        let told = self.nodes().and_then(|nodes| {
            let Some(here) = nodes.iter().find(|it| it.name == *name) else {
                return Ok(());
            };
            let memory_mib = self.tell_memory(here)?;
            self.tell_room(&Node {
                memory_mib,
                ..here.clone()
            })
        });
        if let Err(error) = told {
            // Pacemaker writes it into its log.
            eprintln!("the memory of {name} is not written down: {error:#}");
        }
    }

    /// Writes down the memory that this host has for replicas, unless it is written already: an operator may have chosen it.
    /// Returns the figure that counts.
    pub(super) fn tell_memory(&self, here: &Node) -> Result<Option<i64>> {
        let Some(has) = capacity::of_host().filter(|_| here.memory_mib.is_none()) else {
            return Ok(here.memory_mib);
        };
        let value = has.to_string();
        self.write(&here.name, capacity::MEMORY, "forever", Some(&value))?;
        Ok(Some(has as i64))
    }

    /// Writes down the room on a node, if that is another figure now.
    pub(super) fn tell_room(&self, node: &Node) -> Result<()> {
        let Some(room) = node.new_room() else {
            return Ok(());
        };
        self.write(
            &node.name,
            capacity::ROOM,
            "reboot",
            Some(&room.to_string()),
        )
    }

    pub(super) fn nodes(&self) -> Result<Vec<Node>> {
        let cib = self.cluster(&["cibadmin", "--query"])?;
        nodes(&cib, &self.config.group.name)
    }

    /// Writes down that a node is the host of a member, or of none.
    pub(super) fn write_member(&self, node: &str, place: Option<Place>) -> Result<()> {
        let name = capacity::of_member(&self.config.group.name);
        let value = place.map(|it| it.to_string());
        self.write(node, &name, "forever", value.as_deref())
    }

    /// Writes an attribute of a node, or deletes it.
    fn write(&self, node: &str, name: &str, lifetime: &str, value: Option<&str>) -> Result<()> {
        let begin = ["crm_attribute", "--node", node, "--name", name];
        let lifetime = ["--lifetime", lifetime];
        let end = value.map_or(vec!["--delete"], |value| vec!["--update", value]);
        self.cluster(&[&begin[..], &lifetime, &end].concat())
            .map(drop)
    }

    /// Runs a program of the cluster for a few seconds at most, and returns its output.
    fn cluster(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("timeout");
        command.arg(super::ATTRIBUTE_WITHIN_S).args(words);
        let ended = command.stdin(Stdio::null()).output();
        let ended = ended.with_context(|| format!("cannot run {}", words[0]))?;
        anyhow::ensure!(
            ended.status.success(),
            "{}: {}: {}",
            words[0],
            ended.status,
            String::from_utf8_lossy(&ended.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cibadmin of Pacemaker 2.1.5 prints it, shortened. The guest `old` was removed.
    const CIB: &str = r#"<cib><configuration>
        <nodes>
          <node id="1" uname="alpha"><instance_attributes id="nodes-1">
            <nvpair id="a" name="plover-shop-member" value="0, 948 MiB"/><nvpair id="b" name="standby" value="on"/>
            <nvpair id="c" name="plover-shop-2-member" value="7, 500 MiB"/><nvpair id="m" name="plover_memory_mib" value="2000"/>
            <nvpair id="o" name="plover-old-member" value="1, 400 MiB"/></instance_attributes></node>
          <node id="2" uname="beta"><instance_attributes id="nodes-2">
            <nvpair id="d" name="plover-shop-member" value="1, 948 MiB"/><nvpair id="e" name="standby" value="off"/></instance_attributes>
            <utilization id="u"><nvpair id="f" name="standby" value="1"/></utilization></node>
          <node id="3" uname="gamma"/>
        </nodes>
        <resources><clone><primitive id="shop" provider="plover" type="guest"/></clone>
          <clone><primitive id="shop-2" provider="plover" type="guest"/></clone></resources></configuration>
        <status>
          <node_state id="3" uname="gamma" crmd="online"><transient_attributes id="3"><instance_attributes id="status-3">
            <nvpair id="g" name="plover-shop" value="spare"/><nvpair id="h" name="plover-shop-spare" value="3@192.0.2.13:7700"/>
            <nvpair id="r" name="plover_room_mib" value="400"/></instance_attributes></transient_attributes>
          <lrm id="3"><lrm_resources/></lrm></node_state>
        </status></cib>"#;

    #[test]
    fn members_and_spare_replicas_are_found_in_the_cluster() {
        let place = |id: u8| Place {
            id,
            memory_mib: 948,
        };
        let node = |name: &str| Node {
            name: name.into(),
            ..Node::default()
        };
        let alpha = Node {
            is_away: true,
            member: Some(place(0)),
            memory_mib: Some(2000),
            taken_mib: 500,
            ..node("alpha")
        };
        let beta = Node {
            member: Some(place(1)),
            ..node("beta")
        };
        let gamma = Node {
            is_online: true,
            room_told: Some(400),
            spare: Some((3, "192.0.2.13:7700".into())),
            ..node("gamma")
        };
        assert_eq!(nodes(CIB, "shop").unwrap(), [alpha, beta, gamma]);
        assert!(nodes("<cib>", "shop").is_err());
    }

    #[test]
    fn the_room_on_a_node_is_what_its_members_leave() {
        let shop = &nodes(CIB, "shop").unwrap();
        assert_eq!(shop[0].new_room(), Some(2000 - 500 - 948));
        let known = CIB.replace(
            "name=\"standby\" value=\"on\"",
            "name=\"plover_room_mib\" value=\"552\"",
        );
        assert_eq!(
            nodes(&known, "shop").unwrap()[0].new_room(),
            None,
            "it is known"
        );
        assert_eq!(shop[1].new_room(), None, "its memory is not");
        assert_eq!(shop[1].room_mib(), i64::MAX);
        let other = &nodes(CIB, "shop-2").unwrap()[0];
        assert!(other.is_of(7));
        assert_eq!(other.room_mib(), 2000 - 948, "its own member moves nowhere");
        let wrong = CIB.replace("value=\"2000\"", "value=\"2000 MiB\"");
        assert_eq!(nodes(&wrong, "shop").unwrap()[0].memory_mib, Some(0));
    }
}
