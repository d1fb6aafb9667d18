//! The start of the guest: its disks are attached, then QEMU is started, each by a thread that the loop does not wait for.

use super::{Body, BoxError};
use crate::clock;
use crate::host;
use crate::starter::{Outcome, Starter};
use plover_disk::{Attachment, Disks, Purpose};
use plover_replica::{BootReason, Event};
use plover_types::Micros;
use plover_vm::{QemuConfig, QemuVm, VmError};

/// A guest whose disks are not attached by then is lost: another host may have some that answer.
const DISKS_WITHIN: Micros = Micros::from_ms(5_000);

/// So is one whose QEMU is not started by then. Its program and its firmware are files, too.
const QEMU_WITHIN: Micros = Micros::from_ms(10_000);

/// The thread that starts QEMU, by a configuration, with disks and on these CPUs.
pub(super) type GuestStarter = Starter<GuestOrder, Result<QemuVm, VmError>>;

/// A guest that is to be started.
pub(super) struct GuestOrder {
    qemu: QemuConfig,
    disks: Option<Attachment>,
    cpus: Option<Vec<usize>>,
}

/// Starts the thread.
pub(super) fn starter() -> std::io::Result<GuestStarter> {
    Starter::new(|order: GuestOrder| {
        // QEMU inherits both of the thread that starts it.
        let _ = rustix::process::setpriority_process(None, 0);
        if let Some(cpus) = order.cpus {
            host::keep_thread_on(None, &cpus);
        }
        QemuVm::spawn(order.qemu, order.disks)
    })
}

/// A guest that is about to start.
#[derive(Clone, Copy)]
pub(super) struct Starting {
    /// It is waited for until then.
    pub(super) until: Micros,
    waits_for: WaitsFor,
}

/// The part of a start that is waited for.
#[derive(Clone, Copy)]
enum WaitsFor {
    /// The disks; and why it starts.
    Disks(BootReason),
    Qemu,
}

impl Body {
    pub(super) fn start_guest(&mut self, reason: BootReason) {
        self.leave_guest();
        self.drop_work();
        let Some(disks) = &mut self.disks else {
            // Without disks there is no backup that it could go on from.
            self.plan_restore(reason, false);
            return self.start_qemu(None);
        };
        let purpose = match reason {
            BootReason::Copy => Purpose::Copy,
            BootReason::Boot => Purpose::Boot,
        };
        match disks.begin_attach(purpose, &self.config.paths.restored_memory()) {
            Ok(()) => {
                self.starting = Some(Starting {
                    until: clock::now() + DISKS_WITHIN,
                    waits_for: WaitsFor::Disks(reason),
                });
            }
            Err(error) => {
                let failed = self.not_started(&error.to_string());
                self.events.push_back(failed);
            }
        }
    }

    /// The guest that is to start has its disks, or cannot have them.
    pub(super) fn disks_attached(&mut self) -> Option<Event> {
        let attached = self.disks.as_mut()?.take_attachment()?;
        let WaitsFor::Disks(reason) = self.starting?.waits_for else {
            return None;
        };
        self.starting = None;
        match attached {
            Ok(disks) => {
                self.plan_restore(reason, disks.found());
                self.start_qemu(Some(disks));
                None
            }
            Err(error) => Some(self.not_started(&error.to_string())),
        }
    }

    /// Waits no longer for disks that hang, or for a QEMU whose files do.
    pub(super) fn mind_start(&mut self) -> Result<(), BoxError> {
        let is_due = |starting: &Starting| clock::now() >= starting.until;
        if !self.starting.as_ref().is_some_and(is_due) {
            return Ok(());
        }
        // They may have come while this process stood still.
        let failed = self.disks_attached();
        if let Some(failed) = failed.or_else(|| self.qemu_started()) {
            return self.apply(failed);
        }
        let Some(starting) = self.starting.filter(is_due) else {
            return Ok(());
        };
        let why = match (starting.waits_for, &mut self.disks) {
            (WaitsFor::Disks(_), Some(disks)) => disks.fail_attaching(),
            (WaitsFor::Disks(_) | WaitsFor::Qemu, _) => format!(
                "QEMU has not started within {} s: the disk with its program may hang",
                QEMU_WITHIN.0 / 1_000_000
            ),
        };
        let failed = self.not_started(&why);
        self.apply(failed)
    }

    fn start_qemu(&mut self, disks: Option<Attachment>) {
        let qemu = QemuConfig {
            flash: self.variables.newest(),
            ..self.qemu.clone()
        };
        let cpus = self.cpus().map(|cpus| cpus.guest.clone());
        self.starter.start(GuestOrder { qemu, disks, cpus });
        self.starting = Some(Starting {
            until: clock::now() + QEMU_WITHIN,
            waits_for: WaitsFor::Qemu,
        });
    }

    /// The guest's QEMU runs, or cannot be started.
    pub(super) fn qemu_started(&mut self) -> Option<Event> {
        while let Some(outcome) = self.starter.take() {
            match outcome {
                Outcome::Wanted(started) => {
                    self.starting = None;
                    match started {
                        Ok(vm) => {
                            self.vm = Some(vm);
                            // It may have said something already.
                            self.ready.vm = true;
                        }
                        Err(error) => return Some(self.not_started(&error.to_string())),
                    }
                }
                Outcome::Late(Ok(vm)) => vm.leave(),
                Outcome::Late(Err(_)) => {}
            }
        }
        None
    }

    fn not_started(&mut self, why: &str) -> Event {
        self.guest_is_gone(format!("cannot start the guest: {why}"))
    }

    /// The guest is not to start any more.
    pub(super) fn give_up_start(&mut self) {
        match self.starting.take().map(|starting| starting.waits_for) {
            Some(WaitsFor::Disks(_)) => self.disks.iter_mut().for_each(Disks::give_up_attaching),
            Some(WaitsFor::Qemu) => self.starter.give_up(),
            None => {}
        }
    }
}
