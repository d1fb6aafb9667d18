//! Orders to a guest, what happens to it, and what can fail.

use crate::AtEnd;
use plover_types::DeviceState;

/// An order that completes later, with the [`VmEvent`] named beside it. Orders are carried out one
/// after the other, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmCommand {
    /// Stop the vCPUs → [`VmEvent::Paused`].
    Pause,
    /// Let the vCPUs run → [`VmEvent::Resumed`]. Those of a guest that is off or stands still stand on.
    Resume,
    /// Put the devices into their power-on state while paused, where this machine type needs it
    /// before a load ([`crate::Machine::needs_reset`]) → [`VmEvent::ResetDone`].
    Reset,
    /// Serialise device and CPU state while paused, and what operators have ordered of its power →
    /// [`VmEvent::StateSaved`].
    SaveState,
    /// Load device and CPU state while paused → [`VmEvent::StateLoaded`]. The guest's clocks then go on as
    /// if it had run since it stopped (by this host's `CLOCK_MONOTONIC`).
    LoadState(DeviceState),
    /// Make [`crate::QemuVm::scan_dirty`] find what was written until now → [`VmEvent::Collected`]. A pause does so, too.
    Collect,
    /// Say that the main loop runs → [`VmEvent::Probed`]; answered beside the other orders.
    Probe,
    /// Press the power button (ACPI) → nothing.
    PowerButton,
    /// Let a guest boot that is off ([`VmEvent::GuestEnded`]) → nothing. One that is paused, too, boots when it
    /// is resumed.
    Start,
    /// Press the power button, and let the guest boot again once it has powered off → nothing.
    Reboot,
    /// Reset the machine of a guest that is on; it boots again → nothing.
    HardReset,
    /// Let the guest stand still until [`VmCommand::GoOn`], over pauses and loads of its state → nothing.
    Stand,
    /// Let a guest go on that stands still → nothing. Its clocks go on as if it had run meanwhile.
    GoOn,
}

/// An event of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// QEMU is up, and the guest is paused before its first instruction.
    Started,
    /// The vCPUs stand still.
    Paused,
    /// The vCPUs run.
    Resumed,
    /// The devices are reset.
    ResetDone,
    /// The device and CPU state, opaque.
    StateSaved(Vec<u8>),
    /// The device and CPU state is loaded.
    StateLoaded,
    /// A disk has the size of [`crate::QemuVm::resize_disk`], and the guest was told; or QEMU's error.
    DiskResized {
        /// Its number in the configuration.
        disk: usize,
        /// Whether it was done.
        result: Result<(), String>,
    },
    /// The pages that were written so far can be scanned.
    Collected,
    /// The main loop runs.
    Probed,
    /// A command failed; the guest's state is unknown. Later orders are dropped.
    Failed {
        /// The order.
        command: String,
        /// QEMU's error.
        error: String,
    },
    /// The QEMU process is gone; with its exit status and the end of its error output.
    Died(String),
    /// The guest has rebooted; it goes on with its firmware or kernel.
    GuestReset,
    /// The guest has ended by itself.
    GuestEnded {
        /// How.
        how: GuestEnd,
        /// What becomes of it.
        then: AtEnd,
    },
}

/// How a guest has ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// It has powered off.
    PowerOff,
    /// It has rebooted, where [`crate::Ends::on_reboot`] does not let it.
    Reboot,
    /// Its kernel has crashed, and has told the machine (pvpanic).
    Crash,
}

/// Why the guest could not be driven.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// A system call on the guest's memory or process failed.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation and its object.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// This machine or QEMU lacks something that Plover needs; the text says what to do.
    #[error("{0}")]
    Unsupported(String),
    /// A trial did not succeed, as on a host that is busy or short of memory: another one may.
    #[error("{0}")]
    Failed(String),
    /// QEMU cannot be confined, and is not started.
    #[error(transparent)]
    Confine(#[from] plover_confine::ConfineError),
}

impl VmError {
    /// Whether another try finds the same, until somebody provides what is missing.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Unsupported(_) | Self::Confine(_) => true,
            Self::Io { .. } | Self::Failed(_) => false,
        }
    }

    /// For `map_err` on a system call; `what` names the failed operation.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io {
            what: what.to_owned(),
            source: error.into(),
        }
    }
}
