//! A host that is lost for good is replaced by a spare one.
//!
//! ```text
//!   Pacemaker: a node is lost ─▶ starts the replica of a spare host, which waits ─▶ attribute plover-NAME-spare = ID@ADDRESS
//!   the leader's monitor: a member is silent for `replace_after_s`, and a spare one waits ─▶ `plover member replace`
//!   the members are others ─▶ attribute plover-NAME-member = ID, MEMORY, on the nodes of members alone
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

use super::cluster::Node;
use super::{Instance, judge};
use crate::capacity::{self, Place};
use anyhow::{Context, Result};
use plover_lab::control::DaemonStatus;
use plover_lab::operate::MemberChange;
use serde::Deserialize;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

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
    /// The memory that a replica takes.
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
    let with_room = nodes.iter().filter(|it| it.has_room(rules.memory_mib));
    let mut waiting = with_room.filter_map(|it| it.spare.as_ref());
    let add = waiting.find(|(id, _)| is_new(*id)).cloned();
    (add.is_some() && (is_short && after_s > 0 || remove.is_some()))
        .then_some(MemberChange { add, remove })
}

/// Whether a replica is a member, or becomes one: its host is the one where Pacemaker is to run it.
fn belongs(own: &DaemonStatus) -> bool {
    let told = Told::of(own);
    let joins = told.change.is_some_and(|change| change.add == Some(own.id));
    // The status of a pair names no voters: both stay.
    let is_member = told.voters.is_empty() || told.voters.contains(&own.id);
    joins || own.role != "recovering" && is_member
}

impl Instance {
    /// Keeps the attributes of members, and has the group replace one that is lost. All of it is tried again at the next
    /// monitor, so nothing is done if the cluster does not answer.
    pub(super) fn look_after_members(&self, own: &DaemonStatus, begun: Instant) {
        // The next monitor has more time. This one must not be late for it.
        let is_late = begun.elapsed() > self.timeout / 4;
        if is_late {
            return;
        }
        if let Err(error) = self.keep_members(own, begun) {
            // Pacemaker writes it into its log.
            eprintln!("the members of the group are not looked after: {error:#}");
        }
    }

    fn keep_members(&self, own: &DaemonStatus, begun: Instant) -> Result<()> {
        let group = &self.config.group;
        let nodes = self.nodes()?;
        let memory_mib = capacity::of_replica(&self.config);
        let place = |id: u8| Place { id, memory_mib };
        let here = nodes.iter().find(|it| Some(&it.name) == self.node.as_ref());
        if let Some(here) = here {
            // The probe may have been one of a former release.
            self.tell_memory(here)?;
            let is_told = here.member == Some(place(own.id));
            if !judge::waits(own) && belongs(own) && !is_told {
                self.write_member(&here.name, Some(place(own.id)))?;
            }
        }
        // One that was cut off still leads, as far as it knows.
        if own.role != "leader" || !own.serving {
            return Ok(());
        }
        let told = Told::of(own);
        let newcomer = told.change.as_ref().and_then(|it| it.add);
        let is_pair = told.voters.is_empty();
        let belongs = |id: u8| is_pair || told.voters.contains(&id) || newcomer == Some(id);
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
        let Some(change) = next(own, &nodes, rules).filter(|_| !is_pair) else {
            let mut online = nodes.iter().filter(|it| it.is_online);
            return online.try_for_each(|it| self.tell_room(it));
        };
        if let Some((id, _)) = &change.add {
            // If that host is lost now, it is known whose it was.
            let is_its = |it: &&Node| it.spare.as_ref().is_some_and(|it| it.0 == *id);
            if let Some(node) = nodes.iter().find(is_its) {
                // Another guest may want the same room, and its monitor may come at the same moment each time.
                let random = RandomState::new().hash_one(id) % 1000;
                std::thread::sleep(Duration::from_millis(random));
                self.write_member(&node.name, Some(place(*id)))?;
                // If it has taken it, both may find so, and both try again.
                let nodes = self.nodes()?;
                let is_full = nodes
                    .iter()
                    .filter(is_its)
                    .any(|it| !it.has_room(memory_mib));
                if is_full || begun.elapsed() > self.timeout / 2 {
                    return self.write_member(&node.name, None);
                }
            }
        }
        let asked = self.control().request(&change.request());
        asked.context("the order to change the members was not taken")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
