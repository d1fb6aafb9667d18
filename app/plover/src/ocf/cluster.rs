//! The nodes of the cluster, as agents read them and write down the memory of their hosts.
//!
//! | attribute of a node | who writes it |
//! |---|---|
//! | `plover-NAME-member` | the agent of that member; the leader's for a spare host that gets a place, and when one has left |
//! | `plover-NAME-spare` | `plover fleet apply` |
//! | `plover_memory_mib` | the first agent there, or the operator |

use super::{Instance, judge};
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
    /// It is there, may have replicas, and that of this guest has not failed there of late: Pacemaker runs it there, or is about
    /// to, if it has the place of a member.
    pub can_start: bool,
    /// It is to have no replicas: an operator works on it.
    pub is_away: bool,
    /// The member whose host it is.
    pub member: Option<Place>,
    /// The memory that it has for replicas, in MiB, if that is written down.
    pub memory_mib: Option<i64>,
    /// The memory that members of other guests take there.
    pub taken_mib: i64,
    /// The replica that may get a place there, and its address.
    pub spare: Option<(u8, String)>,
    /// The role of the replica there, as its agent has written it down.
    pub role: Option<String>,
    /// Whether the guest is protected, as the agent of the leader's node has written it down.
    pub protected: Option<String>,
    /// A replica of this guest answers there.
    pub answers: bool,
    /// It is there.
    pub is_online: bool,
    /// The cluster has it as one that is off, and no replica of this guest that ran there last: it was fenced, or has left in
    /// order after the replica was stopped.
    pub is_off: bool,
    /// The replica there was stopped, and not started again.
    pub has_stopped: bool,
    /// The replica for whose end the one there waits.
    pub awaits: Option<u8>,
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

    /// Whether the replica that may get a place there runs, and waits to be added.
    pub fn waits(&self) -> bool {
        let spare = self.spare.as_ref().map(|it| judge::spare(it.0));
        spare.is_some() && self.role == spare
    }

    /// Whether this replica may get a place there.
    pub fn is_spare_of(&self, id: u8) -> bool {
        self.spare.as_ref().is_some_and(|it| it.0 == id)
    }

    /// This of the attributes of [`judge::attributes`], as it is written down.
    pub fn told(&self, name: &str) -> Option<&str> {
        let told = match name {
            judge::PROTECTED => &self.protected,
            _ => &self.role,
        };
        told.as_deref()
    }

    /// Whether it is the host of this member.
    pub fn is_of(&self, id: u8) -> bool {
        self.member.is_some_and(|it| it.id == id)
    }
}

/// The nodes of the cluster, as `cibadmin --query` prints them. A node that is lost forgets some of its attributes, such as that
/// of a spare replica.
pub(super) fn nodes(cib: &str, guest: &str) -> Result<Vec<Node>> {
    let document = Document::parse(cib).context("the answer of cibadmin is not understood")?;
    // The attributes of a guest that was removed are still there.
    let guests: BTreeSet<String> = guests_of(&document).map(capacity::of_member).collect();
    let own = capacity::of_member(guest);
    let spare = capacity::of_spare(guest);
    let role = format!("plover-{guest}");
    let protected = format!("plover-{guest}{}", judge::PROTECTED);
    let awaits = super::off::awaits(guest);
    let failed_here = format!("fail-count-{guest}#");
    let (mut online, mut failed) = (BTreeSet::new(), BTreeSet::new());
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
        // Since Pacemaker 2.1.7 it says when the node came, or 0.
        let is_yes = |it: &str| {
            matches!(it, "online" | "true") || it.parse().is_ok_and(|since: u64| since > 0)
        };
        let is = |key: &str| element.attribute(key).is_some_and(is_yes);
        if is("crmd") {
            online.insert(name);
        }
        if element.has_tag_name("node_state") {
            // A new coordinator of the cluster calls nodes that it does not know down as well, and so does one that was told of
            // a shutdown. Only fencing deletes what ran there.
            let is_down =
                element.attribute("expected") == Some("down") && !is("crmd") && !is("in_ccm");
            let ran = last_of(element, guest);
            node.is_off = is_down && ran != Last::Ran;
            node.has_stopped = ran == Last::Stopped;
        }
        let outlives_the_node = element.has_tag_name("node");
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
                _ if key == spare && outlives_the_node => node.spare = id_and_address(value),
                _ if key == awaits => node.awaits = value.parse().ok(),
                _ if key == role && !value.is_empty() => node.role = Some(value.into()),
                _ if key == protected && !value.is_empty() => node.protected = Some(value.into()),
                _ if key.starts_with(&failed_here) => {
                    failed.insert(name);
                }
                _ if guests.contains(key) => {
                    let place = value.parse::<Place>();
                    node.taken_mib += place.map_or(0, |it| it.memory_mib as i64);
                }
                // A figure that cannot be read must not count as none: it is the operator's.
                capacity::MEMORY => node.memory_mib = Some(value.parse().unwrap_or(0)),
                "standby" | "maintenance" => {
                    node.is_away |= matches!(value, "on" | "true" | "yes" | "1");
                }
                _ => {}
            }
        }
    }
    for (name, node) in &mut nodes {
        let is_online = online.contains(name);
        node.is_online = is_online;
        node.can_start = is_online && !node.is_away && !failed.contains(name);
        node.answers = is_online && node.role.as_deref().is_some_and(|it| it != judge::HUNG);
    }
    Ok(nodes.into_values().collect())
}

