//! A guest as Pacemaker's resources: a plain clone, and the nodes on which it may run (docs/decisions/0057).
//!
//! | what | why |
//! |---|---|
//! | `ordered` | instances stop one after the other, so that each can hand over to the next |
//! | `requires=nothing` (groups of three) | starting a replica is safe without quorum and without fencing: the group's own majority decides who leads. A cluster without quorum stops nothing |
//! | `on-fail=block` at `stop` | a replica that refuses to stop holds the guest: Pacemaker must leave it, and must not fence its host |
//! | `resource-discovery=exclusive` | the guest runs on these nodes, and others are not even asked |
//! | a rule on `plover-NAME-member` (guests with spare hosts) | a member that comes back gets its place again; a spare host has a replica only while one is missing |
//! | a rule on `plover_room_mib` (the same) | a spare host without room for the replica gets none; members stay where they are. Not `utilization`: with it Pacemaker stops members to make room for others (docs/decisions/0077) |

use super::guests::{Guest, Hosts};
use crate::capacity::{self, Place};
use anyhow::{Result, ensure};

/// Time that a stop takes beside a copy of the guest's memory: orders, the hand-over, and the end of the process.
const STOP_S: u64 = 120;

/// The slowest copy that a stop waits for: half of what Gigabit Ethernet carries.
const COPIED_MIB_PER_S: u64 = 50;

/// More than any stickiness that operators use.
const MEMBER_SCORE: u32 = 10_000;

/// When a start that has failed, for example because a TAP device was missing, is tried again.
const FORGETS_AFTER: &str = "300s";

/// The elements of all guests.
#[derive(Debug, Default)]
pub struct Elements {
    /// The clones.
    pub resources: String,
    /// Their places.
    pub constraints: String,
    /// The nodes of members.
    pub members: Vec<Member>,
}

/// A node on which a guest has a member by its file. The agents know better, once they have run (`ocf/members.rs`).
#[derive(Debug)]
pub struct Member {
    /// The guest.
    pub guest: String,
    /// The node's name.
    pub node: String,
    /// The replica, and what it takes.
    pub place: Place,
}

/// Renders all guests.
///
/// # Errors
/// A host of a guest is no node of the cluster, or two of them are the same node.
pub fn all(guests: &[Guest], hosts: &Hosts) -> Result<Elements> {
    let mut elements = Elements::default();
    for guest in guests {
        let members = guest.members.iter().map(|(_, address)| *address);
        let nodes = hosts.of(guest, members.chain(guest.spares.iter().copied()))?;
        for (at, node) in nodes.iter().enumerate() {
            ensure!(
                !nodes[..at].contains(node),
                "guest {}: two of its replicas are on the node {node}; each needs a host of its own",
                guest.name
            );
            elements.constraints += &place(&guest.name, node);
        }
        elements.resources += &clone(guest, guest.members.len());
        if !guest.spares.is_empty() {
            elements.constraints += &prefer_members(&guest.name);
            elements.constraints += &need_room(&guest.name, guest.needs_mib);
        }
        let members = guest.members.iter().zip(nodes);
        elements
            .members
            .extend(members.map(|((id, _), node)| Member {
                guest: guest.name.clone(),
                node: node.into(),
                place: Place {
                    id: *id,
                    memory_mib: guest.needs_mib,
                },
            }));
    }
    Ok(elements)
}

fn clone(guest: &Guest, instances: usize) -> String {
    let (name, file) = (&guest.name, &guest.file);
    let parameters = [("config", format!("/etc/plover/{file}.toml"))];
    let mut of_instances = vec![("failure-timeout", FORGETS_AFTER.to_owned())];
    // Two replicas cannot agree who leads once the link between them is cut: there the cluster's quorum and fencing count.
    if instances > 2 {
        of_instances.push(("requires", "nothing".into()));
    }
    let of_clone = [
        ("clone-max", instances.to_string()),
        ("clone-node-max", "1".into()),
        ("interleave", "true".into()),
        ("ordered", "true".into()),
    ];
    let stop_s = STOP_S + guest.mem_mib / COPIED_MIB_PER_S;
    format!(
        "<clone id=\"{name}-clone\">{}<primitive id=\"{name}\" class=\"ocf\" provider=\"plover\" type=\"guest\">{}{}\
         <operations>\
         <op id=\"{name}-start\" name=\"start\" interval=\"0s\" timeout=\"120s\"/>\
         <op id=\"{name}-stop\" name=\"stop\" interval=\"0s\" timeout=\"{stop_s}s\" on-fail=\"block\"/>\
         <op id=\"{name}-monitor\" name=\"monitor\" interval=\"10s\" timeout=\"20s\"/>\
         </operations></primitive></clone>",
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

/// A replica runs where a member is, if that node is there.
fn prefer_members(name: &str) -> String {
    format!(
        "<rsc_location id=\"{name}-members\" rsc=\"{name}-clone\"><rule id=\"{name}-members-rule\" score=\"{MEMBER_SCORE}\">\
         <expression id=\"{name}-members-is\" attribute=\"{}\" operation=\"defined\"/></rule></rsc_location>",
        capacity::of_member(name)
    )
}

/// A node that lacks memory for one more replica gets none, but for its member. All nodes of members keep the same score: with a
/// lower one on some, Pacemaker would exchange instances.
fn need_room(name: &str, needs_mib: u64) -> String {
    format!(
        "<rsc_location id=\"{name}-room\" rsc=\"{name}-clone\">\
         <rule id=\"{name}-room-rule\" score=\"-INFINITY\" boolean-op=\"and\">\
         <expression id=\"{name}-room-for\" attribute=\"{}\" operation=\"not_defined\"/>\
         <expression id=\"{name}-room-is\" attribute=\"{}\" operation=\"lt\" value=\"{needs_mib}\" type=\"number\"/>\
         </rule></rsc_location>",
        capacity::of_member(name),
        capacity::ROOM
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
