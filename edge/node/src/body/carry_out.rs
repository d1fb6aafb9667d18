//! Carries out what the core has decided.

use super::{Body, BoxError};
use crate::{announce, clock};
use plover_fabric::Fabric;
use plover_replica::{Action, Note, Role};
use plover_syncvm::Phase;
use plover_syncvm::blocks::BlockMask;
use plover_types::{Frame, Lane, Payload, ReplicaId, SyncNo};
use plover_vm::VmCommand;

impl Body {
    pub(super) fn act(&mut self, action: Action) -> Result<(), BoxError> {
        if takes_long(&action) {
            // Peers and the disk have something to do meanwhile.
            self.storage.submit();
            self.flush();
        }
        match action {
            Action::Write {
                to,
                lane,
                payload,
                bytes,
            } => self.write(to, lane, payload, &bytes),
            Action::PersistState(state) => {
                self.storage.persist_state(state);
            }
            Action::PersistEntries {
                after,
                anew,
                entries,
            } => self.storage.append(after, anew, &entries),
            Action::PersistGuest(record) => self.storage.persist_guest(record)?,
            Action::StartGuest => self.start_guest(),
            Action::KillGuest => {
                self.vm = None;
                self.printed.forget();
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
            Action::LoadState(state) => self.order(VmCommand::LoadState(state)),
            Action::Scan => self.scan(),
            Action::Hash { key, pages } => self.hash(key, pages),
            Action::HashBlocks { key, pages } => self.hash_blocks(key, pages),
            Action::ReadBlocks(pages) => self.read(pages),
            Action::ReadPages(pages) => {
                let whole = pages.into_iter().map(|page| (page, BlockMask::ALL));
                self.read(whole.collect());
            }
            Action::WriteChunks(chunks) => {
                self.crash_in_apply(&chunks);
                self.write_chunks(chunks);
            }
            Action::StageDisks { sync, chunks } => self.stage_disks(sync, chunks),
            Action::Feed(frames) => self.feed(&frames),
            Action::Operate(input) => self.operate(&input),
            Action::Release { slot, frames } => self.release(slot, &frames),
            Action::FaceClients(facing) => {
                self.facing = facing;
                self.tap.drain();
            }
            Action::Announce => {
                self.tap.write(&announce::frame(self.qemu.mac));
            }
            Action::Note(note) => self.note(note),
        }
        Ok(())
    }

    fn release(&mut self, slot: SyncNo, frames: &[Frame]) {
        let crash = self.crash_in_release(slot, frames.len());
        self.held.release(clock::now(), frames.len());
        for frame in &frames[..crash.unwrap_or(frames.len())] {
            if !self.tap.write(frame) {
                tracing::debug!("the TAP did not take a frame");
            }
        }
        if crash.is_some() {
            self.crash();
        }
    }

    fn write(&mut self, to: ReplicaId, lane: Lane, payload: Payload, bytes: &[u8]) {
        let Some(fabric) = &mut self.fabric else {
            return;
        };
        let packed = self.packer.pack(to, lane, payload, bytes);
        match fabric.write(to, lane, packed) {
            Ok(()) => self.packer.was_sent(),
            Err(error) => {
                self.packer.not_sent(to, lane);
                // The core repeats what matters; a bulk message that is lost ends its sync.
                tracing::debug!(%to, ?lane, %error, "a message was not sent");
            }
        }
    }

    /// Hands over what was written to peers.
    pub(super) fn flush(&mut self) {
        if let Some(fabric) = &mut self.fabric {
            fabric.flush();
        }
    }

    fn note(&mut self, note: Note) {
        match &note {
            Note::Role { from, to, .. } => {
                self.role = *to;
                if *from == Role::Leader {
                    self.dismiss_operators();
                }
                self.unprotected = None;
                self.held.forget();
                tracing::info!(role = ?to, "role");
                self.place();
            }
            Note::SyncPhase { sync, phase } => {
                if *phase == Phase::Scan {
                    self.printed.cut(*sync);
                }
                self.at_phase(*phase, &note);
            }
            Note::SyncFailed { .. } => {
                self.printed.reopen();
                tracing::info!(?note, "note");
            }
            Note::Synced(report) => {
                self.metrics.add((**report).clone());
                let printed = self.printed.synced(report.sync);
                self.show(&printed);
            }
            Note::InputDropped { frames } => self.dropped_inputs += *frames as u64,
            Note::OutputDropped { frames } => {
                self.dropped_outputs += *frames as u64;
                self.held.lose(*frames);
            }
            Note::Applied { sync } | Note::Kept { sync } => {
                self.printed.forget();
                self.checksum(sync.0);
            }
            Note::Rejected { .. } => tracing::debug!(?note, "rejected"),
            Note::JoinFailed { peer, why } => {
                let why = format!("the copy of the guest to replica {peer} failed: {why}");
                // The leader tries again and again: told once.
                if self.unprotected.as_ref() != Some(&why) {
                    tracing::warn!("{why}");
                }
                self.unprotected = Some(why);
            }
            Note::Protected { peer } => {
                tracing::info!(%peer, "protected");
                self.unprotected = None;
            }
            // As often as slots end.
            Note::OutputsDiffer { why } => tracing::debug!(why, "outputs differ"),
            Note::OutputsUnmatched { why } => tracing::debug!(why, "an output is not matched"),
            other => tracing::info!(?other, "note"),
        }
        if self.trace.wants(&note) {
            self.trace.note(clock::now(), &note);
        }
    }
}

/// Whether an action is work of a tenth of a millisecond and more on the guest's memory.
fn takes_long(action: &Action) -> bool {
    match action {
        Action::Scan | Action::WriteChunks(_) => true,
        Action::Hash { pages, .. } | Action::HashBlocks { pages, .. } => !pages.is_empty(),
        _ => false,
    }
}
