//! The members of the group change: links, files, and the operator's orders.

use super::{Body, BoxError};
use crate::death::Reporter;
use plover_replica::{ChangeStep, Event, GroupRecord, MemberOrder, Role};
use plover_types::wire::OLDEST_VERSION;
use plover_types::{ReplicaId, ReplicaSet};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Instant;

/// A member does not answer this leader.
pub(super) struct Silence {
    since: Instant,
    /// Whether it has linked anew meanwhile.
    has_linked: bool,
}

impl Silence {
    fn begin() -> Self {
        Self {
            since: Instant::now(),
            has_linked: false,
        }
    }

    /// It is counted from the first new link, which may be that of a host that is back. One that links again and again, and
    /// never answers, is lost.
    fn link(&mut self) {
        if !self.has_linked {
            self.since = Instant::now();
            self.has_linked = true;
        }
    }
}

impl Body {
    /// Keeps the record, and links to the replicas that it knows.
    pub(super) fn regroup(&mut self, record: GroupRecord) -> Result<(), BoxError> {
        let me = ReplicaId(self.config.group.me);
        let known = record.known();
        let before = self.storage.members();
        let before = before.map_or_else(|| self.config.group.record().known(), GroupRecord::known);
        let mut gone = Vec::new();
        if let Some(fabric) = &mut self.fabric {
            for id in known.iter().filter(|id| *id != me) {
                let address = record.addresses.get(&id).map(String::as_str);
                if let Err(error) = fabric.set_peer(id, address) {
                    tracing::error!(event = "member_unlinked", %error, "no link can be opened to replica {}", id.0);
                }
            }
            let asked = self.replica.contacts();
            let named = self.config.group.named().map(|peer| ReplicaId(peer.id));
            let before = ReplicaSet(before.0 | ReplicaSet::of(named).0);
            let is_gone =
                |id: &ReplicaId| *id != me && !known.contains(*id) && !asked.contains(*id);
            for id in before.iter().filter(is_gone) {
                // Another member has its address now, or only the file names it and a leader is known.
                let _ = fabric.set_peer(id, None);
                self.packer.begin_anew(id);
                self.unsent.forget(id);
                gone.push(id);
            }
        }
        for id in gone {
            self.relay_lost(id);
            self.viewers_lost(id);
        }
        let linked = self.config.group.linked(&record);
        // Without it, clients send again what they sent in the moment of a switchover.
        self.reporter = Reporter::open(&linked, self.keys.clone(), self.number)
            .ok()
            .flatten();
        self.storage.persist_members(record)?;
        Ok(())
    }

    /// Tells peers from now on which version the group has.
    pub(super) fn speak(&mut self) {
        let versions = self.replica.consensus_core().versions();
        if let Some(fabric) = &mut self.fabric {
            fabric.speak(versions);
        }
    }

    /// Adds the group's version to a status, and why it is not the newest that this replica speaks.
    pub(super) fn tell_of_versions(&self, status: &mut Value) {
        let brain = self.replica.status();
        let behind = brain.version_waits_for.iter();
        let behind = behind.map(|(id, speaks)| match speaks {
            Some(version) => format!("replica {} speaks {version} only", id.0),
            None => format!("replica {} is not linked", id.0),
        });
        status["version"] = json!({
            "group": brain.version,
            "oldest": OLDEST_VERSION,
            "newest": brain.version_newest,
            "waits_for": behind.collect::<Vec<_>>(),
        });
    }

    /// An operator's order to change the members, which only a leader takes.
    pub(super) fn change_members(&mut self, order: MemberOrder) -> Result<Value, BoxError> {
        if self.role != Role::Leader {
            return Ok(json!({"error": self.not_leading("does not lead")}));
        }
        if let Some(why) = self.config.why_fixed() {
            return Ok(json!({"error": why}));
        }
        if let MemberOrder::Add { address, .. } | MemberOrder::Replace { address, .. } = &order {
            if address.parse::<SocketAddr>().is_err() {
                let why = format!(
                    "'{address}' is no address at which a replica listens: give it as in the new host's [[group.replica]], \
                     such as 192.0.2.13:7700"
                );
                return Ok(json!({"error": why}));
            }
        }
        if let Some(why) = self.replica.why_not_change_members(&order) {
            return Ok(json!({"error": why.to_string()}));
        }
        self.apply(Event::Members(order))?;
        Ok(json!({"ok": true, "leader": self.config.group.me}))
    }

