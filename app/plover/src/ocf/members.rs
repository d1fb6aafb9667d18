//! A host that is lost for good is replaced by a spare one.
//!
//! ```text
//!   Pacemaker: a node is lost ─▶ starts the replica of a spare host, which waits ─▶ attribute plover-NAME-spare = ID@ADDRESS
//!   the leader's monitor: a member is silent for `replace_after_s`, and a spare one waits ─▶ `plover member replace`
//!   the members are others ─▶ attribute plover-NAME-member = ID, on the nodes of members alone
//! ```
//!
//! Pacemaker knows by the last attribute, which outlives the node, where replicas belong: a host that comes back before it was
//! replaced gets its replica again, and the spare one ends. One that was replaced gets none.
//!
//! The attribute says what memory the member takes, too, and another one what the node has: a lost member is replaced only on a
//! node with room for it (docs/decisions/0077).
//!
//! Only the leader's agent decides, since only a leader has the majority that a change takes. An order that is given twice, or by
//! a replica that leads no more, is refused by the group (docs/decisions/0047).

use super::{Instance, judge};
use crate::capacity::{self, Place};
use anyhow::{Context, Result};
use plover_lab::control::DaemonStatus;
use plover_lab::operate::MemberChange;
use roxmltree::{Document, Node as Element};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A node of the cluster, as its attributes tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub name: String,
    /// It is to have no replicas: an operator works on it.
    pub is_away: bool,
    /// The member whose host it is.
    pub member: Option<Place>,
    /// The memory that it has for replicas, in MiB, if it has told that.
    pub memory_mib: Option<i64>,
    /// The memory that members of other guests take there.
    pub taken_mib: i64,
    /// What the node tells to be left: for the rule by which Pacemaker finds a node for a spare replica.
    pub room_told: Option<i64>,
    /// The replica that waits there to be added, and its address.
    pub spare: Option<(u8, String)>,
}

/// The nodes of the cluster, as `cibadmin --query` prints them. A node that is lost forgets some of its attributes, such as that
/// of a spare replica.
pub(super) fn nodes(cib: &str, guest: &str) -> Result<Vec<Node>> {
    let document = Document::parse(cib).context("the answer of cibadmin is not understood")?;
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
            let is_yes = matches!(value, "on" | "true" | "yes" | "1");
            let own = key.strip_prefix("plover-");
            let place = || value.parse::<Place>().ok();
            match own.and_then(|it| it.strip_prefix(guest)) {
                Some("-member") => node.member = place(),
                Some("-spare") => node.spare = spare(value),
                _ if own.is_some_and(|it| it.ends_with("-member")) => {
                    node.taken_mib += place().map_or(0, |it| it.memory_mib as i64);
                }
                _ => match key {
                    capacity::MEMORY => node.memory_mib = value.parse().ok(),
                    capacity::ROOM => node.room_told = value.parse().ok(),
                    "standby" | "maintenance" => node.is_away |= is_yes,
                    _ => {}
                },
            }
        }
    }
    Ok(nodes.into_values().collect())
}

impl Node {
    /// The memory that members of other guests leave. Without a word of the node there is room for all.
    fn room_mib(&self) -> i64 {
        self.memory_mib.map_or(i64::MAX, |it| it - self.taken_mib)
    }

    fn is_of(&self, id: u8) -> bool {
        self.member.is_some_and(|it| it.id == id)
    }

    /// What all members leave, if the node has told what it has.
    fn left_mib(&self) -> Option<i64> {
        let own = self.member.map_or(0, |it| it.memory_mib as i64);
        Some(self.memory_mib? - self.taken_mib - own)
    }
}

/// `ID@ADDRESS`.
fn spare(value: &str) -> Option<(u8, String)> {
    let (id, address) = value.split_once('@')?;
    Some((id.parse().ok()?, address.into()))
}