/// The replica on a node, as the cluster remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Nothing: it was never there, or the node was fenced.
    Nothing,
    /// It was stopped, or found not to run.
    Stopped,
    /// It was started, or something of it is under way, or has failed.
    Ran,
}

/// By the newest action of the guest's resource on a node.
fn last_of(node: Element<'_, '_>, guest: &str) -> Last {
    let of_guest = |it: &Element<'_, '_>| {
        let id = it.attribute("id").unwrap_or_default();
        // An instance that a cluster calls unique has its number behind the name.
        it.has_tag_name("lrm_resource") && id.split(':').next() == Some(guest)
    };
    let resources = node.descendants().filter(of_guest);
    let actions = resources.flat_map(|it| it.children().filter(Element::is_element));
    let is_recurring = |it: &Element<'_, '_>| it.attribute("interval").is_some_and(|it| it != "0");
    let number = |it: &Element<'_, '_>| -> i64 {
        let number = it.attribute("call-id").and_then(|it| it.parse().ok());
        // One that is under way has none.
        number.filter(|it| *it >= 0).unwrap_or(i64::MAX)
    };
    // A monitor that recurs may stay recorded as under way for ever.
    let actions = actions.filter(|it| !is_recurring(it) || number(it) < i64::MAX);
    let actions: Vec<_> = actions.collect();
    let Some(newest) = actions.iter().map(number).max() else {
        return Last::Nothing;
    };
    // One that recurs proves nothing: if it found none, and the replica was started again by others, the failure stays recorded.
    let says_so = |it: &Element<'_, '_>| {
        let told = (it.attribute("operation"), it.attribute("rc-code"));
        told == (Some("stop"), Some("0"))
            || told == (Some("monitor"), Some("7")) && !is_recurring(it)
    };
    let mut newest = actions.iter().filter(|it| number(it) == newest);
    match newest.all(says_so) {
        true => Last::Stopped,
        false => Last::Ran,
    }
}

/// Whether the cluster has a quorum, and fences.
pub(super) fn fences(cib: &str) -> Result<bool> {
    let document = Document::parse(cib).context("the answer of cibadmin is not understood")?;
    let has_quorum = document.root_element().attribute("have-quorum") == Some("1");
    Ok(has_quorum && may_fence(&document))
}

/// Whether the properties of a cluster let it fence.
pub fn may_fence(cib: &Document<'_>) -> bool {
    let mut pairs = cib.descendants().filter(|it| {
        let is_property = it.ancestors().any(|it| it.has_tag_name("crm_config"));
        // Since Pacemaker 3.0 it has another name.
        let names = ["stonith-enabled", "fencing-enabled"];
        is_property && it.attribute("name").is_some_and(|it| names.contains(&it))
    });
    // Pacemaker fences unless it is told not to.
    pairs.all(|it| {
        let value = it.attribute("value").unwrap_or_default().to_lowercase();
        matches!(value.as_str(), "true" | "on" | "yes" | "y" | "1")
    })
}

/// `ID@ADDRESS`.
fn id_and_address(value: &str) -> Option<(u8, String)> {
    let (id, address) = value.split_once('@')?;
    Some((id.parse().ok()?, address.into()))
}

impl Instance {
    /// At a probe: writes down the memory of this host. Nothing is done if the cluster does not answer.
    pub(super) fn tell_memory_at_probe(&self) {
        let Some(name) = &self.node else { return };
        let told = self.nodes().and_then(|nodes| {
            let here = nodes.iter().find(|it| it.name == *name);
            here.map_or(Ok(()), |here| self.tell_memory(here))
        });
        if let Err(error) = told {
            // Pacemaker writes it into its log.
            tell!("the memory of {name} is not written down: {error:#}");
        }
    }

