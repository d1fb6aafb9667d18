//! Carrying out what consensus decides.

use crate::mail::Incoming;
use crate::members::Group;
use crate::pending::Origin;
use crate::wire::Reply;
use crate::{Counters, Error, Server, ServerError, StateMachine};
use apus::{Command, Configuration, Entry, EntryKind, Event, Phase};
use plover_fabric::Lane;
use plover_types::{Index, Micros, ReplicaId, Viewstamp};

/// Bytes that an entry takes in the log besides its payload.
const ENTRY_WEIGHT: usize = 64;

impl<M: StateMachine> Server<M> {
    /// Does all that consensus has asked for, and what follows from it, until nothing is left.
    /// Then sends what the turn has written.
    pub(crate) fn settle(&mut self) -> Result<(), ServerError> {
        self.drive()?;
        self.catch_up()?;
        self.report_outputs();
        self.advance_change();
        self.end_links();
        self.drive()?;
        self.send_snapshots();
        self.trim();
        let begins = (self.core.generation(), self.core.base());
        let state = &self.state;
        self.stable
            .trim(begins, state.applied, || state.snapshot())?;
        self.feed_tails();
        self.clients.flush();
        self.fabric.flush();
        Ok(())
    }

    /// Does what consensus and the disk ask for, until nothing is left.
    fn drive(&mut self) -> Result<(), ServerError> {
        self.carry_out()?;
        while self.stable.is_queued() {
            // The others' messages leave first, so that their disks work while ours does.
            self.fabric.flush();
            self.stable.write();
            self.take_stored()?;
            self.carry_out()?;
        }
        Ok(())
    }

    /// Does what consensus has asked for, until nothing is left.
    fn carry_out(&mut self) -> Result<(), ServerError> {
        loop {
            let now = self.now();
            self.core.flush(now, &mut self.commands);
            if self.commands.is_empty() {
                return Ok(());
            }
            let spare = std::mem::take(&mut self.commands_spare);
            let mut commands = std::mem::replace(&mut self.commands, spare);
            for command in commands.drain(..) {
                self.act(now, command)?;
            }
            self.commands_spare = commands;
        }
    }

    /// Tells consensus what has become durable.
    pub(crate) fn take_stored(&mut self) -> Result<(), ServerError> {
        let now = self.now();
        let (core, commands) = (&mut self.core, &mut self.commands);
        self.stable
            .completions(|event| core.apply(now, event, commands))
    }

    /// Carries out one command. The clock was read once for all of them: under load there are
    /// thousands in a millisecond.
    fn act(&mut self, now: Micros, command: Command) -> Result<(), ServerError> {
        match command {
            Command::Write { to, bytes } => {
                // The core repeats what a lost link or a full ring has swallowed.
                let _ = self.fabric.write(to, Lane::Log, &bytes);
                self.core.recycle(bytes);
            }
            Command::PersistState(state) => {
                if let Some(done) = self.stable.persist_state(state) {
                    self.core.apply(now, done, &mut self.commands);
                }
            }
            Command::PersistEntries {
                after,
                anew,
                entries,
            } => {
                if let Some(done) = self.stable.persist_entries(after, anew, &entries) {
                    self.core.apply(now, done, &mut self.commands);
                }
                self.core.recycle_entries(entries);
            }
            Command::Deliver(entry) => {
                self.deliver(&entry);
                self.core.recycle(entry.payload);
            }
            Command::InstallSnapshot {
                base,
                configuration,
            } => self.install_snapshot(base, configuration)?,
            Command::Version(version) => {
                self.fabric.speak(self.core.versions());
                tracing::info!(version, "the group has this wire version");
            }
            Command::Lead { view } => {
                tracing::info!(%view, "leading");
                self.lost = false;
            }
            Command::Follow { view, leader } => {
                tracing::info!(%view, ?leader, "following");
                self.lost &= leader.is_none();
                self.give_up();
            }
            Command::PeerAlive { .. } => {}
            Command::Refuse { peer, why } => self.fabric.cut(peer, &why.to_string()),
            Command::GroupEmpty { fresh: true } => {
                if self.begin() {
                    tracing::info!(
                        "no replica holds a log: a new, empty one begins. If the group had one in memory, it ended with \
                         the last of its replicas"
                    );
                }
            }
            Command::GroupEmpty { fresh: false } => {
                tracing::warn!(
                    "no replica holds the log any more: the operator has to begin a new one"
                );
                self.lost = true;
            }
        }
        Ok(())
    }

    /// Applies a committed entry and answers its proposer.
    fn deliver(&mut self, entry: &Entry) {
        let at = entry.viewstamp;
        self.commit = at;
        let origin = self.proposals.settle(at);
        // Otherwise this replica waits for a snapshot, or has one that reflects the entry.
        if at.index == self.state.applied.index.next() {
            self.apply(entry, origin);
        } else if let Some(origin) = origin {
            self.refuse(origin, Error::Unknown);
        }
    }

