//! Changing the group while it runs: a replica is removed, another catches up and then votes.
//!
//! ```text
//!   add:     Members{learners + id} ─► it is sent the log ─► caught up ─► Members{voters + id}
//!   remove:  Members{voters - id}
//! ```
//!
//! Each step is an entry of the log whose payload holds the addresses of all replicas; every replica
//! links to the ones that the committed entry names. The leader carries out one change at a time. If it
//! stops leading, the client asks the next leader, which does what is left to do. A change that is
//! already made succeeds at once.

use crate::clients::ConnectionId;
use crate::wire::{MemberChange, Reply};
use crate::{Server, StateMachine};
use apus::{EntryKind, Members, MembersError, ProposeError};
use plover_types::{Index, Micros, ReplicaId, wire};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A learner may vote when it lacks at most this many entries: a busy leader sends them in a
/// fraction of a round trip, so that the group hardly waits.
const CAUGHT_UP: u64 = 256;
/// How often the client hears how far a learner has come, while it comes further.
const REPORT_EVERY: Micros = Micros::from_ms(500);
/// How long the link of a removed replica stays, so that it learns of its removal.
const FAREWELL: Micros = Micros::from_ms(1000);

/// The group that the last committed membership entry names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub members: Members,
    /// Where replicas reach each other. Empty for a group that was set up without addresses.
    pub addresses: BTreeMap<ReplicaId, String>,
}

impl Group {
    /// The payload of the entry that makes this the group.
    fn payload(&self) -> Vec<u8> {
        wire::encode(&self.addresses)
    }

    /// Decodes the group from an entry of the log.
    pub fn decode(members: Members, payload: &[u8]) -> Option<Self> {
        let addresses = wire::decode(payload).ok()?;
        Some(Self { members, addresses })
    }

    /// The next step towards what `change` asks for; `None` once it is done.
    fn step(&self, change: &MemberChange, caught_up: bool) -> Option<Self> {
        let mut next = self.clone();
        match change {
            MemberChange::Add { id, address } => {
                let moved = self.addresses.get(id) != Some(address);
                next.addresses.insert(*id, address.clone());
                if next.members.voters.contains(*id) && !moved {
                    return None;
                }
                let learns = next.members.learners.contains(*id);
                if learns && !moved && !caught_up {
                    return None;
                }
                if learns && !moved {
                    next.members.learners.remove(*id);
                    next.members.voters.insert(*id);
                } else {
                    next.members.learners.insert(*id);
                }
            }
            MemberChange::Remove { id } => {
                next.addresses.remove(id);
                next.members.voters.remove(*id);
                next.members.learners.remove(*id);
            }
        }
        (next != *self).then_some(next)
    }

    fn is_done(&self, change: &MemberChange) -> bool {
        match change {
            MemberChange::Add { id, address } => {
                self.members.voters.contains(*id) && self.addresses.get(id) == Some(address)
            }
            MemberChange::Remove { id } => !self.members.all().contains(*id),
        }
    }
}

/// A change under way, for the client at `connection`.
#[derive(Debug)]
pub(crate) struct Change {
    connection: ConnectionId,
    wanted: MemberChange,
    /// A step was proposed and is not committed yet.
    proposed: Option<Group>,
    report_at: Micros,
    /// The entries that the newcomer held by the last report.
    reported: Option<u64>,
}

