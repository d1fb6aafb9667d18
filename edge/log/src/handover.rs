//! Sends and takes [`Mail`]: introductions, outputs to compare, and state for a replica that is too
//! far behind for the log.

use crate::address::Address;
use crate::envelope::Envelope;
use crate::mail::{Mail, STATE_BYTES_MAX};
use crate::outputs::Piece;
use crate::pending::Origin;
use crate::replicated::RestoreError;
use crate::{Server, ServerError, StateMachine};
use plover_fabric::Lane;
use plover_types::{Index, Micros, ReplicaId, wire};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

impl<M: StateMachine> Server<M> {
    pub(crate) fn take_mail(&mut self, from: ReplicaId, bytes: &[u8]) -> Result<(), ServerError> {
        match wire::decode(bytes) {
            Ok(Mail::Hello { clients }) => match clients {
                Some(address) => drop(self.client_addresses.insert(from, address)),
                None => drop(self.client_addresses.remove(&from)),
            },
            Ok(Mail::Outputs(pieces)) => self.propose_report(from, pieces),
            Ok(Mail::Propose(bytes)) => drop(self.propose(None, &bytes, Origin::Server)),
            Ok(Mail::Want { least }) => self.hand_over(from, least),
            Ok(Mail::Part {
                applied,
                total,
                offset,
                bytes,
            }) => return self.take_over((from, applied), (total, offset), &bytes),
            Err(error) => {
                self.rejected += 1;
                let why = format!("mail that does not decode: {error}");
                self.fabric.cut(from, &why);
            }
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, to: ReplicaId, mail: &Mail) {
        // A lost or refused record is asked for again.
        let _ = self.fabric.write(to, Lane::Bulk, &wire::encode(mail));
    }

    /// Tells a peer whose link has come up where this replica serves clients.
    pub(crate) fn introduce(&mut self, peer: ReplicaId) {
        let clients = self.announced();
        self.send(peer, &Mail::Hello { clients });
    }

    /// Where this replica serves clients, if clients of all hosts reach that.
    pub(crate) fn announced(&self) -> Option<String> {
        let door = self.clients.address()?;
        let address = reachable(door, self.config.me, &self.state.group.addresses)?;
        Some(address.to_string())
    }

    /// Asks the leader, or else any peer, for a state that the log continues.
    pub(crate) fn ask_for_state(&mut self, now: Micros) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        if now < incoming.ask_at {
            return;
        }
        incoming.asked(now);
        let status = self.core.status();
        let least = status.base;
        let leader = status.leader.filter(|leader| *leader != self.config.me);
        let anyone = self
            .linked
            .iter()
            .nth(now.0 as usize % self.linked.len().max(1));
        if let Some(peer) = leader.or(anyone) {
            tracing::info!(%peer, %least, "asking for a state that the log continues");
            self.send(peer, &Mail::Want { least });
        }
    }

    fn hand_over(&mut self, to: ReplicaId, least: Index) {
        let now = self.now();
        let state = &self.state;
        if self.incoming.is_some() || state.applied.index < least {
            // The peer asks again, and this replica may have caught up by then.
            return;
        }
        let snapshot = || (state.applied.index, state.snapshot());
        if let Err(bytes) = self.outgoing.begin(now, to, least, snapshot) {
            tracing::error!(
                bytes,
                "{to} stays behind: the state machine's state is larger than {STATE_BYTES_MAX} bytes, which is the most that \
                 a replica takes over. Let the state machine keep less"
            );
        }
    }

    pub(crate) fn send_snapshots(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let fabric = &mut self.fabric;
        self.outgoing
            .advance(|to, mail| fabric.write(to, Lane::Bulk, &wire::encode(mail)).is_ok());
    }

