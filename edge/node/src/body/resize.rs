//! A disk grows while the guest runs (docs/decisions/0053).
//!
//! ```text
//!   operator          leader                                    secondary
//!   DiskGrow ───────▶ its image grows, durably
//!                     the next syncvm's state says so ────────▶ its image and its QEMU get the size,
//!   (looks at the status until both have it)                    then it loads the state
//!   DiskTell ───────▶ its QEMU gets the size, and tells the guest
//! ```
//!
//! A guest hears of room only when every replica that may go on with it has that room, durably. If the leader dies before,
//! the others have the old size or the new one, and the guest still the old one. The images' sizes are a part of the
//! guest's state: a replica that loads a state gives its images the sizes that stand there, be they larger or smaller.
//!
//! Each order may be given again: it finds what was done, and goes on from there.

use super::inputs::Asker;
use super::{Body, BoxError};
use plover_disk::Disks;
use plover_replica::{Event, Role};
use plover_types::DeviceState;
use plover_vm::{QemuVm, VmCommand};
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Answers that may wait for a disk at the same time, each on a thread, before this replica takes no more such questions.
const ANSWERS_MAX: usize = 16;

/// Why a disk gets another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The leader's image is to grow.
    Grow,
    /// The leader's guest is to hear of it.
    Tell,
    /// A state is to be loaded that has this size.
    Load,
}

/// A disk that is being given a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    why: Why,
    disk: usize,
    bytes: u64,
    /// The number of the guest that it is for.
    guest: u64,
}

/// The result of the disks' thread.
type Made = (Step, Result<OwnedFd, String>);

/// Disks that are being given other sizes.
#[derive(Debug)]
pub(super) struct Resizing {
    guest: u64,
    /// The one whose turn it is.
    now: Option<Step>,
    /// Those behind it, before `load`.
    next: VecDeque<(usize, u64)>,
    load: Option<DeviceState>,
    made: (Sender<Made>, Receiver<Made>),
    /// Why the guest could not be told, the last time.
    refused: Option<String>,
}

impl Default for Resizing {
    fn default() -> Self {
        Self {
            guest: 0,
            now: None,
            next: VecDeque::new(),
            load: None,
            made: channel(),
            refused: None,
        }
    }
}

impl Resizing {
    /// The guest is gone. What is still done for it has no effect.
    pub(super) fn forget(&mut self) {
        self.guest += 1;
        self.now = None;
        self.next.clear();
        self.load = None;
    }
}

impl Body {
    /// Tells whether a disk could have so many bytes on this host.
    pub(super) fn tell_room(&mut self, disk: usize, bytes: u64, asker: Asker) {
        let hangs = (Arc::strong_count(&self.answering) > ANSWERS_MAX).then(|| {
            "too many requests wait for a disk of this host: look whether one hangs, and try again then".into()
        });
        let refused = hangs.or_else(|| self.why_not_resize(disk, bytes));
        let disks = self.disks.as_ref().filter(|_| refused.is_none());
        let room = disks.map(|disks| disks.room_for(disk, bytes));
        self.answer_later(asker, move || {
            match refused.or_else(|| room.and_then(|room| room())) {
                Some(why) => json!({"error": why}),
                None => json!({"ok": true}),
            }
        });
    }

    fn why_not_resize(&self, disk: usize, bytes: u64) -> Option<String> {
        match &self.disks {
            Some(disks) => disks.why_not_resize(disk, bytes),
            None => Some("the guest has no disks".into()),
        }
    }

    /// The leader's image of a disk is to have so many bytes.
    pub(super) fn grow_disk(&mut self, disk: usize, bytes: u64) -> Value {
        let why = self.why_not_lead_a_resize();
        if let Some(why) = why.or_else(|| self.why_not_resize(disk, bytes)) {
            return json!({"error": why});
        }
        self.begin_to_resize(Why::Grow, disk, bytes);
        json!({"ok": true, "leader": self.config.group.me})
    }

    /// The leader's guest is to be told that a disk has so many bytes.
    pub(super) fn tell_of_disk(&mut self, disk: usize, bytes: u64) -> Value {
        let why = self.why_not_lead_a_resize();
        if let Some(why) = why.or_else(|| self.why_not_resize(disk, bytes)) {
            return json!({"error": why});
        }
        if self.sizes().get(disk) != Some(&bytes) {
            return json!({"error": format!(
                "the image of disk {disk} has not this size at the replica that leads: it was lost with the one that led \
                 before; give the order again"
            )});
        }
        self.begin_to_resize(Why::Tell, disk, bytes);
        json!({"ok": true, "leader": self.config.group.me})
    }

    fn why_not_lead_a_resize(&self) -> Option<String> {
        if self.role != Role::Leader {
            return self.not_leading("does not lead").into();
        }
        if self.resizing.now.is_some() {
            return Some("a disk is being given another size: try again in a moment".into());
        }
        let status = self.replica.status();
        if !status.protected && self.replica.members().len() > 1 {
            return Some(
                "the guest is not protected: a disk grows when two replicas hold it; see `plover status`".into(),
            );
        }
        None
    }

