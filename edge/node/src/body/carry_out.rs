//! Carries out the actions of the core.

use super::ending::Ending;
use super::work::{Work, whole};
use super::{Body, BoxError};
use crate::clock;
use plover_disk::Disks;
use plover_fabric::WriteError;
use plover_replica::{Action, ConsoleHold, Note, OwnFault, Role};
use plover_types::{Frame, Lane, Payload, ReplicaId, SyncNo};
use plover_vm::VmCommand;

impl Body {
    pub(super) fn act(&mut self, action: Action) -> Result<(), BoxError> {
        if takes_long(&action) {
            // Peers and the disk can work meanwhile.
            self.storage.submit();
            self.flush();
        }
        match action {
            Action::Write {
                to,
                lane,
                payload,
                bytes,
            } => {
                self.write(to, lane, payload, &bytes);
            }
            Action::PersistState(state) => {
                self.storage.persist_state(state);
            }
            Action::PersistEntries {
                after,
                anew,
                entries,
            } => self.storage.append(after, anew, &entries),
            Action::PersistGuest(record) => self.storage.persist_guest(record)?,
            Action::Regroup(record) => self.regroup(*record)?,
            Action::Version(_) => self.speak(),
            Action::Leave => self.stopping = Some(Ending::Left),
            Action::StartGuest(reason) => self.start_guest(reason),
            Action::KillGuest => {
                self.leave_guest();
                self.printed.forget();
                self.agent.forget_said();
            }
            Action::Pause => self.order(VmCommand::Pause),
            Action::Resume => {
                if let Some(disks) = &mut self.disks {
                    disks.settle();
                }
                self.order(VmCommand::Resume);
            }
            Action::Reset => self.order(VmCommand::Reset),
            Action::SaveState => self.order(VmCommand::SaveState),
            Action::Probe => self.order(VmCommand::Probe),
            Action::LoadState(mut state) => {
                state.stopped_at = clock::on_monotonic(state.stopped_at);
                self.backup.loads(&state.bytes);
                self.order(VmCommand::LoadState(state));
            }
            Action::TellCut(sync) => {
                if let Some(vm) = &mut self.vm {
                    vm.tell_cut(sync);
                }
            }
            Action::Scan(job) => self.begin(Work::Scan(job)),
            Action::Hash { job, key, pages } => {
                self.begin(Work::Hash(job, key, pages, Vec::new()));
            }
            Action::HashSubpages { job, key, pages } => {
                self.begin(Work::HashSubpages(job, key, pages, Default::default()));
            }
            Action::ReadSubpages { job, pages } => self.begin(Work::Read(job, pages)),
            Action::ReadPages { job, pages } => self.begin(Work::Read(job, whole(pages))),
            Action::CopyPages { job, pages } => self.copy_reads.push_back((job, pages)),
            Action::WriteChunks { job, chunks } => {
                self.crash_in_apply(job, &chunks);
                self.begin(Work::Write(job, chunks, 0));
            }
            Action::StageDisks { sync, chunks } => self.stage_disks(sync, chunks),
            Action::Feed(frames) => self.feed(&frames),
            Action::Operate(input) => self.operate(&input),
            Action::Answer { ticket, result } => self.input_answered(ticket, result),
            Action::Release { slot, frames } => self.release(slot, &frames),
            Action::FaceClients(facing) => {
                self.facing = facing;
                // Frames that still come to a leader that has handed over are sent on.
                if facing || clock::now() >= self.sends_on_until {
                    self.taps.drain();
                }
            }
            Action::SendOn(frames) => self.begin_to_send_on(frames),
            Action::Announce => {
                for (announcement, nic) in self.announcements.iter().zip(0..) {
                    let frames = announcement.frames().into_iter();
                    self.send_as_guest(&frames.map(|f| f.on_nic(nic)).collect::<Vec<_>>());
                }
            }
            Action::Console(hold) => {
                let hold = match hold {
                    // With the next sync, if this replica still leads then.
                    ConsoleHold::Show(_) if !self.has_lease() => ConsoleHold::Reopen,
                    hold => hold,
                };
                self.hold_console(hold);
                self.hold_agent(hold);
            }
            Action::Role { from, to } => self.change_role(from, to),
            Action::CutLink { peer, why } => self.cut_link(peer, &why),
            Action::Note(note) => self.note(note),
        }
        Ok(())
    }