/// The members, as a leader's status tells.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    voters: Vec<u8>,
    left: Vec<u8>,
    change: Option<Change>,
    silences: Vec<Silence>,
}

#[derive(Debug, Deserialize)]
struct Change {
    add: Option<u8>,
}

#[derive(Debug, Deserialize)]
struct Silence {
    id: u8,
    s: u64,
    /// It was told to.
    stopped: bool,
}

impl Told {
    fn of(own: &DaemonStatus) -> Self {
        let told = Value::Object(own.more.clone());
        serde_json::from_value(told).unwrap_or_default()
    }
}

/// The rules of a group, by its configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The number of its members.
    pub size: usize,
    /// `group.replace_after_s`.
    pub after_s: u64,
    /// What a replica takes.
    pub memory_mib: u64,
}

/// The change of the members that a leader is to be ordered now, if any.
pub(super) fn next(own: &DaemonStatus, nodes: &[Node], rules: Rules) -> Option<MemberChange> {
    let after_s = rules.after_s;
    let told = Told::of(own);
    let silent = |id: u8| {
        let mut silent = told.silences.iter();
        silent.find(|it| it.id == id && after_s > 0 && it.s >= after_s)
    };
    let node_of = |id: u8| nodes.iter().find(|it| it.is_of(id));
    if let Some(change) = &told.change {
        // A new host that has begun, and was lost: another one can be added then. One that waits still cannot be reached, and
        // `plover status` says what to look at.
        let is_lost = |id: u8| {
            let mut spares = nodes.iter().filter_map(|it| it.spare.as_ref());
            let waits = spares.any(|it| it.0 == id);
            silent(id).is_some() && !waits && node_of(id).is_some_and(|it| !it.is_away)
        };
        let lost = change.add.filter(|id| is_lost(*id));
        return lost.map(|id| MemberChange {
            add: None,
            remove: Some(id),
        });
    }
    // One that was told to stop is started again by who stopped it. Without its node it is not known whether somebody works on
    // that.
    let is_lost = |id: u8| {
        silent(id).is_some_and(|it| !it.stopped) && node_of(id).is_some_and(|it| !it.is_away)
    };
    let mut others = told.voters.iter().copied().filter(|id| *id != own.id);
    let is_short = told.voters.len() < rules.size;
    let remove = others.find(|id| !is_short && is_lost(*id));
    let is_new = |id: u8| !told.voters.contains(&id) && !told.left.contains(&id);
    let with_room = nodes
        .iter()
        .filter(|it| it.room_mib() >= rules.memory_mib as i64);
    let mut waiting = with_room.filter_map(|it| it.spare.as_ref());
    let add = waiting.find(|(id, _)| is_new(*id)).cloned();
    (add.is_some() && (is_short && after_s > 0 || remove.is_some()))
        .then_some(MemberChange { add, remove })
}

/// Whether a replica is a member, or becomes one: its host is the one where Pacemaker is to run it.
fn belongs(own: &DaemonStatus) -> bool {
    let told = Told::of(own);
    let joins = told.change.is_some_and(|change| change.add == Some(own.id));
    joins || own.role != "recovering" && told.voters.contains(&own.id)
}

impl Instance {
    /// Keeps the attributes of members, and has the group replace one that is lost. All of it is tried again at the next
    /// monitor, so nothing is done if the cluster does not answer.
    pub(super) fn look_after_members(&self, own: &DaemonStatus, begun: Instant) {
        // The next monitor has more time. This one must not be late for it.
        let is_late = begun.elapsed() > self.timeout / 4;
        if judge::waits(own) || is_late {
            return;
        }
        if let Err(error) = self.keep_members(own) {
            // Pacemaker writes it into its log.
            eprintln!("the members of the group are not looked after: {error:#}");
        }
    }