    fn begin_to_resize(&mut self, why: Why, disk: usize, bytes: u64) {
        let guest = self.resizing.guest;
        let step = Step {
            why,
            disk,
            bytes,
            guest,
        };
        self.resizing.refused = None;
        let made = self.resizing.made.0.clone();
        if let Some(disks) = self.vm.as_ref().and_then(QemuVm::disks) {
            self.resizing.now = Some(step);
            disks.resize(disk, bytes, move |connection| {
                // Fails only when the receiver is gone.
                let _ = made.send((step, connection));
            });
        }
    }

    /// The disks' thread may have given a disk its size.
    pub(super) fn take_resized(&mut self) -> Result<(), BoxError> {
        let made: Vec<Made> = self.resizing.made.1.try_iter().collect();
        for (step, connection) in made {
            if self.resizing.now != Some(step) {
                // The guest that it was for is gone.
                continue;
            }
            let (disk, bytes) = (step.disk, step.bytes);
            match (connection, step.why) {
                (Err(why), Why::Load) => {
                    let event =
                        self.guest_is_gone(format!("a disk was to get another size: {why}"));
                    self.apply(event)?;
                }
                (Err(why), _) => {
                    tracing::warn!(
                        event = "disk_not_grown",
                        disk,
                        "disk {disk} has not grown: {why}"
                    );
                    self.resizing.refused = Some(why);
                    self.step_ended();
                }
                (Ok(_), Why::Grow) => {
                    tracing::info!(
                        event = "disk_grew",
                        disk,
                        bytes,
                        "the image of disk {disk} has {bytes} bytes; the guest is not told yet"
                    );
                    self.step_ended();
                    // The other copy is to have it soon.
                    self.apply(Event::SyncDue)?;
                }
                (Ok(connection), Why::Tell | Why::Load) => {
                    if let Some(vm) = &mut self.vm {
                        vm.resize_disk(disk, bytes, connection);
                        self.ready.vm = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// QEMU has given a disk its size, or refused.
    pub(super) fn disk_resized(
        &mut self,
        disk: usize,
        result: Result<(), String>,
    ) -> Option<Event> {
        let step = self.resizing.now?;
        let bytes = step.bytes;
        let event = match (result, step.why) {
            // Its disk would be smaller than the guest believes.
            (Err(error), Why::Load) => {
                let why = format!("QEMU did not give disk {disk} another size: {error}");
                return Some(self.guest_is_gone(why));
            }
            (Ok(()), Why::Load) => None,
            (Ok(()), _) => {
                tracing::info!(
                    event = "disk_told",
                    disk,
                    bytes,
                    "the guest is told that disk {disk} has {bytes} bytes"
                );
                // The other copy of the guest is to know it soon.
                Some(Event::SyncDue)
            }
            (Err(error), _) => {
                tracing::warn!(
                    event = "disk_untold",
                    disk,
                    "QEMU did not tell the guest that disk {disk} has grown: {error}"
                );
                self.resizing.refused = Some(error);
                None
            }
        };
        self.step_ended();
        event
    }

    /// The next step begins, if a state waits to be loaded.
    fn step_ended(&mut self) {
        self.resizing.now = None;
        if self.resizing.load.is_some() {
            self.resize_next();
        }
    }

    /// Gives the disks the sizes that stand in a state before it is loaded. Returns the state if they have them.
    pub(super) fn resize_before(&mut self, state: DeviceState) -> Option<DeviceState> {
        let wanted = QemuVm::sizes_in(&state.bytes);
        let Some((vm, disks)) = self.vm.as_ref().and_then(|vm| Some((vm, vm.disks()?))) else {
            return Some(state);
        };
        let (told, sizes) = (vm.told_sizes(), disks.sizes());
        if wanted.len() != sizes.len() || (wanted == sizes && wanted == told) {
            return Some(state);
        }
        let differ = |disk: &usize| wanted[*disk] != sizes[*disk] || wanted[*disk] != told[*disk];
        let differ = (0..wanted.len()).filter(differ);
        self.resizing.next = differ.map(|disk| (disk, wanted[disk])).collect();
        self.resizing.load = Some(state);
        if self.resizing.now.is_none() {
            self.resize_next();
        }
        None
    }

    fn resize_next(&mut self) {
        if let Some((disk, bytes)) = self.resizing.next.pop_front() {
            tracing::info!(
                event = "disk_resized",
                disk,
                bytes,
                "disk {disk} gets {bytes} bytes, as the leader's has"
            );
            return self.begin_to_resize(Why::Load, disk, bytes);
        }
        if let (Some(state), Some(vm)) = (self.resizing.load.take(), &mut self.vm) {
            vm.command(VmCommand::LoadState(state));
            self.ready.vm = true;
        }
    }

    fn sizes(&self) -> Vec<u64> {
        self.disks.as_ref().map(Disks::sizes).unwrap_or_default()
    }

    /// The disks' sizes for a status: of the images, and as QEMU was told them (0 for a disk that may not grow).
    pub(super) fn disk_sizes(&self) -> Value {
        let told = self.vm.as_ref().map(QemuVm::told_sizes).unwrap_or_default();
        let sizes = self.sizes();
        let disks = sizes.iter().enumerate();
        let list: Vec<Value> = disks
            .map(|(disk, bytes)| json!({"bytes": bytes, "told": told.get(disk)}))
            .collect();
        json!({
            "list": list,
            "resizing": self.resizing.now.is_some(),
            "refused": self.resizing.refused,
        })
    }
}