    /// A peer answers this leader, or does not answer any more.
    pub(super) fn on_peer(&mut self, peer: ReplicaId, alive: bool) {
        let id = peer.0;
        if alive {
            self.silences.remove(&peer);
            tracing::info!(event = "peer_answers", peer = id, "replica {id} answers");
            return;
        }
        self.silences.entry(peer).or_insert_with(Silence::begin);
        if self.relay.has_stopped(peer) {
            tracing::info!(
                event = "peer_stopped",
                peer = id,
                "replica {id} does not answer any more: it has stopped, as it was told to"
            );
        } else {
            tracing::warn!(
                event = "peer_silent",
                peer = id,
                "replica {id} does not answer"
            );
        }
    }

    /// A new link to a peer is up.
    pub(super) fn has_come(&mut self, peer: ReplicaId) {
        self.relay.is_back(peer);
        if let Some(silence) = self.silences.get_mut(&peer) {
            silence.link();
        }
    }

    /// How long members have not answered this leader, in seconds, and whether they had been told to stop.
    fn tell_of_silences(&self) -> Value {
        let members = self.replica.consensus_core().status().members.all();
        let is_member = |it: &(&ReplicaId, &Silence)| members.contains(*it.0);
        let silent = self.silences.iter().filter(is_member);
        let silent = silent.filter(|_| self.role == Role::Leader);
        silent
            .map(|(id, silence)| {
                let stopped = self.relay.has_stopped(*id);
                json!({"id": id.0, "s": silence.since.elapsed().as_secs(), "stopped": stopped})
            })
            .collect()
    }

    /// Adds the members, and the change under way, to a status.
    pub(super) fn tell_of_members(&self, status: &mut Value) {
        let record = self.replica.group_record();
        let voters = self.replica.consensus_core().status().members.voters;
        status["voters"] = voters.iter().map(|id| id.0).collect();
        let consensus = self.replica.consensus_core().status();
        let pair = record.is_pair();
        status["pair"] = pair.into();
        status["can_split"] = (pair && !self.config.group.fencing).into();
        status["doubts"] = consensus.doubts.into();
        status["awaits_off"] = consensus.awaits_off.map(|id| id.0).into();
        status["left"] = record.left.iter().map(|id| id.0).collect();
        status["silences"] = self.tell_of_silences();
        let stale = self.config.group.stale(record);
        // One that asks the replicas of the file for the members cannot know whose are newer.
        status["stale_file"] = stale.filter(|_| self.replica.contacts().is_empty()).into();
        status["waits_for"] = self.waits_for().into();
        status["waits_to_be_added"] = self.waits_to_be_added().into();
        status["change"] = record.change.map_or(Value::Null, |change| {
            let step = self.replica.change_step();
            json!({
                "add": change.add.map(|id| id.0),
                "remove": change.remove.map(|id| id.0),
                "words": change.to_string(),
                "step": step.map(words),
            })
        });
    }

    /// Whom a member waits for that has come back and knows of no leader, and what the operator can do.
    fn waits_for(&self) -> Option<String> {
        let (status, record) = (self.replica.status(), self.replica.group_record());
        let waits = status.role == Role::Recovering && status.leader.is_none();
        if !waits || !record.is_of_the_log() {
            return None;
        }
        let mut asked = ReplicaSet(record.members.all().0 | self.replica.contacts().0);
        asked.remove(status.id);
        Some(format!(
            "waits for {}: start those that are down. If all of them have been replaced while this one was away, name the \
             members of now in [[group.replica]] of its configuration file, trust their keys with `plover key trust`, and \
             start it again",
            asked.in_words()
        ))
    }

    /// Whether this is a new host that no member has linked with yet.
    pub(super) fn waits_to_be_added(&self) -> bool {
        let status = self.replica.status();
        let is_new = !self.replica.group_record().is_of_the_log() && status.leader.is_none();
        let core = self.replica.consensus_core().status();
        is_new && status.role == Role::Recovering && core.view == plover_types::View::NONE
    }
}

fn words(step: ChangeStep) -> String {
    match step {
        ChangeStep::Reach(new) => format!(
            "replica {} does not answer yet: is it started, and are its address and group.me right?",
            new.0
        ),
        ChangeStep::CatchUp { new, behind } => {
            format!("replica {} gets the log, and lacks {behind} entries", new.0)
        }
        ChangeStep::Copy(new) => format!("the guest is copied to replica {}", new.0),
        ChangeStep::Roles(old) => format!(
            "replica {} still leads or is in sync: another one takes its place",
            old.0
        ),
        ChangeStep::Commit => "the next entry goes into the log".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_counts_from_the_first_new_link() {
        let mut silence = Silence::begin();
        let begun = silence.since;
        silence.link();
        let linked = silence.since;
        assert!(linked > begun);
        silence.link();
        assert_eq!(silence.since, linked);
    }
}
