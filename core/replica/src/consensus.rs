//! Between a replica and the consensus core that it owns: what it is told, and what it asks for.

use crate::api::{Action, Note, Role};
use crate::replica::Replica;
use apus::{Command, EntryKind, Phase as ConsensusPhase, ProposeError};
use plover_types::{Lane, Payload, Viewstamp};

impl Replica {
    pub(crate) fn consensus(&mut self, event: apus::Event<'_>) {
        self.apus.apply(self.now, event, &mut self.consensus_out);
    }

    /// Proposes and sends at once.
    pub(crate) fn propose(
        &mut self,
        kind: EntryKind,
        payload: Vec<u8>,
    ) -> Result<Viewstamp, ProposeError> {
        let viewstamp = self.apus.propose(self.now, kind, payload)?;
        self.apus.flush(self.now, &mut self.consensus_out);
        Ok(viewstamp)
    }

    pub(crate) fn drain_consensus(&mut self) {
        while !self.consensus_out.is_empty() {
            for command in std::mem::take(&mut self.consensus_out) {
                self.on_command(command);
            }
        }
        let phase = self.apus.status().phase;
        if phase != self.consensus_phase {
            if phase == ConsensusPhase::PreVoting {
                let view = self.view;
                self.note(Note::Suspected { view });
            }
            if self.role == Role::Recovering
                && matches!(phase, ConsensusPhase::Following | ConsensusPhase::PreVoting)
            {
                self.set_role(Role::Witness);
            }
            self.consensus_phase = phase;
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Write { to, bytes } => {
                self.out.push(Action::Write {
                    to,
                    lane: Lane::Log,
                    payload: Payload::Log,
                    bytes,
                });
            }
            Command::PersistState(state) => self.out.push(Action::PersistState(state)),
            Command::PersistEntries {
                after,
                anew,
                entries,
            } => {
                self.out.push(Action::PersistEntries {
                    after,
                    anew,
                    entries,
                });
            }
            Command::Deliver(entry) => self.on_deliver(entry),
            Command::InstallSnapshot {
                base,
                configuration,
            } => self.on_jump(base.index, configuration.in_sync),
            Command::Lead { view } => self.on_lead(view),
            Command::Follow { view, leader } => self.on_follow(view, leader),
            Command::PeerAlive { peer, alive } => self.on_peer_alive(peer, alive),
            Command::GroupEmpty { fresh } => {
                self.note(Note::GroupEmpty { fresh });
                if fresh && self.config.me == self.config.first_leader {
                    self.apus.bootstrap(self.now, &mut self.consensus_out);
                }
            }
        }
    }
}