    fn keep_members(&self, own: &DaemonStatus) -> Result<()> {
        let group = &self.config.group;
        let nodes = self.nodes()?;
        let memory_mib = capacity::of_replica(&self.config);
        let place = |id: u8| Place { id, memory_mib };
        let here = nodes.iter().find(|it| Some(&it.name) == self.node.as_ref());
        if let Some(here) = here {
            self.tell_room(here)?;
            let is_told = here.member == Some(place(own.id));
            if belongs(own) && !is_told {
                self.write_member(&here.name, Some(place(own.id)))?;
            }
        }
        // One that was cut off still leads, as far as it knows.
        if own.role != "leader" || !own.serving {
            return Ok(());
        }
        let told = Told::of(own);
        if told.voters.is_empty() {
            // Both of a pair stay.
            return Ok(());
        }
        let newcomer = told.change.as_ref().and_then(|it| it.add);
        let belongs = |id: u8| told.voters.contains(&id) || newcomer == Some(id);
        let has_left = |it: &&Node| it.member.is_some_and(|it| !belongs(it.id));
        // One in each turn: a monitor has its time, too.
        if let Some(node) = nodes.iter().find(has_left) {
            return self.write_member(&node.name, None);
        }
        let rules = Rules {
            size: group.replica.len(),
            after_s: group.replace_after_s,
            memory_mib,
        };
        let Some(change) = next(own, &nodes, rules) else {
            return Ok(());
        };
        if let Some((id, _)) = &change.add {
            // If that host is lost now, it is known whose it was.
            let is_its = |it: &&Node| it.spare.as_ref().is_some_and(|it| it.0 == *id);
            if let Some(node) = nodes.iter().find(is_its) {
                self.write_member(&node.name, Some(place(*id)))?;
                // Another guest may have taken the same room at this moment. The later one finds both, and gives way.
                let nodes = self.nodes()?;
                let is_full = |it: &&Node| it.room_mib() < memory_mib as i64;
                if nodes.iter().filter(is_its).any(|it| is_full(&it)) {
                    return self.write_member(&node.name, None);
                }
            }
        }
        let asked = self.control().request(&change.request());
        asked.context("the order to change the members was not taken")?;
        Ok(())
    }

    /// Writes down what memory this node has for replicas, unless that is written already: an operator may have chosen it.
    /// Nothing is done if the cluster does not answer.
    pub(super) fn tell_memory(&self) {
        let Some(name) = &self.node else { return };
        let told = self.nodes().and_then(|nodes| {
            let here = nodes.iter().find(|it| it.name == *name);
            let Some(here) = here else { return Ok(()) };
            let Some(has) = capacity::of_host().filter(|_| here.memory_mib.is_none()) else {
                return self.tell_room(here);
            };
            self.write(
                &here.name,
                capacity::MEMORY,
                "forever",
                Some(&has.to_string()),
            )?;
            self.tell_room(&Node {
                memory_mib: Some(has as i64),
                ..here.clone()
            })
        });
        if let Err(error) = told {
            eprintln!("the memory of this node is not told: {error:#}");
        }
    }

    /// Writes down what memory the members leave here.
    fn tell_room(&self, here: &Node) -> Result<()> {
        let Some(left) = here.left_mib().filter(|it| here.room_told != Some(*it)) else {
            return Ok(());
        };
        self.write(
            &here.name,
            capacity::ROOM,
            "reboot",
            Some(&left.to_string()),
        )
    }

    fn nodes(&self) -> Result<Vec<Node>> {
        let cib = self.cluster(&["cibadmin", "--query"])?;
        nodes(&cib, &self.config.group.name)
    }

    fn write_member(&self, node: &str, place: Option<Place>) -> Result<()> {
        let name = capacity::of_member(&self.config.group.name);
        let value = place.map(|it| it.to_string());
        self.write(node, &name, "forever", value.as_deref())
    }

