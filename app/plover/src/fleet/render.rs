//! A guest as Pacemaker's resources: a plain clone, and the nodes on which it may run (docs/decisions/0057).
//!
//! | what | why |
//! |---|---|
//! | `ordered` | instances stop one after the other, so that each can hand over to the next |
//! | `requires=nothing` (groups of three, and two with `group.fencing`) | starting a replica is safe without quorum and without fencing: the group's own majority decides who leads, and one of two waits for the word that the other one is off. A cluster without quorum stops nothing |
//! | `on-fail=block` at `stop` | a replica that refuses to stop holds the guest: Pacemaker must leave it, and must not fence its host |
//! | `resource-discovery=exclusive` | the guest runs on these nodes, and others are not even asked |
//! | a rule on `plover-NAME-member` | replicas run on the nodes of members, and on no other: the agents say which these are |
//! | `notify` (`group.fencing`) | one of two replicas waits for the word that the other one was stopped, or its host fenced |
//! | `monitor` every 3 s (`group.fencing`) in place of 10 s | Pacemaker may notify before the fencing is done; then the next monitor passes the word on |
//! | `clone-max` is the number of places | the rule alone says where replicas run. Of more than `clone-max` Pacemaker would stop the last of its list, not the one without a place (docs/decisions/0078) |

use super::guests::{Guest, Hosts};
use crate::capacity::{self, Place};
use anyhow::{Result, ensure};

/// Time that a stop takes beside a copy of the guest's memory: orders, the hand-over, and the end of the process.
const STOP_S: u64 = 120;

/// The slowest copy that a stop waits for: half of what Gigabit Ethernet carries.
const COPIED_MIB_PER_S: u64 = 50;

/// How often a replica is looked at, in seconds, and one of two that waits for the word of the other's end.
const LOOKS_EVERY_S: u64 = 10;
const LOOKS_EVERY_WITH_FENCING_S: u64 = 3;

/// When a start that has failed, for example because a TAP device was missing, is tried again.
const FORGETS_AFTER: &str = "300s";

/// The elements of a guest.
#[derive(Debug, Default)]
pub struct Elements {
    /// The clone.
    pub resources: String,
    /// Its places.
    pub constraints: String,
    /// The nodes of members.
    pub members: Vec<Member>,
    /// The nodes of spare hosts.
    pub spares: Vec<Spare>,
}

/// A node on which a guest has a member by its file. The agents know better, once they have run (`ocf/repair.rs`).
#[derive(Clone, Debug)]
pub struct Member {
    /// The guest.
    pub guest: String,
    /// The node's name.
    pub node: String,
    /// The replica, and what it takes.
    pub place: Place,
}

/// A node on which a guest has a spare host.
#[derive(Clone, Debug)]
pub struct Spare {
    /// The guest.
    pub guest: String,
    /// The node's name.
    pub node: String,
    /// The replica, and where it listens: `3@192.0.2.13:7700`.
    pub replica: String,
}

/// Renders guests, in their order.
///
/// # Errors
/// A host of a guest is no node of the cluster, or two of them are the same node.
pub fn all(guests: &[Guest], hosts: &Hosts) -> Result<Vec<Elements>> {
    guests.iter().map(|guest| one(guest, hosts)).collect()
}