    /// Writes down the memory that this host has for replicas, unless it is written already: an operator may have chosen it.
    pub(super) fn tell_memory(&self, here: &Node) -> Result<()> {
        let Some(has) = capacity::of_host().filter(|_| here.memory_mib.is_none()) else {
            return Ok(());
        };
        self.write(&here.name, capacity::MEMORY, Some(&has.to_string()))
    }

    pub(super) fn nodes(&self) -> Result<Vec<Node>> {
        nodes(&self.cib()?, &self.config.group.name)
    }

    pub(super) fn cib(&self) -> Result<String> {
        self.cluster(&["cibadmin", "--query"])
    }

    /// Writes down that a node is the host of a member, or of none.
    pub(super) fn write_member(&self, node: &str, place: Option<Place>) -> Result<()> {
        let name = capacity::of_member(&self.config.group.name);
        let value = place.map(|it| it.to_string());
        self.write(node, &name, value.as_deref())
    }

    /// Writes an attribute of a node that outlives it, or deletes it.
    fn write(&self, node: &str, name: &str, value: Option<&str>) -> Result<()> {
        let begin = ["crm_attribute", "--node", node, "--name", name];
        let lifetime = ["--lifetime", "forever"];
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
          <node id="3" uname="gamma"><instance_attributes id="nodes-3">
            <nvpair id="s" name="plover-shop-spare" value="3@192.0.2.13:7700"/></instance_attributes></node>
        </nodes>
        <resources><clone><primitive id="shop" provider="plover" type="guest"/></clone>
          <clone><primitive id="shop-2" provider="plover" type="guest"/></clone></resources></configuration>
        <status>
          <node_state id="1" uname="alpha" crmd="online"/>
          <node_state id="2" uname="beta" in_ccm="false" crmd="offline" expected="down"/>
          <node_state id="3" uname="gamma" crmd="online"><transient_attributes id="3"><instance_attributes id="status-3">
            <nvpair id="g" name="plover-shop" value="spare 3"/><nvpair id="p" name="plover-shop-protected" value="no"/>
            <nvpair id="h" name="fail-count-shop-2#start_0" value="INFINITY"/></instance_attributes></transient_attributes>
          <lrm id="3"><lrm_resources/></lrm></node_state>
        </status></cib>"#;

    #[test]
    fn members_and_spare_replicas_are_found_in_the_cluster() {
        let place = |id: u8| Place::of_member(id, 948);
        let node = |name: &str| Node {
            name: name.into(),
            ..Node::default()
        };
        let alpha = Node {
            is_online: true,
            is_away: true,
            member: Some(place(0)),
            memory_mib: Some(2000),
            taken_mib: 500,
            ..node("alpha")
        };
        let beta = Node {
            is_off: true,
            member: Some(place(1)),
            ..node("beta")
        };
        let gamma = Node {
            is_online: true,
            can_start: true,
            spare: Some((3, "192.0.2.13:7700".into())),
            role: Some("spare 3".into()),
            protected: Some("no".into()),
            answers: true,
            ..node("gamma")
        };
        assert!(gamma.waits());
        assert_eq!(nodes(CIB, "shop").unwrap(), [alpha, beta, gamma]);
        let other = CIB.replace("spare 3", "spare 4");
        assert!(!nodes(&other, "shop").unwrap()[2].waits());
        let hung = &nodes(&CIB.replace("spare 3", "hung"), "shop").unwrap()[2];
        assert!(!hung.waits() && !hung.answers && hung.can_start);
        // Since Pacemaker 2.1.7.
        let newer = CIB.replace("crmd=\"online\"", "crmd=\"1764339000\"");
        let newer = newer.replace("crmd=\"offline\"", "crmd=\"0\"");
        let newer = newer.replace("in_ccm=\"false\"", "in_ccm=\"0\"");
        assert_eq!(nodes(&newer, "shop").unwrap(), nodes(CIB, "shop").unwrap());
        let has_failed = CIB.replace("fail-count-shop-2#start_0", "fail-count-shop#start_0");
        assert!(!nodes(&has_failed, "shop").unwrap()[2].can_start);
        assert!(nodes("<cib>", "shop").is_err());
    }

    /// The other one of two replicas waits for that: a node that is only lost may run its replica.
    #[test]
    fn a_node_is_off_that_was_fenced_or_has_left_in_order() {
        let is_off =
            |from: &str, to: &str| nodes(&CIB.replace(from, to), "shop").unwrap()[1].is_off;
        assert!(is_off("", ""));
        assert!(!is_off("expected=\"down\"", "expected=\"member\""));
        assert!(!is_off("expected=\"down\"", ""));
        assert!(!is_off("in_ccm=\"false\"", "in_ccm=\"true\""));
        assert!(!is_off("crmd=\"offline\"", "crmd=\"online\""));
        // A new coordinator calls each node down that it does not know, and one is down that has left while its replica was not to be
        // touched. Fencing deletes what ran there.
        let with = |actions: &str| {
            let ran = format!(
                "<node_state id=\"2\" uname=\"beta\" in_ccm=\"false\" crmd=\"offline\" expected=\"down\"><lrm id=\"2\"><lrm_resources>\
                               <lrm_resource id=\"shop\">{actions}</lrm_resource></lrm_resources></lrm></node_state>"
            );
            let from = "<node_state id=\"2\" uname=\"beta\" in_ccm=\"false\" crmd=\"offline\" expected=\"down\"/>";
            assert!(CIB.contains(from));
            nodes(&CIB.replace(from, &ran), "shop")
                .unwrap()
                .swap_remove(1)
        };
        let action = |operation: &str, call: i32, code: i32| {
            let interval = if call == 22 || call == -2 { 10000 } else { 0 };
            format!(
                "<lrm_rsc_op operation=\"{operation}\" call-id=\"{call}\" rc-code=\"{code}\" interval=\"{interval}\"/>"
            )
        };
        let (start, monitor) = (action("start", 20, 0), action("monitor", 22, 0));
        let stop = action("stop", 25, 0);
        assert!(!with(&[&*start, &monitor].concat()).is_off);
        assert!(!with(&[&*monitor, &action("stop", 25, 1)].concat()).is_off);
        let stopped = with(&[&*stop, &monitor].concat());
        assert!(stopped.is_off && stopped.has_stopped);
        assert!(with(&action("monitor", 3, 7)).has_stopped);
        assert!(!with(&[&*stop, &action("start", -1, 193)].concat()).has_stopped);
        assert!(!with("").has_stopped);
        // It was restarted by others: the failure that the recurring monitor saw stays.
        let failure = action("monitor", 22, 7);
        for seen in [
            [&*start, &monitor, &failure],
            [&*start, &failure, &monitor],
            [&*failure, &start, ""],
        ] {
            let seen = with(&seen.concat());
            assert!(!seen.has_stopped && !seen.is_off);
        }
        // A recurring monitor that stays under way.
        assert!(with(&[&*stop, &action("monitor", -2, 193)].concat()).has_stopped);
        let fenced = |quorum: &str, told: &str| {
            let root = format!("<cib have-quorum=\"{quorum}\"><configuration>{told}");
            fences(&CIB.replace("<cib><configuration>", &root)).unwrap()
        };
        let told = |name: &str, value: &str| {
            format!("<crm_config><nvpair name=\"{name}-enabled\" value=\"{value}\"/></crm_config>")
        };
        assert!(fenced("1", "") && fenced("1", &told("stonith", "True")));
        assert!(!fenced("0", "") && !fenced("1", &told("stonith", "false")));
        assert!(!fenced("1", &told("fencing", "false")));
        let waits = "name=\"plover-shop\" value=\"spare 3\"/><nvpair id=\"w\" name=\"plover-shop-awaits\" value=\"1\"";
        let waits = CIB.replace("name=\"plover-shop\" value=\"spare 3\"", waits);
        assert_eq!(nodes(&waits, "shop").unwrap()[2].awaits, Some(1));
    }

    #[test]
    fn the_room_on_a_node_is_what_members_of_other_guests_leave() {
        let shop = &nodes(CIB, "shop").unwrap();
        assert!(shop[0].has_room(1500) && !shop[0].has_room(1501));
        assert!(shop[1].has_room(1 << 40), "its memory is not known");
        let other = &nodes(CIB, "shop-2").unwrap()[0];
        assert!(other.is_of(7));
        assert!(other.has_room(2000 - 948), "its own member moves nowhere");
        assert!(!other.has_room(2000 - 947));
        let wrong = CIB.replace("value=\"2000\"", "value=\"2000 MiB\"");
        assert_eq!(nodes(&wrong, "shop").unwrap()[0].memory_mib, Some(0));
    }
}