    /// Writes an attribute of a node, or deletes it.
    fn write(&self, node: &str, name: &str, lifetime: &str, value: Option<&str>) -> Result<()> {
        let begin = [
            "crm_attribute",
            "--node",
            node,
            "--name",
            name,
            "--lifetime",
            lifetime,
        ];
        let end = value.map_or(vec!["--delete"], |value| vec!["--update", value]);
        self.cluster(&[&begin[..], &end].concat()).map(drop)
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
    use serde_json::json;

    /// As cibadmin of Pacemaker 2.1.5 prints it, shortened.
    const CIB: &str = r#"<cib><configuration>
        <nodes>
          <node id="1" uname="alpha"><instance_attributes id="nodes-1">
            <nvpair id="a" name="plover-shop-member" value="0, 948 MiB"/><nvpair id="b" name="standby" value="on"/>
            <nvpair id="c" name="plover-shop-2-member" value="7, 500 MiB"/><nvpair id="m" name="plover_memory_mib" value="2000"/></instance_attributes></node>
          <node id="2" uname="beta"><instance_attributes id="nodes-2">
            <nvpair id="d" name="plover-shop-member" value="1, 948 MiB"/><nvpair id="e" name="standby" value="off"/></instance_attributes>
            <utilization id="u"><nvpair id="f" name="standby" value="1"/></utilization></node>
          <node id="3" uname="gamma"/>
        </nodes></configuration>
        <status>
          <node_state id="3" uname="gamma" crmd="online"><transient_attributes id="3"><instance_attributes id="status-3">
            <nvpair id="g" name="plover-shop" value="spare"/><nvpair id="h" name="plover-shop-spare" value="3@192.0.2.13:7700"/>
          </instance_attributes></transient_attributes>
          <lrm id="3"><lrm_resources/></lrm></node_state>
        </status></cib>"#;

    fn node(name: &str, member: Option<u8>, spare: Option<u8>) -> Node {
        Node {
            name: name.into(),
            member: member.map(place),
            spare: spare.map(|id| (id, format!("192.0.2.1{id}:7700"))),
            ..Node::default()
        }
    }

    fn place(id: u8) -> Place {
        Place {
            id,
            memory_mib: 948,
        }
    }

    const RULES: Rules = Rules {
        size: 3,
        after_s: 600,
        memory_mib: 948,
    };

    #[test]
    fn members_and_spare_replicas_are_found_in_the_cluster() {
        let mut alpha = node("alpha", Some(0), None);
        alpha.is_away = true;
        alpha.memory_mib = Some(2000);
        alpha.taken_mib = 500;
        let all = [
            alpha,
            node("beta", Some(1), None),
            node("gamma", None, Some(3)),
        ];
        assert_eq!(nodes(CIB, "shop").unwrap(), all);
        assert_eq!(all[0].left_mib(), Some(2000 - 500 - 948));
        assert_eq!(all[1].left_mib(), None, "it has not told");
        let other = &nodes(CIB, "shop-2").unwrap()[0];
        assert!(other.is_of(7));
        assert_eq!(other.room_mib(), 2000 - 948, "its own member moves nowhere");
        assert!(nodes("<cib>", "shop").is_err());
    }

    /// The order that the leader 1 of members 0, 1 and 2 gets, with these fields in its status.
    fn ordered(fields: Value, nodes: &[Node]) -> Option<(Option<u8>, Option<u8>)> {
        let mut own = json!({"id": 1, "role": "leader", "view": "1@r1", "isr": [1, 2], "voters": [0, 1, 2], "left": []});
        for (key, value) in fields.as_object().unwrap() {
            own[key] = value.clone();
        }
        let own = serde_json::from_value(own).unwrap();
        let change = next(&own, nodes, RULES)?;
        Some((change.add.map(|(id, _)| id), change.remove))
    }

    #[test]
    fn a_member_that_is_silent_for_long_is_replaced_by_a_replica_that_waits() {
        let members = [
            node("alpha", Some(0), None),
            node("beta", Some(1), None),
            node("gamma", Some(2), None),
        ];
        let spare = [&members[..], &[node("delta", None, Some(3))]].concat();
        let silence =
            |s: u64, stopped: bool| json!({"silences": [{"id": 0, "s": s, "stopped": stopped}]});
        let silent = |s: u64| silence(s, false);
        assert_eq!(ordered(json!({}), &spare), None, "all answer");
        assert_eq!(ordered(silent(599), &spare), None);
        assert_eq!(ordered(silent(600), &spare), Some((Some(3), Some(0))));
        assert_eq!(ordered(silent(600), &members), None, "nobody waits");
        let mut full = spare.clone();
        full[3].memory_mib = Some(1000);
        full[3].taken_mib = 53;
        assert_eq!(ordered(silent(600), &full), None, "no room is there");
        full[3].taken_mib = 52;
        assert_eq!(ordered(silent(600), &full), Some((Some(3), Some(0))));
        let mut standby = spare.clone();
        standby[0].is_away = true;
        assert_eq!(
            ordered(silent(9000), &standby),
            None,
            "an operator works on it"
        );
        let told_to = silence(9000, true);
        assert_eq!(ordered(told_to, &spare), None, "it was told to stop");
        assert_eq!(
            ordered(silent(600), &spare[1..]),
            None,
            "its node is unknown"
        );
        let mut used = silent(600);
        used["left"] = json!([3]);
        assert_eq!(ordered(used, &spare), None, "3 was a member once");
    }

    #[test]
    fn a_new_host_that_is_lost_gives_way_to_the_next() {
        let delta = [node("delta", None, Some(3))];
        let epsilon = [node("epsilon", None, Some(4))];
        let change = json!({"add": 3, "remove": 0, "words": "", "step": null});
        let under_way = |s: u64| {
            let silences =
                json!([{"id": 0, "s": 900, "stopped": false}, {"id": 3, "s": s, "stopped": true}]);
            json!({"change": change, "silences": silences})
        };
        let begun = [&[node("delta", Some(3), None)][..], &epsilon].concat();
        assert_eq!(ordered(under_way(30), &begun), None);
        assert_eq!(ordered(under_way(600), &begun), Some((None, Some(3))));
        let mut away = begun;
        away[0].is_away = true;
        assert_eq!(ordered(under_way(600), &away), None);
        let waits = [&[node("delta", Some(3), Some(3))][..], &epsilon].concat();
        assert_eq!(
            ordered(under_way(600), &waits),
            None,
            "it cannot be reached"
        );
        assert_eq!(ordered(under_way(600), &epsilon), None, "a person's order");
        let short = json!({"voters": [1, 2], "left": [0, 3]});
        assert_eq!(ordered(short.clone(), &epsilon), Some((Some(4), None)));
        assert_eq!(ordered(short.clone(), &delta), None);
        let own = json!({"id": 1, "role": "leader", "view": "1@r1", "isr": [1], "voters": [1, 2], "left": [0, 3]});
        let own = serde_json::from_value(own).unwrap();
        let never = Rules {
            after_s: 0,
            ..RULES
        };
        assert!(next(&own, &epsilon, never).is_none(), "never by itself");
    }

    #[test]
    fn the_host_of_a_member_is_where_it_belongs() {
        let belongs = |own: Value| belongs(&serde_json::from_value(own).unwrap());
        let own = |role: &str, voters: &[u8], add: Option<u8>| {
            let change = add.map(|add| json!({"add": add, "remove": 0}));
            json!({"id": 3, "role": role, "view": "1@r1", "isr": [], "voters": voters, "change": change})
        };
        assert!(belongs(own("witness", &[1, 2, 3], None)));
        assert!(!belongs(own("recovering", &[0, 1, 3], None)), "by its file");
        assert!(belongs(own("recovering", &[0, 1, 2], Some(3))));
        assert!(!belongs(own("witness", &[0, 1, 2], Some(4))));
    }
}
