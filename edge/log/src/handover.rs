//! Sends and takes [`Mail`]: introductions, outputs to compare, and state for a replica that is too
//! far behind for the log.

use crate::envelope::Envelope;
use crate::mail::Mail;
use crate::outputs::Piece;
use crate::pending::Origin;
use crate::replicated::RestoreError;
use crate::{Server, ServerError, StateMachine};
use plover_fabric::Lane;
use plover_types::{Index, Micros, ReplicaId, wire};

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
        let clients = self.clients.address().map(ToString::to_string);
        self.send(peer, &Mail::Hello { clients });
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
        let state = &self.state;
        if self.incoming.is_some() || state.applied.index < least {
            // The peer asks again, and this replica may have caught up by then.
            return;
        }
        self.outgoing
            .begin(to, least, || (state.applied.index, state.snapshot()));
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

    /// Proposes the hashes of this replica's outputs, through the leader.
    pub(crate) fn report_outputs(&mut self) {
        if self.state.pieces.is_empty() {
            return;
        }
        let pieces = std::mem::take(&mut self.state.pieces);
        let me = self.config.me;
        match self.core.status().leader {
            Some(leader) if leader == me => self.propose_report(me, pieces),
            Some(leader) => self.send(leader, &Mail::Outputs(pieces)),
            None => {}
        }
    }

    /// If this replica does not lead, or the log is full, the report is lost. The next one makes up
    /// for it: each hash includes all before it.
    fn propose_report(&mut self, replica: ReplicaId, pieces: Vec<Piece>) {
        let payload = Envelope::Outputs(replica, pieces).put(Vec::new());
        let _ = self.propose_payload(payload, Origin::Server);
    }
}