impl<M: StateMachine> Server<M> {
    /// Begins a change for a remote client. Returns the reply if it cannot begin.
    pub(crate) fn begin_change(
        &mut self,
        connection: ConnectionId,
        wanted: MemberChange,
    ) -> Option<Reply<'static>> {
        if !self.leads() {
            return Some(self.elsewhere(0));
        }
        let failed = |why: &str| Some(Reply::Failed(why.into()));
        match &mut self.change {
            // Its client has asked again, on another connection.
            Some(change) if change.wanted == wanted => {
                change.connection = connection;
                change.reported = None;
                return None;
            }
            Some(change) if self.clients.has(change.connection) => {
                return failed(
                    "another change of the group is under way: try again when it is done, or end the command that asked for it",
                );
            }
            // Nobody waits for it, and each of its steps was whole: the new one takes its place.
            _ => {}
        }
        if let MemberChange::Add { id, address } = &wanted {
            let known = self.state.group.addresses.get(id);
            if self.state.group.members.voters.contains(*id) && known != Some(address) {
                let known = known.map_or("an unknown address", String::as_str);
                return failed(&format!("{id} votes already, at {known}: remove it first"));
            }
            if id.0 > 15 {
                return failed(&format!("{id} cannot join: give it an id from 0 to 15"));
            }
            // Over shared memory replicas may have no address. Then the newcomer needs none either.
            let own = self.state.group.addresses.get(&self.config.me);
            let is_none = address.is_empty() && own.is_some_and(String::is_empty);
            if !is_none && address.parse::<std::net::SocketAddr>().is_err() {
                return failed(&format!(
                    "{id} cannot join at '{address}': give it an address of the form HOST:PORT"
                ));
            }
        }
        self.change = Some(Change {
            connection,
            wanted,
            proposed: None,
            report_at: Micros::ZERO,
            reported: None,
        });
        None
    }

    /// Continues the change under way.
    pub(crate) fn advance_change(&mut self) {
        let Some(mut change) = self.change.take() else {
            return;
        };
        let reply = self.next_step(&mut change);
        let over = !matches!(reply, None | Some(Reply::Progress(_)));
        if let Some(reply) = reply {
            self.clients.reply(change.connection, &reply);
        }
        if !over {
            self.change = Some(change);
        }
    }

    fn next_step(&mut self, change: &mut Change) -> Option<Reply<'static>> {
        if self.state.group.is_done(&change.wanted) {
            let voters = self.state.group.members.voters;
            return Some(Reply::Done(format!("done: {voters} vote")));
        }
        if !self.leads() {
            return Some(self.elsewhere(0));
        }
        let group = &self.state.group;
        if change.proposed.take_if(|step| *step == *group).is_none() && change.proposed.is_some() {
            return None;
        }
        let last = self.core.status().last.index;
        let matched = match &change.wanted {
            MemberChange::Add { id, .. } => self.core.matched(*id),
            MemberChange::Remove { .. } => None,
        };
        let caught_up = matched.is_some_and(|it| it.0 > 0 && it.0 + CAUGHT_UP >= last.0);
        let Some(step) = group.step(&change.wanted, caught_up) else {
            return self.report_progress(change, matched.map_or(0, |it| it.0), last.0);
        };
        let now = self.now();
        let kind = EntryKind::Members(step.members);
        match self.core.propose(now, kind, step.payload()) {
            Ok(_) => {
                let text = format!(
                    "proposed: {} vote, {} learn",
                    step.members.voters, step.members.learners
                );
                change.proposed = Some(step);
                Some(Reply::Progress(text))
            }
            Err(ProposeError::Members(
                MembersError::ChangePending | MembersError::ViewTooYoung,
            )) => None,
            Err(ProposeError::NotLeader) => Some(self.elsewhere(0)),
            Err(error) => Some(Reply::Failed(error.to_string())),
        }
    }

    /// Tells the client how far the newcomer has come. Each report gives the client new patience, so there is none while the
    /// newcomer comes no further.
    fn report_progress(
        &self,
        change: &mut Change,
        matched: u64,
        last: u64,
    ) -> Option<Reply<'static>> {
        let now = self.now();
        if now < change.report_at || change.reported == Some(matched) {
            return None;
        }
        change.report_at = now + REPORT_EVERY;
        change.reported = Some(matched);
        let text = match matched {
            0 => "waiting for the newcomer to be reached and to answer".into(),
            _ => format!("the newcomer holds {matched} of {last} entries"),
        };
        Some(Reply::Progress(text))
    }

    /// Takes the group that the log names, and opens the links to its replicas.
    pub(crate) fn regroup(&mut self, group: Group) {
        let me = self.config.me;
        let now = self.now();
        tracing::info!(voters = %group.members.voters, learners = %group.members.learners, "the group");
        let before = std::mem::replace(&mut self.state.group, group.clone());
        self.link(&group.addresses, &before.addresses);
        self.departing
            .retain(|(gone, _)| !group.addresses.contains_key(gone));
        let gone = before.addresses.keys();
        let gone = gone.filter(|id| !group.addresses.contains_key(id) && **id != me);
        self.departing.extend(gone.map(|id| (*id, now + FAREWELL)));
    }

    /// Opens the links to the replicas that the newest group in the recovered log names, committed or not. The group
    /// that was told at the start may be an old one, of which nobody is left to say what is committed.
    pub(crate) fn link_as_logged(&mut self) {
        let status = self.core.status();
        let logged = (status.base.0 + 1..=status.last.index.0).rev();
        let group = logged
            .filter_map(|index| self.core.entry(Index(index)))
            .find_map(|entry| match entry.kind {
                EntryKind::Members(members) => Group::decode(members, &entry.payload),
                _ => None,
            });
        let known = self.state.group.addresses.clone();
        self.link(&group.unwrap_or_default().addresses, &known);
    }

    /// Opens the links to `addresses`, of which those that are `known` may be there. They may also lead elsewhere, by an entry
    /// that another leader dropped.
    fn link(
        &mut self,
        addresses: &BTreeMap<ReplicaId, String>,
        known: &BTreeMap<ReplicaId, String>,
    ) {
        for (&id, address) in addresses.iter().filter(|(id, _)| **id != self.config.me) {
            match self.fabric.set_peer(id, Some(address)) {
                // A fabric whose peers are fixed takes none, not even the same.
                Err(error) if known.get(&id) != Some(address) => {
                    tracing::error!(%id, %address, %error, "no link can be opened to a newcomer");
                }
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Ends the links of replicas that were removed a while ago.
    pub(crate) fn end_links(&mut self) {
        let now = self.now();
        while let Some(place) = self.departing.iter().position(|(_, at)| *at <= now) {
            let (id, _) = self.departing.swap_remove(place);
            // This fails with a fabric whose peers are fixed. Such a fabric has no newcomers either.
            let _ = self.fabric.set_peer(id, None);
            self.linked(id, false);
            self.client_addresses.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, LogOnly};
    use plover_fabric::{ShmConfig, ShmFabric};
    use plover_types::ReplicaSet;
    use std::time::{Duration, Instant};

    fn set(ids: &[u8]) -> ReplicaSet {
        ReplicaSet::of(ids.iter().map(|id| ReplicaId(*id)))
    }

    fn group(ids: &[u8]) -> Group {
        let address = |id: &u8| (ReplicaId(*id), format!("h:{id}"));
        Group {
            members: Members::of(set(ids)),
            addresses: ids.iter().map(address).collect(),
        }
    }

    fn add(id: u8, address: &str) -> MemberChange {
        let (id, address) = (ReplicaId(id), address.into());
        MemberChange::Add { id, address }
    }

    #[test]
    fn a_newcomer_learns_before_it_votes() {
        let change = add(3, "h:3");
        let learns = group(&[0, 1]).step(&change, true).unwrap();
        assert_eq!(learns.members.voters, set(&[0, 1]));
        assert_eq!(learns.members.learners, set(&[3]));
        assert_eq!(learns.step(&change, false), None);
        assert!(!learns.is_done(&change));
        let votes = learns.step(&change, true).unwrap();
        assert_eq!(votes, group(&[0, 1, 3]));
        assert!(votes.is_done(&change));
        assert_eq!(Group::decode(votes.members, &votes.payload()), Some(votes));
    }

    #[test]
    fn a_learner_that_moves_learns_again() {
        let learns = group(&[0, 1]).step(&add(3, "h:3"), false).unwrap();
        let moved = learns.step(&add(3, "h:4"), true).unwrap();
        assert_eq!(moved.members, learns.members);
        assert_eq!(moved.addresses[&ReplicaId(3)], "h:4");
    }

    #[test]
    fn a_removed_replica_is_forgotten() {
        let change = MemberChange::Remove { id: ReplicaId(1) };
        let left = group(&[0, 1, 2]).step(&change, false).unwrap();
        assert_eq!(left, group(&[0, 2]));
        assert_eq!(left.step(&change, false), None);
        assert!(left.is_done(&change));
    }

    /// Later changes start from that group, under any leader.
    #[test]
    fn the_group_of_a_generation_is_that_of_its_first_leader() {
        let name = format!("log-generation-{}", std::process::id());
        // The third replica is needed only for its answer that it has no log.
        let all = set(&[0, 1, 2]);
        let mut servers = [(0, set(&[0, 1])), (1, all), (2, all)].map(|(me, told)| {
            let me = ReplicaId(me);
            let peers = told.iter().filter(|id| *id != me).collect();
            let fabric = ShmFabric::new(ShmConfig::new(name.clone(), me, peers)).expect("it opens");
            let fabric = Box::new(fabric);
            let mut config = Config::new(me, told);
            config.addresses = told.iter().map(|id| (id, String::new())).collect();
            Server::in_memory(config, fabric, LogOnly).expect("it opens")
        });
        let until = Instant::now() + Duration::from_secs(60);
        while servers[..2].iter().any(|it| it.status().commit == Index(0)) {
            assert!(
                Instant::now() < until,
                "{:?}",
                servers.each_ref().map(Server::status)
            );
            for server in &mut servers {
                server
                    .turn(Some(Duration::from_millis(1)))
                    .expect("it runs");
            }
        }
        for server in &servers[..2] {
            let group = &server.state.group;
            assert_eq!(group.members.voters, set(&[0, 1]));
            assert_eq!(group.addresses.len(), 2, "{group:?}");
        }
    }
}
