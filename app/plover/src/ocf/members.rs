//! A host that is lost for good is replaced by a spare one.
//!
//! ```text
//!   the leader's monitor: a member is silent for `replace_after_s` ─▶ attribute plover-NAME-member = ID, MEMORY on a spare host
//!   Pacemaker: runs a replica on the nodes with this attribute, and on no other ─▶ starts that one, which waits: plover-NAME = spare ID
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
use super::repair::{Group, Rules, Step, Told, belongs};
use super::{Instance, judge};
use crate::capacity::{self, Place};
use anyhow::{Result, bail};
use plover_lab::control::DaemonStatus;
use plover_lab::leaving;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long Pacemaker's daemon takes at the most to write an attribute into the cluster's status.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

impl Instance {
    /// Keeps the attributes of members, and has the group replace one that is lost. All of it is tried again at the next
    /// monitor, so nothing is done if the cluster does not answer.
    pub(super) fn look_after_members(&self, own: &DaemonStatus, begun: Instant) {
        // The next monitor has more time. This one must not be late for it.
        let is_late = begun.elapsed() > self.timeout / 4;
        if is_late {
            return;
        }
        if let Err(error) = self.keep_members(own) {
            // Pacemaker writes it into its log.
            tell!("the members of the group are not looked after: {error:#}");
        }
    }

    /// Writes the attributes anew that Pacemaker has lost: its daemon holds them, and the cluster's status does not, for good,
    /// because the daemon writes only what has changed. Seen once in an hour of lost hosts, with Pacemaker 2.1.5.
    fn write_again(&self, here: &Node, own: &DaemonStatus) -> Result<()> {
        let wanted = self.attributes(own);
        let lacks = |node: &Node| {
            let lost = |(name, value): &(&'static str, Option<String>)| {
                value.is_some() && node.told(name).is_none()
            };
            let lost = wanted.iter().filter(|it| lost(it));
            lost.cloned().collect::<Vec<_>>()
        };
        if lacks(here).is_empty() {
            return Ok(());
        }
        // They were given to the daemon a moment ago.
        std::thread::sleep(WRITTEN_WITHIN);
        let nodes = self.nodes()?;
        let here = nodes.iter().find(|it| it.name == here.name);
        let lost = here.map(lacks).unwrap_or_default();
        for (name, value) in lost {
            self.set_attributes(&[(name, None)]);
            self.set_attributes(&[(name, value)]);
        }
        Ok(())
    }

    fn keep_members(&self, own: &DaemonStatus) -> Result<()> {
        let config = &self.config.group;
        let nodes = self.nodes()?;
        let memory_mib = capacity::of_replica(&self.config);
        let place = |id: u8| Place::of_member(id, memory_mib);
        let here = nodes.iter().find(|it| Some(&it.name) == self.node.as_ref());
        if let Some(here) = here {
            self.write_again(here, own)?;
            // The probe may have been one of a former release.
            self.tell_memory(here)?;
            let is_told = here.member == Some(place(own.id));
            // One that has left and does not know it is not one more.
            let members = nodes
                .iter()
                .filter(|it| it.member.is_some() && it.name != here.name);
            let is_one_more = !here.is_of(own.id) && members.count() >= config.replica.len();
            if !judge::waits(own) && belongs(own) && !is_told && !is_one_more {
                self.write_member(&here.name, Some(place(own.id)))?;
            }
        }
        let told = Told::of(own);
        // One that was cut off still leads, as far as it knows. A leader is a member; a status that does not say so is of another
        // release, and tells nothing of the others either.
        let is_understood = told.voters.contains(&own.id);
        if own.role != "leader" || !own.serving || !is_understood || leaving::is_pair(&own.more) {
            self.set_attributes(&[(judge::LACKS, None)]);
            return Ok(());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = now.unwrap_or_default().as_secs();
        let group = Group {
            told,
            leader: own.id,
            nodes: &nodes,
            rules: Rules {
                guest: &config.name,
                size: config.replica.len(),
                after_s: config.replace_after_s,
                memory_mib,
                now_s,
            },
        };
        self.set_attributes(&[(judge::LACKS, group.lacks())]);
        match group.next() {
            None => Ok(()),
            Some(Step::Restore(node, id)) => self.write_member(&node.name, Some(place(id))),
            Some(Step::TakeBack(node)) => self.write_member(&node.name, None),
            Some(Step::Give(node, id)) => {
                // Another guest may want the same room, and its monitor may come at the same moment each time. If both get
                // it, the first one that looks again gives it back.
                let random = RandomState::new().hash_one(id) % 1000;
                std::thread::sleep(Duration::from_millis(random));
                let given = Place {
                    given_s: Some(now_s),
                    ..place(id)
                };
                self.write_member(&node.name, Some(given))
            }
            Some(Step::Change(change)) => {
                let asked = self.control().request(&change.request());
                asked.map(drop).or_else(|error| {
                    let why = format!("the order to change the members was refused: {error}");
                    self.set_attributes(&[(judge::LACKS, Some(why.clone()))]);
                    bail!(why)
                })
            }
        }
    }
}