fn one(guest: &Guest, hosts: &Hosts) -> Result<Elements> {
    let members = guest.members.iter().map(|(_, address)| *address);
    let spares = guest.spares.iter().map(|(_, address)| address.ip());
    let nodes = hosts.of(guest, members.chain(spares))?;
    let mut constraints = only_members(&guest.name);
    for (at, node) in nodes.iter().enumerate() {
        ensure!(
            !nodes[..at].contains(node),
            "guest {}: two of its replicas are on the node {node}; each needs a host of its own",
            guest.name
        );
        constraints += &place(&guest.name, node);
    }
    let (of_members, of_spares) = nodes.split_at(guest.members.len());
    let members = guest.members.iter().zip(of_members);
    let members = members.map(|((id, _), node)| Member {
        guest: guest.name.clone(),
        node: (*node).into(),
        place: Place::of_member(*id, guest.needs_mib),
    });
    let spares = guest.spares.iter().zip(of_spares);
    let spares = spares.map(|((id, address), node)| Spare {
        guest: guest.name.clone(),
        node: (*node).into(),
        replica: format!("{id}@{address}"),
    });
    Ok(Elements {
        resources: clone(guest, nodes.len()),
        constraints,
        members: members.collect(),
        spares: spares.collect(),
    })
}

fn clone(guest: &Guest, places: usize) -> String {
    let (name, file) = (&guest.name, &guest.file);
    let parameters = [("config", format!("/etc/plover/{file}.toml"))];
    let mut of_instances = vec![("failure-timeout", FORGETS_AFTER.to_owned())];
    // Two replicas without fencing both go on once the link between them is cut: there the cluster's quorum counts.
    if guest.members.len() > 2 || guest.fencing {
        of_instances.push(("requires", "nothing".into()));
    }
    let mut of_clone = vec![
        ("clone-max", places.to_string()),
        ("clone-node-max", "1".into()),
        ("interleave", "true".into()),
        ("ordered", "true".into()),
    ];
    let mut notify = String::new();
    if guest.fencing {
        of_clone.push(("notify", "true".into()));
        notify =
            format!("<op id=\"{name}-notify\" name=\"notify\" interval=\"0s\" timeout=\"20s\"/>");
    }
    let looks_every_s = match guest.fencing {
        true => LOOKS_EVERY_WITH_FENCING_S,
        false => LOOKS_EVERY_S,
    };
    let stop_s = STOP_S + guest.mem_mib / COPIED_MIB_PER_S;
    format!(
        "<clone id=\"{name}-clone\">{}<primitive id=\"{name}\" class=\"ocf\" provider=\"plover\" type=\"guest\">{}{}\
         <operations>\
         <op id=\"{name}-start\" name=\"start\" interval=\"0s\" timeout=\"120s\"/>\
         <op id=\"{name}-stop\" name=\"stop\" interval=\"0s\" timeout=\"{stop_s}s\" on-fail=\"block\"/>\
         <op id=\"{name}-monitor\" name=\"monitor\" interval=\"{looks_every_s}s\" timeout=\"20s\"/>\
         {notify}</operations></primitive></clone>",
        values("meta_attributes", &format!("{name}-clone-meta"), &of_clone),
        values(
            "instance_attributes",
            &format!("{name}-parameters"),
            &parameters
        ),
        values("meta_attributes", &format!("{name}-meta"), &of_instances),
    )
}

fn place(name: &str, node: &str) -> String {
    format!(
        "<rsc_location id=\"{}{node}\" rsc=\"{name}-clone\" node=\"{node}\" score=\"0\" resource-discovery=\"exclusive\"/>",
        places_of(name)
    )
}

/// A replica runs where a member is.
fn only_members(name: &str) -> String {
    format!(
        "<rsc_location id=\"{name}-members\" rsc=\"{name}-clone\"><rule id=\"{name}-members-only\" score=\"-INFINITY\">\
         <expression id=\"{name}-members-not\" attribute=\"{}\" operation=\"not_defined\"/></rule></rsc_location>",
        capacity::of_member(name)
    )
}

/// How the ids of a guest's places begin.
pub fn places_of(name: &str) -> String {
    format!("{name}-on-")
}

fn values(element: &str, id: &str, pairs: &[(&str, String)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = escaped(value);
        format!("<nvpair id=\"{id}-{name}\" name=\"{name}\" value=\"{value}\"/>")
    });
    format!(
        "<{element} id=\"{id}\">{}</{element}>",
        pairs.collect::<String>()
    )
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}
