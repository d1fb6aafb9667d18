//! The first start of a group from a backup with memory: its guest goes on from there and does not boot.
//!
//! ```text
//!   QEMU has started ──▶ its machine is reset ──▶ a thread fills the memory ──▶ the devices' state is loaded
//!       ──▶ a thread removes the backup's memory from this host ──▶ the core learns that the guest has started
//! ```
//!
//! The memory is removed before the guest runs. A later start that found it would go back behind what clients were told,
//! on disks that have gone on.

use super::{Body, BoxError};
use crate::control::{Request, Restored, StopHandle};
use plover_disk::MemoryImage;
use plover_replica::{BootReason, Event};
use plover_types::{DeviceState, MachineWords, PAGE_BYTES};
use plover_vm::VmCommand;
use std::fs::File;
use std::io;
use std::path::Path;

/// A line of progress each so many percent.
const TOLD_EVERY: u8 = 10;

/// The restores of this process.
#[derive(Debug, Default)]
pub(super) struct Restoring {
    /// Counts the guests that were started.
    guest: u64,
    /// The machine of the guest that does not run yet, if it goes on from a backup.
    now: Option<MachineWords>,
}

impl Restoring {
    /// There is no guest any more.
    pub(super) fn forget(&mut self) {
        self.now = None;
    }
}

impl Body {
    /// A guest is about to be started, and the memory of a backup is on this host or not.
    pub(super) fn plan_restore(&mut self, reason: BootReason, exists: bool) {
        let path = self.config.paths.restored_memory();
        if exists && reason == BootReason::Copy {
            // The group has its guest from another host. This memory would be found by a boot after a loss, beside newer disks.
            let remove = move || {
                if let Err(why) = forget(&path) {
                    tracing::error!(event = "restore_not_forgotten", "{why}: remove it by hand");
                }
            };
            let _ = std::thread::Builder::new()
                .name("restore".into())
                .spawn(remove);
        }
        let restores = exists && reason == BootReason::Boot;
        self.restoring.guest += 1;
        self.restoring.now = restores.then(MachineWords::default);
    }

    /// QEMU has made this machine.
    pub(super) fn guest_started(&mut self, words: MachineWords) -> Option<Event> {
        let Some(now) = &mut self.restoring.now else {
            return Some(Event::GuestStarted(words));
        };
        *now = words;
        tracing::info!(
            event = "restore_begun",
            "the guest does not boot: it goes on from the memory of a backup, {}",
            self.config.paths.restored_memory().display()
        );
        // First, since a reset writes into the memory.
        self.order(VmCommand::Reset);
        None
    }

    /// The machine is reset.
    pub(super) fn guest_reset(&mut self) -> Option<Event> {
        let (Some(words), Some(vm)) = (&self.restoring.now, &self.vm) else {
            return Some(Event::GuestResetDone);
        };
        let path = self.config.paths.restored_memory();
        let bytes = u64::from(self.layout.ram_pages()) * PAGE_BYTES as u64;
        let machine = words.needed.clone();
        match vm.memory() {
            Ok(ram) => self.on_a_thread(move || fill(&path, &ram, bytes, &machine)),
            Err(error) => return Some(self.restore_failed(&error.to_string())),
        }
        None
    }

    /// The thread has done its step.
    pub(super) fn go_on_restoring(
        &mut self,
        guest: u64,
        step: Result<Restored, String>,
    ) -> Result<(), BoxError> {
        if guest != self.restoring.guest || self.restoring.now.is_none() {
            return Ok(());
        }
        match step {
            Ok(Restored::Memory(devices)) => {
                // Of another host's clock: the guest's goes on from there.
                self.order(VmCommand::LoadState(DeviceState::from(devices)));
                Ok(())
            }
            Ok(Restored::Forgotten) => {
                let words = self.restoring.now.take().unwrap_or_default();
                tracing::info!(
                    event = "restore_ended",
                    "the guest's memory is restored: it goes on"
                );
                self.apply(Event::GuestStarted(words))
            }
            Err(why) => {
                let failed = self.restore_failed(&why);
                self.apply(failed)
            }
        }
    }

    /// The state of devices is loaded.
    pub(super) fn state_loaded(&mut self) -> Option<Event> {
        if self.restoring.now.is_none() {
            return Some(Event::StateLoaded);
        }
        let path = self.config.paths.restored_memory();
        self.on_a_thread(move || forget(&path));
        None
    }

    fn restore_failed(&mut self, why: &str) -> Event {
        let path = self.config.paths.restored_memory();
        self.guest_is_gone(format!(
            "the guest cannot go on from the memory of a backup: {why}. Mend that, or remove {} to boot it from its disks; \
             then run `plover bootstrap`",
            path.display()
        ))
    }

    /// Whether the guest that does not run yet is restored; and if so, `error` with what to do.
    pub(super) fn blame_restore(&self, error: String) -> String {
        let path = self.config.paths.restored_memory();
        match self.restoring.now {
            Some(_) => format!(
                "{error}. The guest was to go on from the memory of a backup: mend that, or remove {} to boot it from its \
                 disks; then run `plover bootstrap`",
                path.display()
            ),
            None => error,
        }
    }

    /// Begins a step of this guest's restore. Its outcome comes as a request.
    fn on_a_thread(&mut self, step: impl FnOnce() -> Result<Restored, String> + Send + 'static) {
        let (guest, loop_): (u64, StopHandle) = (self.restoring.guest, self.control.handle());
        let begun = std::thread::Builder::new()
            .name("restore".into())
            .spawn(move || {
                loop_.send(Request::Restored {
                    guest,
                    step: step(),
                });
            });
        if let Err(error) = begun {
            let failed = self.restore_failed(&error.to_string());
            self.events.push_back(failed);
        }
    }
}

/// Fills a memory of so many bytes, whose machine is this one.
fn fill(path: &Path, ram: &File, bytes: u64, machine: &str) -> Result<Restored, String> {
    let image = MemoryImage::open(path, bytes).map_err(|error| error.to_string())?;
    if image.state.machine != machine {
        return Err(format!(
            "it is of another machine ({}), and this host makes {machine}: use the QEMU and the guest's machine that it is \
             of",
            image.state.machine
        ));
    }
    let tell = |percent: u8| {
        if percent % TOLD_EVERY == 0 {
            let mib = bytes >> 20;
            tracing::info!(
                event = "restoring",
                percent,
                "the guest's memory: restored {percent}% of {mib} MiB"
            );
        }
    };
    image.fill(ram, tell).map_err(|error| error.to_string())?;
    Ok(Restored::Memory(image.state.devices))
}

/// Removes the memory of a backup, durably.
fn forget(path: &Path) -> Result<Restored, String> {
    let removed = || -> io::Result<()> {
        std::fs::remove_file(path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    let cannot = |error| format!("cannot remove {}: {error}", path.display());
    removed().map_err(cannot).map(|()| Restored::Forgotten)
}