    fn apply(&mut self, entry: &Entry, origin: Option<Origin>) {
        let at = entry.viewstamp;
        if entry.kind != EntryKind::App {
            self.state.applied = at;
            if let EntryKind::Members(members) = entry.kind {
                match Group::decode(members, &entry.payload) {
                    Some(group) => self.regroup(group),
                    None => tracing::error!(%at, "a group without addresses was proposed"),
                }
            }
            return;
        }
        match (self.state.apply(at, &entry.payload), origin) {
            (_, None | Some(Origin::Server)) => {}
            (Ok((at, answer)), Some(Origin::Submitted(ticket))) => {
                self.submitted.complete(ticket, Ok(at), answer);
            }
            (Ok((at, answer)), Some(Origin::Remote(connection, number))) => {
                let reply = Reply::Appended { number, at, answer };
                self.clients.reply(connection, &reply);
            }
            (Err(error), Some(origin)) => self.refuse(origin, error),
        }
    }

    /// Tells `origin` that its entry was not appended, or that this replica does not know whether it
    /// was.
    pub(crate) fn refuse(&mut self, origin: Origin, error: Error) {
        match origin {
            Origin::Submitted(ticket) => self.submitted.complete(ticket, Err(error), &[]),
            Origin::Server => {}
            Origin::Remote(connection, number) => {
                let reply = self.refusal(number, error);
                self.clients.reply(connection, &reply);
            }
        }
    }

    fn give_up(&mut self) {
        for origin in self.proposals.give_up() {
            self.refuse(origin, Error::Unknown);
        }
    }

    /// Starts the log anew after `base`, where `configuration` names the group.
    fn install_snapshot(
        &mut self,
        base: Viewstamp,
        configuration: Configuration,
    ) -> Result<(), ServerError> {
        tracing::info!(%base, "the log was replaced by a newer one");
        self.give_up();
        self.commit = base;
        if base.index == Index(0) {
            self.incoming = None;
            self.state.reset(base).map_err(ServerError::Restore)?;
            // A new log begins, perhaps with another group than our configuration names.
            let mut group = self.config.group();
            group.members = configuration.members;
            let all = configuration.members.all();
            group.addresses.retain(|id, _| all.contains(*id));
            self.regroup(group);
        }
        Ok(())
    }

    /// Applies what the log holds beyond the state, or asks for a newer state if the log begins
    /// after it.
    pub(crate) fn catch_up(&mut self) -> Result<(), ServerError> {
        while self.state.applied.index < self.commit.index {
            let Some(entry) = self.core.entry(self.state.applied.index.next()) else {
                self.incoming.get_or_insert_with(Incoming::default);
                self.ask_for_state(self.now());
                return Ok(());
            };
            let entry = entry.clone();
            self.apply(&entry, None);
        }
        self.incoming = None;
        Ok(())
    }

    /// The leader keeps a bounded tail of the log.
    fn trim(&mut self) {
        let status = self.core.status();
        let retain = self.config.retain_bytes;
        let held = (status.last.index.0 - status.base.0) as usize;
        let mut weight = status.log_bytes + held * ENTRY_WEIGHT;
        // In steps of an eighth, not for each entry.
        if status.phase != Phase::Leading || weight <= retain.saturating_add(retain / 8) {
            return;
        }
        let mut index = status.base;
        while weight > retain && index < self.state.applied.index {
            index = index.next();
            let payload = self.core.entry(index).map_or(0, |it| it.payload.len());
            weight = weight.saturating_sub(payload + ENTRY_WEIGHT);
        }
        self.core.trim(index);
    }

    /// A link came up anew or went down.
    pub(crate) fn linked(&mut self, peer: ReplicaId, up: bool) {
        let now = self.now();
        if up {
            self.linked.insert(peer);
            self.introduce(peer);
        } else {
            self.linked.remove(peer);
            self.outgoing.forget(peer);
        }
        if let Some(versions) = self.fabric.versions(peer).filter(|_| up) {
            let event = Event::Speaks { peer, versions };
            self.core.apply(now, event, &mut self.commands);
        }
        let event = Event::Link { peer, up };
        self.core.apply(now, event, &mut self.commands);
    }

    /// Whether this replica leads.
    pub fn leads(&self) -> bool {
        self.core.status().phase == Phase::Leading
    }

    /// Where consensus stands at this replica.
    pub fn status(&self) -> apus::Status {
        self.core.status()
    }

    /// The state machine.
    pub fn machine(&self) -> &M {
        &self.state.machine
    }

    /// Counts of what stable storage has written since this replica started. Zero without stable
    /// storage.
    pub fn stored(&self) -> Counters {
        self.stable.counters()
    }

    /// Begins a new log after every replica has lost the entries of the old one. Only the group's first
    /// leader can, and only while no replica still holds the log. Returns whether it has begun one.
    pub fn begin(&mut self) -> bool {
        let now = self.now();
        let before = self.commands.len();
        self.core.bootstrap(now, &mut self.commands);
        self.commands.len() > before
    }
}
