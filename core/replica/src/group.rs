//! The group as this replica knows it, and the consensus core that it owns: events go into the core, and its
//! commands are carried out.

use crate::api::{Action, Note, Role};
use crate::members::{GroupRecord, RecordPlace};
use crate::replica::Replica;
use apus::{Apus, Command, Phase as ConsensusPhase};
use plover_types::{Index, Lane, Micros, Payload, ReplicaId, ReplicaSet, SyncNo, View, wire};

/// Where the group stands.
#[derive(Debug)]
pub(crate) struct Group {
    pub core: Apus,
    /// Commands of the consensus core that are not yet carried out.
    pub commands: Vec<Command>,
    /// The core's phase when it was last looked at.
    pub phase: ConsensusPhase,
    pub view: View,
    pub leader: Option<ReplicaId>,
    /// The newest in-sync set that is committed.
    pub in_sync: ReplicaSet,
    /// The newest entry that was delivered.
    pub delivered: Index,
    /// The newest syncvm known.
    pub sync_no: SyncNo,
    /// The group's version.
    pub version: u8,
    /// The newest members that are committed.
    pub record: GroupRecord,
    /// The place of the newest record on stable storage.
    pub persisted: RecordPlace,
    /// Replicas that only the configuration file names, until a leader is known.
    pub contacts: ReplicaSet,
    /// When the others are told the members again, if no leader is known then.
    pub retell_at: Micros,
}

impl Group {
    pub fn new(core: Apus, record: GroupRecord, contacts: ReplicaSet) -> Self {
        // Entries up to there are not delivered again. A log from index 0 has all of them.
        let base = core.base();
        let in_sync = match base {
            Index(0) => ReplicaSet::EMPTY,
            _ => core.configuration_at_base().in_sync,
        };
        Self {
            version: core.version(),
            core,
            commands: Vec::new(),
            phase: ConsensusPhase::Recovering,
            view: View::NONE,
            leader: None,
            in_sync,
            delivered: base,
            sync_no: SyncNo(0),
            contacts: record.unknown(contacts),
            retell_at: Micros::ZERO,
            persisted: record.place(),
            record,
        }
    }

    /// Whether others are told who the members are: the log has named them, and this replica cannot forget it.
    pub fn tells_members(&self) -> bool {
        self.record.is_of_the_log() && self.persisted >= self.record.place()
    }

    /// The newest version whose messages and entries all members know. A group begins with the oldest one.
    pub fn usable_version(&self) -> u8 {
        self.core.version().max(wire::OLDEST_VERSION)
    }
}

impl Replica {
    pub(crate) fn drain_consensus(&mut self) {
        while !self.cx.group.commands.is_empty() {
            for command in std::mem::take(&mut self.cx.group.commands) {
                self.on_command(command);
            }
        }
        let phase = self.cx.group.core.status().phase;
        if phase != self.cx.group.phase {
            if phase == ConsensusPhase::PreVoting {
                let view = self.cx.group.view;
                self.cx.note(Note::Suspected { view });
            }
            let follows = self.cx.group.phase == ConsensusPhase::Following;
            if phase == ConsensusPhase::Electing && follows {
                let view = self.cx.group.view;
                self.cx.note(Note::Succeeds { view });
            }
            let recovered = matches!(phase, ConsensusPhase::Following | ConsensusPhase::PreVoting);
            if recovered && self.role() == Role::Recovering {
                self.become_witness();
            }
            self.cx.group.phase = phase;
        }
    }

    /// The group's version was raised, or a peer is linked that does not speak it.
    fn on_version(&mut self, version: u8) {
        self.cx.out.push(Action::Version(version));
        if version > self.cx.group.version {
            self.cx.group.version = version;
            self.cx.note(Note::Version { version });
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Write { to, bytes } => {
                self.cx.out.push(Action::Write {
                    to,
                    lane: Lane::Log,
                    payload: Payload::Log,
                    bytes,
                });
            }
            Command::PersistState(state) => self.cx.out.push(Action::PersistState(state)),
            Command::PersistEntries {
                after,
                anew,
                entries,
            } => {
                self.on_accepted(after.index, &entries);
                self.cx.out.push(Action::PersistEntries {
                    after,
                    anew,
                    entries,
                });
            }
            Command::Deliver(entry) => self.on_deliver(entry),
            Command::InstallSnapshot {
                base,
                configuration,
            } => self.on_install_snapshot(base.index, configuration.in_sync),
            Command::Lead { view } => self.on_lead(view),
            Command::Follow { view, leader } => self.on_follow(view, leader),
            Command::PeerAlive { peer, alive } => self.on_peer_alive(peer, alive),
            Command::Refuse { peer, why } => self.cx.cut_link(peer, &why.to_string()),
            Command::Version(version) => self.on_version(version),
            Command::GroupEmpty { fresh } => {
                self.cx.note(Note::GroupEmpty { fresh });
                if fresh && self.cx.config.me == self.cx.group.core.first_leader() {
                    self.bootstrap();
                }
            }
        }
    }

    /// A group whose replicas have all forgotten the guest may boot a new one.
    pub(crate) fn bootstrap(&mut self) {
        let group = &mut self.cx.group;
        group.core.bootstrap(self.cx.now, &mut group.commands);
    }

    /// This replica cannot serve: another one in sync takes over, if there is one.
    pub(crate) fn resign(&mut self) {
        let group = &mut self.cx.group;
        group.core.resign(self.cx.now, &mut group.commands);
    }
}
