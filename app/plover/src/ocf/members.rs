//! A host that is lost for good is replaced by a spare one.
//!
//! ```text
//!   the leader's monitor: a member is silent for `replace_after_s` ─▶ attribute plover-NAME-member = ID, MEMORY on a spare host
//!   Pacemaker: runs a replica on the nodes with this attribute, and on no other ─▶ starts that one, which waits: plover-NAME = spare
//!   the leader's monitor: it waits ─▶ `plover member replace`
//!   the members are others ─▶ the attribute of the node whose member has left is deleted
//! ```
//!
//! The attribute outlives the node: a host that comes back before it was replaced gets its replica again, and the spare one ends.
//! One that was replaced gets none.
//!
//! The attribute says what memory the member takes, too, and another one what the node has: only a node with room gets the place
//! of a lost member (docs/decisions/0077).
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

/// Next on the way to a whole group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Pacemaker is to run this replica on a node, or none there.
    Place(&'a Node, Option<u8>),
    /// The leader is to be ordered to change the members.
    Change(MemberChange),
}

/// What a leader's agent is to do now, if anything. One thing in each turn: a monitor has its time, too.
pub(super) fn next<'a>(own: &DaemonStatus, nodes: &'a [Node], rules: Rules) -> Option<Step<'a>> {
    let told = Told::of(own);
    let after_s = rules.after_s;
    let node_of = |id: u8| nodes.iter().find(|it| it.is_of(id));
    // Without its node it is not known whether somebody works on that.
    let is_lost = |id: u8| {
        let mut silent = told.silences.iter();
        let silent = silent.find(|it| it.id == id && after_s > 0 && it.s >= after_s);
        silent.filter(|_| node_of(id).is_some_and(|it| !it.is_away))
    };
    let is_short = told.voters.len() < rules.size;
    // One that was told to stop is started again by who stopped it.
    let is_gone = |id: &u8| *id != own.id && is_lost(*id).is_some_and(|it| !it.stopped);
    let gone = told
        .voters
        .iter()
        .copied()
        .find(|id| !is_short && is_gone(id));
    let needs_one = told.change.is_none() && (is_short && after_s > 0 || gone.is_some());
    let newcomer = told.change.as_ref().and_then(|it| it.add);

    // A spare host that has the place of a lost member keeps it until it cannot take it any more.
    let is_new = |id: u8| !told.voters.contains(&id) && !told.left.contains(&id);
    let may_help = |it: &&Node| {
        let spare = it.spare.as_ref().filter(|spare| is_new(spare.0));
        spare.is_some_and(|spare| it.member.is_none_or(|member| member.id == spare.0))
            && it.can_start
            && it.has_room(rules.memory_mib)
    };
    let helpers = nodes.iter().filter(|it| needs_one && may_help(it));
    let helper = helpers.clone().find(|it| it.member.is_some());
    let helper = helper.or_else(|| helpers.clone().next());

    let belongs = |id: u8| told.voters.contains(&id) || newcomer == Some(id);
    let is_left = |it: &&Node| {
        let keeps = helper.is_some_and(|helper| helper.name == it.name);
        it.member.is_some_and(|it| !belongs(it.id)) && !keeps
    };
    if let Some(node) = nodes.iter().find(is_left) {
        return Some(Step::Place(node, None));
    }
    // A person's order, or the cluster has forgotten it.
    let spare_of = |id: u8| {
        let is_its =
            |it: &&Node| it.member.is_none() && it.spare.as_ref().is_some_and(|it| it.0 == id);
        nodes.iter().find(is_its)
    };
    let mut unplaced = told.voters.iter().copied().chain(newcomer);
    let unplaced = unplaced.find_map(|id| {
        spare_of(id)
            .filter(|_| node_of(id).is_none())
            .map(|it| (it, id))
    });
    if let Some((node, id)) = unplaced {
        return Some(Step::Place(node, Some(id)));
    }
    if let Some(id) = newcomer {
        // It has begun, and was lost: another one can be added then. One that waits still cannot be reached, and `plover status`
        // says what to look at.
        let waits = node_of(id).is_some_and(|it| it.waits);
        let change = MemberChange {
            add: None,
            remove: Some(id),
        };
        return (is_lost(id).is_some() && !waits).then_some(Step::Change(change));
    }
    let helper = helper?;
    let (id, address) = helper.spare.clone()?;
    if helper.member.is_none() {
        return Some(Step::Place(helper, Some(id)));
    }
    let change = MemberChange {
        add: Some((id, address)),
        remove: gone,
    };
    helper.waits.then_some(Step::Change(change))
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
        // One that was cut off still leads, as far as it knows. The status of a pair names no voters.
        if own.role != "leader" || !own.serving || Told::of(own).voters.is_empty() {
            return Ok(());
        }
        let group = &self.config.group;
        let rules = Rules {
            size: group.replica.len(),
            after_s: group.replace_after_s,
            memory_mib,
        };
        match next(own, &nodes, rules) {
            None => Ok(()),
            Some(Step::Place(node, None)) => self.write_member(&node.name, None),
            Some(Step::Place(node, Some(id))) => self.take_place(&node.name, place(id), begun),
            Some(Step::Change(change)) => {
                let asked = self.control().request(&change.request());
                asked.context("the order to change the members was not taken")?;
                Ok(())
            }
        }
    }

    /// Writes down that a spare host has the place of a member, if there is room for it.
    fn take_place(&self, node: &str, place: Place, begun: Instant) -> Result<()> {
        // Another guest may want the same room, and its monitor may come at the same moment each time.
        let random = RandomState::new().hash_one(place.id) % 1000;
        std::thread::sleep(Duration::from_millis(random));
        self.write_member(node, Some(place))?;
        // If it has taken it, both may find so, and both try again.
        let nodes = self.nodes()?;
        let mut here = nodes.iter().filter(|it| it.name == node);
        let is_full = here.any(|it| !it.has_room(place.memory_mib));
        if is_full || begun.elapsed() > self.timeout / 2 {
            return self.write_member(node, None);
        }
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
            can_start: true,
            member: member.map(|id| Place {
                id,
                memory_mib: 948,
            }),
            spare: spare.map(|id| (id, format!("192.0.2.1{id}:7700"))),
            ..Node::default()
        }
    }

    const RULES: Rules = Rules {
        size: 3,
        after_s: 600,
        memory_mib: 948,
    };

    /// Three members and two spare hosts.
    fn cluster() -> Vec<Node> {
        vec![
            node("alpha", Some(0), None),
            node("beta", Some(1), None),
            node("gamma", Some(2), None),
            node("delta", None, Some(3)),
            node("epsilon", None, Some(4)),
        ]
    }

    /// The same, after this was done to the node `at`.
    fn with(mut nodes: Vec<Node>, at: usize, change: impl Fn(&mut Node)) -> Vec<Node> {
        change(&mut nodes[at]);
        nodes
    }

    /// What the agent of the leader 1 of members 0, 1 and 2 does, with these fields in its status.
    fn step(fields: &Value, nodes: &[Node]) -> String {
        step_by(fields, nodes, RULES)
    }

    fn step_by(fields: &Value, nodes: &[Node], rules: Rules) -> String {
        let mut own = json!({"id": 1, "role": "leader", "view": "1@r1", "isr": [1, 2], "voters": [0, 1, 2], "left": []});
        for (key, value) in fields.as_object().unwrap() {
            own[key] = value.clone();
        }
        let own = serde_json::from_value(own).unwrap();
        match next(&own, nodes, rules) {
            None => "nothing".into(),
            Some(Step::Place(node, None)) => format!("none on {}", node.name),
            Some(Step::Place(node, Some(id))) => format!("{id} on {}", node.name),
            Some(Step::Change(change)) => {
                let add = change.add.map(|(id, at)| format!("add {id} at {at} "));
                let remove = change.remove.map(|id| format!("remove {id}"));
                add.unwrap_or_default() + &remove.unwrap_or_default()
            }
        }
    }

    fn silent(s: u64) -> Value {
        json!({"silences": [{"id": 0, "s": s, "stopped": false}]})
    }

    #[test]
    fn a_member_that_is_silent_for_long_is_replaced_by_a_spare_replica() {
        let nodes = cluster();
        assert_eq!(step(&json!({}), &nodes), "nothing", "all answer");
        assert_eq!(step(&silent(599), &nodes), "nothing");
        assert_eq!(step(&silent(600), &nodes), "3 on delta");
        let placed = |at: usize, id: u8| {
            with(cluster(), at, |it| {
                it.member = node("", Some(id), None).member
            })
        };
        assert_eq!(step(&silent(610), &placed(3, 3)), "nothing", "it starts");
        let waits = with(placed(3, 3), 3, |it| it.waits = true);
        assert_eq!(
            step(&silent(620), &waits),
            "add 3 at 192.0.2.13:7700 remove 0"
        );
        let second = with(placed(4, 4), 4, |it| it.waits = true);
        assert_eq!(
            step(&silent(620), &second),
            "add 4 at 192.0.2.14:7700 remove 0",
            "it keeps the place that it was given"
        );
        // The lost host is back, or another replica leads, which counts anew.
        assert_eq!(step(&silent(3), &waits), "none on delta");
        assert_eq!(step(&json!({}), &waits), "none on delta");
        let both = with(waits, 4, |it| it.member = node("", Some(4), None).member);
        assert_eq!(step(&silent(620), &both), "none on epsilon");
    }

    #[test]
    fn a_member_is_not_replaced_while_somebody_works_on_it() {
        let standby = with(cluster(), 0, |it| it.is_away = true);
        assert_eq!(step(&silent(9000), &standby), "nothing");
        let stopped = json!({"silences": [{"id": 0, "s": 9000, "stopped": true}]});
        assert_eq!(step(&stopped, &cluster()), "nothing");
        assert_eq!(
            step(&silent(9000), &cluster()[1..]),
            "nothing",
            "its node is unknown"
        );
        let never = Rules {
            after_s: 0,
            ..RULES
        };
        assert_eq!(step_by(&silent(9000), &cluster(), never), "nothing");
    }

    #[test]
    fn a_spare_host_that_cannot_help_is_passed_over() {
        let cannot = |change: fn(&mut Node)| step(&silent(600), &with(cluster(), 3, change));
        assert_eq!(cannot(|it| it.can_start = false), "4 on epsilon");
        assert_eq!(cannot(|it| it.spare = None), "4 on epsilon");
        let full = |taken_mib: i64| {
            with(cluster(), 3, |it| {
                it.memory_mib = Some(1000);
                it.taken_mib = taken_mib;
            })
        };
        assert_eq!(step(&silent(600), &full(53)), "4 on epsilon");
        assert_eq!(step(&silent(600), &full(52)), "3 on delta");
        let mut used = silent(600);
        used["left"] = json!([3]);
        assert_eq!(
            step(&used, &cluster()),
            "4 on epsilon",
            "3 was a member once"
        );
        // It had the place, and cannot take it any more.
        let failed = with(cluster(), 3, |it| {
            it.member = node("", Some(3), None).member;
            it.can_start = false;
        });
        assert_eq!(step(&silent(600), &failed), "none on delta");
    }

    #[test]
    fn a_new_host_that_is_lost_gives_way_to_the_next() {
        let under_way = |s: u64| {
            let silences =
                json!([{"id": 0, "s": 900, "stopped": false}, {"id": 3, "s": s, "stopped": true}]);
            json!({"change": {"add": 3, "remove": 0, "words": "", "step": null}, "silences": silences})
        };
        let begun = with(cluster(), 3, |it| {
            it.member = node("", Some(3), None).member
        });
        assert_eq!(step(&under_way(30), &begun), "nothing");
        assert_eq!(step(&under_way(600), &begun), "remove 3");
        let away = with(begun.clone(), 3, |it| it.is_away = true);
        assert_eq!(step(&under_way(600), &away), "nothing");
        let waits = with(begun.clone(), 3, |it| it.waits = true);
        assert_eq!(
            step(&under_way(600), &waits),
            "nothing",
            "it cannot be reached"
        );
        let short = json!({"voters": [1, 2], "left": [0, 3]});
        assert_eq!(step(&short, &begun), "none on alpha");
        let known = with(cluster(), 0, |it| it.member = None);
        assert_eq!(step(&short, &known), "4 on epsilon");
        let placed = with(known, 4, |it| {
            it.member = node("", Some(4), None).member;
            it.waits = true;
        });
        assert_eq!(step(&short, &placed), "add 4 at 192.0.2.14:7700 ");
    }

    #[test]
    fn the_host_of_a_persons_order_gets_its_replica_and_one_that_has_left_gets_none() {
        let ordered = json!({"change": {"add": 4, "remove": 2, "words": "", "step": null}});
        assert_eq!(step(&ordered, &cluster()), "4 on epsilon");
        let members = json!({"voters": [0, 1, 4], "left": [2]});
        let begun = with(cluster(), 4, |it| {
            it.member = node("", Some(4), None).member
        });
        assert_eq!(step(&members, &begun), "none on gamma");
        let done = with(begun, 2, |it| it.member = None);
        assert_eq!(step(&members, &done), "nothing");
        // A partition of the cluster without this change was the one that counted.
        let forgotten = with(done, 4, |it| it.member = None);
        assert_eq!(step(&members, &forgotten), "4 on epsilon");
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