    fn take_over(
        &mut self,
        from: (ReplicaId, Index),
        place: (u64, u64),
        bytes: &[u8],
    ) -> Result<(), ServerError> {
        let now = self.now();
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        let Some(snapshot) = incoming.part(now, from, place, bytes) else {
            return Ok(());
        };
        if from.1 > self.state.applied.index {
            let group = match self.state.restore(snapshot, self.core.generation()) {
                Ok(group) => group,
                Err(RestoreError::Malformed(error)) => {
                    let why = format!("a state that does not decode: {error}");
                    self.fabric.cut(from.0, &why);
                    return Ok(());
                }
                Err(RestoreError::Machine(why)) => return Err(ServerError::Restore(why)),
            };
            let Some(group) = group else {
                tracing::info!(from = %from.0, "a state of the log before this one is not used");
                return Ok(());
            };
            self.regroup(group);
            tracing::info!(applied = %self.state.applied, from = %from.0, "took over a state");
            if self.state.applied.index > self.commit.index {
                self.commit = self.state.applied;
            }
        }
        self.catch_up()
    }

    /// Proposes the hashes of this replica's outputs, through the leader. They wait for one.
    pub(crate) fn report_outputs(&mut self) {
        if self.state.pieces.is_empty() {
            return;
        }
        let Some(leader) = self.core.status().leader else {
            return;
        };
        let pieces = std::mem::take(&mut self.state.pieces);
        if leader == self.config.me {
            self.propose_report(leader, pieces);
        } else {
            self.send(leader, &Mail::Outputs(pieces));
        }
    }

    /// If this replica does not lead, or the log is full, the report is lost. The next one makes up
    /// for it: each hash includes all before it.
    fn propose_report(&mut self, replica: ReplicaId, pieces: Vec<Piece>) {
        let payload = Envelope::Outputs(replica, pieces).put(Vec::new());
        let _ = self.propose_payload(payload, Origin::Server, None);
    }
}

/// The address at which clients of all hosts reach `door`, where replica `me` serves them. `None` if only its own host
/// reaches it, and there are others: each of them would find another replica there, or none. `replicas` says where
/// replicas reach each other. A group without such addresses is on one host.
fn reachable(
    door: &Address,
    me: ReplicaId,
    replicas: &BTreeMap<ReplicaId, String>,
) -> Option<Address> {
    let parse = |text: &String| text.parse::<SocketAddr>().ok();
    let hosts: BTreeSet<_> = replicas
        .values()
        .filter_map(|it| Some(parse(it)?.ip()))
        .collect();
    let is_one_host = hosts.len() < 2 || hosts.iter().all(|it| it.is_loopback());
    match (door, replicas.get(&me).and_then(parse)) {
        (Address::Tcp(door), Some(own)) if door.ip().is_unspecified() => {
            Some(Address::Tcp(SocketAddr::new(own.ip(), door.port())))
        }
        (Address::Tcp(at), _) if !at.ip().is_loopback() => Some(door.clone()),
        _ => is_one_host.then(|| door.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_that_only_its_own_host_reaches_is_not_announced_to_others() {
        let far = ["192.0.2.10:7000", "192.0.2.11:7000"];
        let near = ["127.0.0.1:7000", "127.0.0.2:7000"];
        let shm = ["", ""];
        for (replicas, door, announced) in [
            (far, "192.0.2.10:7100", Some("192.0.2.10:7100")),
            (far, "198.51.100.1:7100", Some("198.51.100.1:7100")),
            (far, "0.0.0.0:7100", Some("192.0.2.10:7100")),
            (far, "[::]:7100", Some("192.0.2.10:7100")),
            (far, "127.0.0.1:7100", None),
            (far, "/run/door", None),
            (near, "127.0.0.1:7100", Some("127.0.0.1:7100")),
            (near, "/run/door", Some("/run/door")),
            (shm, "127.0.0.1:7100", Some("127.0.0.1:7100")),
            (shm, "/run/door", Some("/run/door")),
        ] {
            let replicas = (0..).map(ReplicaId).zip(replicas.map(String::from));
            let replicas = replicas.collect();
            let door = door.parse().unwrap();
            let found = reachable(&door, ReplicaId(0), &replicas).map(|it| it.to_string());
            assert_eq!(found.as_deref(), announced, "{door} of {replicas:?}");
        }
    }
}