    fn release(&mut self, slot: SyncNo, frames: &[Frame]) {
        self.held.release(clock::now(), frames.len());
        let at = self.fault_in_release(slot, frames.len());
        let (first, rest) = frames.split_at(at.unwrap_or(frames.len()));
        self.send_as_guest(first);
        if at.is_some() {
            self.fail_in_release();
        }
        self.send_as_guest(rest);
    }

    /// Whether no other replica can lead now. The brain has looked, and this process may have stood still since.
    fn has_lease(&self) -> bool {
        clock::now() < self.replica.consensus_core().lease_until()
    }

    /// Sends frames to the guest's clients while the lease lasts, which is looked at before each: this process may stand still
    /// between two. Frames that are dropped here are frames that a network loses.
    fn send_as_guest(&self, frames: &[Frame]) {
        for (frame, sent) in frames.iter().zip(0..) {
            if !self.has_lease() {
                let left = frames.len() - sent;
                tracing::debug!("the lease has run out: {left} frames are not sent");
                return;
            }
            if !self.taps.write(frame) {
                tracing::debug!("the TAP did not take a frame");
            }
        }
    }

    /// Whether the message is on its way. The core repeats messages that matter; a lost bulk message ends its sync.
    pub(super) fn write(
        &mut self,
        to: ReplicaId,
        lane: Lane,
        payload: Payload,
        bytes: &[u8],
    ) -> bool {
        let Some(fabric) = &mut self.fabric else {
            return false;
        };
        let may_wait = lane == Lane::Bulk;
        if may_wait && self.unsent.waits(to) {
            return self.unsent.push(to, payload, bytes);
        }
        let packed = self.packer.pack(to, lane, payload, bytes);
        match fabric.write(to, lane, packed) {
            Ok(()) => {
                self.packer.was_sent();
                true
            }
            Err(error) => {
                self.packer.not_sent(to, lane);
                let waits = may_wait && matches!(error, WriteError::Full(_));
                let waits = waits && self.unsent.push(to, payload, bytes);
                if !waits {
                    tracing::debug!(%to, ?lane, %error, "a message was not sent");
                }
                waits
            }
        }
    }

    /// There is room again for bulk records to this peer.
    pub(super) fn write_unsent(&mut self, to: ReplicaId) {
        let Some(fabric) = &mut self.fabric else {
            return;
        };
        while let Some((payload, record)) = self.unsent.first(to) {
            let packed = self.packer.pack(to, Lane::Bulk, payload, record);
            match fabric.write(to, Lane::Bulk, packed) {
                Ok(()) => self.packer.was_sent(),
                Err(WriteError::Full(_)) => return self.packer.not_sent(to, Lane::Bulk),
                Err(error) => {
                    self.packer.not_sent(to, Lane::Bulk);
                    tracing::debug!(%to, %error, "a message that waited was not sent");
                }
            }
            self.unsent.is_done(to);
        }
    }

    /// Hands the fabric all messages written to peers.
    pub(super) fn flush(&mut self) {
        if let Some(fabric) = &mut self.fabric {
            fabric.flush();
        }
    }

    fn hold_console(&mut self, hold: ConsoleHold) {
        match hold {
            ConsoleHold::Cut(sync) => self.printed.cut(sync),
            ConsoleHold::Reopen => self.printed.reopen(),
            ConsoleHold::Show(sync) => {
                let printed = self.printed.synced(sync);
                self.show(&printed);
            }
            ConsoleHold::Forget => self.printed.forget(),
        }
    }

    fn change_role(&mut self, from: Role, to: Role) {
        self.role = to;
        self.silences.clear();
        if let Some(vm) = &mut self.vm {
            vm.forget_replies();
        }
        if from == Role::Leader {
            self.dismiss_operators();
        }
        self.dismiss_backup();
        self.unprotected = None;
        self.held.forget();
        self.place();
    }

