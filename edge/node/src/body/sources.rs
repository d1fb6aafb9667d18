//! The sources of a turn: each is read, and what it says becomes an event of the brain.

use super::{Body, BoxError, FRAMES_PER_TURN, INPUT_BYTES_PER_TURN, WORK_A_TURN};
use crate::clock;
use crate::death::is_for_one;
use crate::relay::Relayed;
use plover_disk::DiskEvent;
use plover_fabric::FabricEvent;
use plover_replica::Event;
use plover_types::{Frame, Lane, Micros, ReplicaId};

/// For how long a leader that has handed over sends on what clients still send to it: until the next one has
/// announced the guest, which takes some 10 ms.
const SEND_ON_FOR: Micros = Micros::from_ms(300);

impl Body {
    pub(super) fn take_storage(&mut self) -> Result<(), BoxError> {
        let mut persisted = Vec::new();
        self.storage.persisted(&mut persisted)?;
        for event in persisted {
            self.apply(event)?;
        }
        Ok(())
    }

    pub(super) fn take_fabric(&mut self) -> Result<(), BoxError> {
        let mut happened = Vec::new();
        if let Some(fabric) = &mut self.fabric {
            fabric.progress(&mut happened);
        }
        self.take_fabric_events(happened)?;
        self.give_way()?;
        Ok(())
    }

    pub(super) fn take_fabric_events(
        &mut self,
        happened: Vec<FabricEvent>,
    ) -> Result<(), BoxError> {
        for event in happened {
            match event {
                FabricEvent::Up(peer) => self.on_link(peer, true)?,
                FabricEvent::Down(peer) => self.on_link(peer, false)?,
                FabricEvent::Record {
                    from,
                    lane: Lane::Bulk,
                    bytes,
                } => {
                    if let Err(why) = self.bulk.push(from, bytes) {
                        self.cut_link(from, &why);
                    }
                }
                FabricEvent::Record { from, lane, bytes } => self.take_record(from, lane, bytes)?,
                FabricEvent::Room {
                    peer,
                    lane: Lane::Bulk,
                } => self.write_unsent(peer),
                FabricEvent::Room { .. } => {}
            }
        }
        Ok(())
    }

    /// Takes some of the waiting bulk records. To write a copy's pages takes long, and meanwhile this replica
    /// would be silent; the rest waits for the next turn.
    pub(super) fn take_bulk(&mut self) -> Result<(), BoxError> {
        let until = clock::now() + WORK_A_TURN;
        while let Some((from, bytes)) = self.bulk.pop() {
            self.take_record(from, Lane::Bulk, bytes)?;
            if clock::now() >= until {
                break;
            }
        }
        Ok(())
    }

    fn take_record(&mut self, from: ReplicaId, lane: Lane, bytes: Vec<u8>) -> Result<(), BoxError> {
        if let Some(relayed) = Relayed::of_record(&bytes) {
            return match relayed {
                Ok(_) if lane != Lane::Bulk => {
                    self.cut_link(from, "a request on the lane of the log");
                    Ok(())
                }
                Ok(said) => self.on_relayed(from, said),
                Err(error) => {
                    self.cut_link(from, &format!("a request that does not decode: {error}"));
                    Ok(())
                }
            };
        }
        match self.packer.unpack(from, lane, bytes) {
            Ok(bytes) => self.apply(Event::Received { from, lane, bytes }),
            Err(error) => {
                self.cut_link(from, &format!("a record that cannot be unpacked: {error}"));
                Ok(())
            }
        }
    }

    /// A peer has sent `why`, which no correct replica sends. What else it has sent is dropped.
    pub(super) fn cut_link(&mut self, peer: ReplicaId, why: &str) {
        self.bulk.forget(peer);
        if let Some(fabric) = &mut self.fabric {
            fabric.cut(peer, why);
        }
    }

    pub(super) fn take_deaths(&mut self) -> Result<(), BoxError> {
        let core = self.replica.consensus_core();
        let reports = self.deaths.as_mut();
        let reports = reports.map(|it| it.take(|dead| core.has_heard(dead)));
        for report in reports.unwrap_or_default() {
            match report.frame {
                Some(frame) => self.sent_on.keep(clock::now(), frame),
                None => self.apply(Event::ProcessDied(report.dead))?,
            }
        }
        Ok(())
    }