    /// Takes a note into the log, the trace and the figures of the status.
    fn note(&mut self, note: Note) {
        self.failures.note(&note);
        self.lost_leads.note(&note);
        match &note {
            Note::Role { to, .. } => {
                let role = format!("{to:?}").to_lowercase();
                tracing::info!(event = "role", role, "this replica is {role} now");
            }
            Note::InSync { in_sync, at } => {
                let members = in_sync.in_words();
                tracing::info!(event = "in_sync_changed", %at, "in sync: {members}");
            }
            Note::SyncPhase { phase, .. } => self.at_phase(*phase, &note),
            Note::Synced(report) => self.metrics.add((**report).clone()),
            Note::InputDropped { frames } => self.dropped_inputs += *frames as u64,
            Note::OutputDropped { frames } => {
                self.dropped_outputs += *frames as u64;
                self.held.lose(*frames);
            }
            Note::Applied { sync } => {
                self.checksum(sync.0);
                self.take_backup(*sync);
            }
            Note::Kept { sync } => self.checksum(sync.0),
            Note::MachineDiffers { own, source } => {
                tracing::warn!(
                    event = "machines_differ",
                    own,
                    source,
                    "this host's machine has other parts than that of the guest's other host"
                );
            }
            Note::HypervisorLate { why } => {
                // A hypervisor that waits for its disk can tell no more than that it waits.
                let disk = self.disks.as_ref().and_then(Disks::failure);
                let why = disk.map_or_else(|| why.clone(), |disk| format!("{why}: {disk}"));
                tracing::error!(
                    event = "hypervisor_late",
                    "QEMU on this host does not answer in time: {why}"
                );
                self.last_failure = Some(why);
            }
            Note::Uplink { up: false } => {
                let why = "the TAP or the uplink is down: clients are not reached from this host";
                tracing::error!(
                    event = "uplink_down",
                    "the TAP or the uplink is down: clients are not reached from this host"
                );
                self.last_failure = Some(why.to_string());
            }
            Note::Uplink { up: true } => {
                tracing::info!(event = "uplink_up", "the TAP and the uplink are up again")
            }
            Note::HandedOver { to } => {
                let to = to.0;
                tracing::info!(
                    event = "handover_begun",
                    peer = to,
                    "this replica hands over to replica {to}, as an operator wants"
                );
            }
            Note::Resigned {
                why: OwnFault::Storage,
            } => {
                tracing::error!(
                    event = "storage_late",
                    "the disk under state_dir has not stored this replica's log in time: it hands over"
                );
            }
            // These faults were logged when they were noticed.
            Note::Resigned { .. } => {}
            Note::Succeeds { .. } => {
                tracing::info!(
                    event = "handover_received",
                    "the leader has handed over: an election begins"
                )
            }
            Note::SwitchoverFailed { why } => tracing::warn!(
                event = "switchover_failed",
                "the switchover was given up: {why}"
            ),
            Note::Members { voters, learners } if learners.is_empty() => tracing::info!(
                event = "members",
                "the members of the group are {}",
                voters.in_words()
            ),
            Note::Members { voters, learners } => tracing::info!(
                event = "members_change",
                "the members of the group are {}, and {} is to join",
                voters.in_words(),
                learners.in_words()
            ),
            Note::Version { version } => tracing::info!(
                event = "version_raised",
                version,
                "all members speak wire version {version}, which the group has from now on: none can go back to a release \
                 without it"
            ),
            Note::MembersRefused { why } => tracing::warn!(
                event = "members_refused",
                "the members of the group are not changed: {why}"
            ),
            Note::Left => tracing::warn!(
                event = "left",
                "this replica has left the group: its guest is dropped, and this process ends. The host can be switched off"
            ),
            Note::Drained { drained: true } => {
                tracing::info!(
                    event = "drained",
                    "this host is drained: it gives up its roles"
                );
            }
            Note::Drained { drained: false } => {
                tracing::info!(event = "undrained", "this host takes roles again")
            }
            Note::HypervisorAnswers => tracing::info!(
                event = "hypervisor_answers",
                "QEMU on this host answers again"
            ),
            Note::Rejected { .. } => tracing::debug!(?note, "rejected"),
            Note::JoinFailed {
                peer: ReplicaId(peer),
                why,
            } => {
                let failed = format!("the copy of the guest to replica {peer} failed: {why}");
                // The leader tries again and again: the failure is logged once.
                if self.unprotected.as_ref() != Some(&failed) {
                    tracing::warn!(
                        event = "copy_failed",
                        peer,
                        "the copy of the guest to replica {peer} failed: {why}"
                    );
                }
                self.unprotected = Some(failed);
            }
            Note::Protected {
                peer: ReplicaId(peer),
            } => {
                tracing::info!(
                    event = "protected",
                    peer,
                    "the guest is protected: replica {peer} is in step"
                );
                self.unprotected = None;
            }
            // These come as often as slots end.
            Note::OutputsDiffer { why } => tracing::debug!(why, "outputs differ"),
            Note::OutputsUnmatched { why } => tracing::debug!(why, "an output is not matched"),
            Note::Suspected { .. } => {
                self.suspicions += 1;
                tracing::warn!(
                    event = "leader_suspected",
                    "the leader is silent: an election begins"
                );
            }
            Note::Elected { view } => {
                tracing::info!(event = "elected", %view, "this replica leads")
            }
            Note::Serving { view } => {
                tracing::info!(event = "serving", %view, "clients are served from here")
            }
            Note::ConnectionsReset { connections } => tracing::info!(
                event = "connections_reset",
                connections,
                "clean replies may have left over {connections} connections that this replica cannot continue: it resets them, \
                 and clients connect again"
            ),
            Note::Peer { peer, alive } => self.on_peer(*peer, *alive),
            Note::Wakes { inputs } => tracing::info!(
                event = "guest_wakes",
                inputs,
                "the guest has rested: it executes what was logged since"
            ),
            Note::DeathReported {
                peer: ReplicaId(peer),
            } => {
                if self.relay.has_stopped(ReplicaId(*peer)) {
                    tracing::info!(
                        event = "peer_ended",
                        peer,
                        "the process of replica {peer} has ended, as it was told to"
                    );
                } else {
                    tracing::warn!(
                        event = "peer_died",
                        peer,
                        "the process of replica {peer} has ended, its host says"
                    );
                }
            }
            Note::JoinBegun {
                peer: ReplicaId(peer),
            } => {
                tracing::info!(
                    event = "copy_begun",
                    peer,
                    "the guest is being copied to replica {peer}"
                );
            }
            Note::JoinOpened {
                peer: ReplicaId(peer),
                warm,
            } => {
                let what = if *warm {
                    "what its warm copy lacks"
                } else {
                    "all that differs"
                };
                tracing::info!(
                    event = "copy_opened",
                    peer,
                    "replica {peer} is ready, and gets {what}"
                );
            }
            Note::JoinRound { round, pages } => tracing::info!(
                event = "copy_round",
                round,
                pages,
                "round {round} of the copy: {pages} pages"
            ),
            Note::Warm {
                peer: ReplicaId(peer),
            } => {
                tracing::info!(event = "copy_warm", peer, "replica {peer} has a warm copy");
                self.copy_refused = None;
            }
            Note::WarmRefused {
                peer: ReplicaId(peer),
                why,
            } => {
                tracing::warn!(
                    event = "copy_refused",
                    peer,
                    "replica {peer} takes no warm copy: {why}"
                );
                self.copy_refused = Some((*peer, why.clone()));
            }
            Note::SyncFailed { sync, why } => {
                tracing::warn!(event = "sync_failed", "syncvm {sync} was given up: {why}")
            }
            Note::GuestLost { why } => {
                // One that the hypervisor lost was logged with its event.
                if self.last_failure.as_ref() != Some(why) {
                    tracing::error!(event = "guest_lost", "this replica's guest is lost: {why}");
                    self.last_failure = Some(why.clone());
                }
            }
            Note::GroupEmpty { fresh: true } => {
                tracing::info!(event = "group_begins", "the group begins")
            }
            Note::GroupEmpty { fresh: false } => {
                tracing::error!(
                    event = "group_lost",
                    "no replica holds the guest any more: see 'plover bootstrap'"
                );
            }
        }
        self.failover.note(
            clock::now(),
            &note,
            |peer| self.relay.has_stopped(peer),
            || self.replica.status().suspected_after,
        );
        if self.trace.wants(&note) {
            self.trace.note(clock::now(), &note);
        }
    }
}

/// Whether an action works on the guest's memory for a tenth of a millisecond or more.
fn takes_long(action: &Action) -> bool {
    match action {
        Action::Scan(_) | Action::WriteChunks { .. } => true,
        Action::Hash { pages, .. } | Action::HashSubpages { pages, .. } => !pages.is_empty(),
        _ => false,
    }
}