    /// A link has come up or gone down. What came over it before is dealt with before.
    pub(super) fn on_link(&mut self, peer: ReplicaId, up: bool) -> Result<(), BoxError> {
        while let Some((from, bytes)) = self.bulk.pop() {
            self.take_record(from, Lane::Bulk, bytes)?;
        }
        self.packer.begin_anew(peer);
        self.unsent.forget(peer);
        self.relay_lost(peer);
        self.viewers_lost(peer);
        if up {
            self.has_come(peer);
        }
        let versions = self.fabric.as_ref().and_then(|it| it.versions(peer));
        if let Some(versions) = versions.filter(|_| up) {
            self.apply(Event::Speaks { peer, versions })?;
        }
        self.apply(Event::Link { peer, up })
    }

    pub(super) fn take_disks(&mut self) -> Result<(), BoxError> {
        let mut happened = Vec::new();
        if let Some(disks) = &mut self.disks {
            disks.take_events(&mut happened);
        }
        let mut has_worked = false;
        for event in happened {
            let event = match event {
                DiskEvent::Worked => {
                    has_worked = true;
                    continue;
                }
                DiskEvent::Staged(sync) => {
                    if let Some((_, since)) = self.staging.take_if(|(of, _)| *of == sync) {
                        self.staged.add(clock::now().since(since));
                    }
                    Event::DisksStaged(sync)
                }
                DiskEvent::Attached => match self.disks_attached() {
                    Some(failed) => failed,
                    None => continue,
                },
                DiskEvent::ManyWritten => Event::SyncDue,
                DiskEvent::Failed(why) => self.guest_is_gone(why),
            };
            self.apply(event)?;
        }
        if has_worked {
            self.take_resized()?;
            self.take_answers()?;
        }
        Ok(())
    }

    pub(super) fn look_at_uplink(&mut self) -> Result<(), BoxError> {
        let refused = self.taps.attach_again(&self.config.taps());
        if let Some(why) = refused.filter(|why| self.last_failure.as_ref() != Some(why)) {
            tracing::warn!(event = "tap_not_attached", "{why}");
            self.last_failure = Some(why);
        }
        match self.uplink.look() {
            Some(up) => self.apply(Event::Uplink { up }),
            None => Ok(()),
        }
    }

    pub(super) fn take_tap(&mut self) -> Result<(), BoxError> {
        if !self.facing {
            return Ok(());
        }
        let mut frames = self.sent_on.take(clock::now());
        self.allow_offloads();
        self.taps
            .read(FRAMES_PER_TURN, INPUT_BYTES_PER_TURN, &mut frames);
        if frames.is_empty() {
            Ok(())
        } else {
            self.inputs += frames.len() as u64;
            self.apply(Event::Frames(frames))
        }
    }

    /// Each TAP leaves to the guest what the guest's driver takes. Frames that wait in it are as before: a guest that has just
    /// booted drops those that are too long for it, as a network card does.
    fn allow_offloads(&mut self) {
        let vm = self.vm.as_ref();
        self.taps.allow(|nic| vm.map_or(0, |vm| vm.offloads(nic)));
    }

    /// This leader hands over: what clients have sent here goes to the next one.
    pub(super) fn begin_to_send_on(&mut self, frames: Vec<Frame>) {
        self.sends_on_until = clock::now() + SEND_ON_FOR;
        // They go on as datagrams, for which a long segment is too long.
        self.taps.allow_nothing();
        if let Some(reporter) = &self.reporter {
            frames.into_iter().for_each(|frame| reporter.send_on(frame));
        }
    }

    /// Clients do not know yet that the guest is elsewhere, and have sent more.
    pub(super) fn send_on(&mut self) {
        let mut frames = Vec::new();
        self.taps
            .read(FRAMES_PER_TURN, INPUT_BYTES_PER_TURN, &mut frames);
        if let Some(reporter) = &self.reporter {
            let frames = frames.into_iter().filter(is_for_one);
            frames.for_each(|frame| reporter.send_on(frame));
        }
    }
}
