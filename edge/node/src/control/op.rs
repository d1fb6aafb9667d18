//! The requests that the control socket takes.

use super::{AGENT_WITHIN, ANSWER_WITHIN};
use crate::guest_agent::GuestOrder;
use plover_replica::newest::DiskCopy;
use plover_replica::{MemberOrder, OperatorInput};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a request's answer is waited for.
#[derive(Debug)]
pub(crate) struct Wait {
    pub within: Duration,
    /// The error if there is none by then: who has not answered, and what to do.
    pub late: String,
}

/// The requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Op {
    /// This replica.
    Status,
    /// All replicas of the group, as far as they answer.
    Group,
    /// The log of a replica, by default this one's: its last lines, or those after the first `after` of its `process`.
    Logs {
        #[serde(default)]
        of: Option<u8>,
        #[serde(default)]
        last: Option<u64>,
        #[serde(default)]
        process: u32,
        #[serde(default)]
        after: u64,
    },
    /// Whether a disk could have so many bytes on a replica's host, by default this one's.
    DiskRoom {
        #[serde(default)]
        of: Option<u8>,
        disk: usize,
        bytes: u64,
    },
    /// The leader's image of a disk is to have so many bytes, and with the next syncvm the others'. The guest is not told.
    DiskGrow { disk: usize, bytes: u64 },
    /// The leader's guest is to be told that a disk has so many bytes, as all images have by now.
    DiskTell { disk: usize, bytes: u64 },
    /// The leader is to hand over to the replica with this id, or to the one that is in sync.
    Switchover {
        #[serde(default)]
        to: Option<u8>,
    },
    /// The members of the group are to change.
    Member { order: MemberOrder },
    /// This replica gives up every role that matters, and takes none until it is told otherwise, also after a
    /// restart unless it is `until_restart`.
    Drain {
        #[serde(default)]
        until_restart: bool,
    },
    /// It takes part again. With `until_restart` only a drain of that kind is taken back.
    Undrain {
        #[serde(default)]
        until_restart: bool,
    },
    /// The other one of two replicas, `id`, is known to be off, as was seen when the clock of this host, CLOCK_BOOTTIME in µs,
    /// was `seen_at_us`.
    PeerOff { id: u8, seen_at_us: u64 },
    /// Press the guest's power button.
    Power,
    /// Switch the guest on, if it is off.
    Start,
    /// Press the guest's power button, and let it boot again when it has powered off.
    Reboot,
    /// Reset the guest's machine.
    Reset,
    /// Let the guest stand still until `unpause`.
    Pause,
    /// Let it go on.
    Unpause,
    /// The operator's statement that a group which has forgotten its guest may boot a new one. `others`:
    /// the other replicas' copies of the guest's disks by their status, if known.
    Bootstrap {
        #[serde(default)]
        others: Vec<DiskCopy>,
    },
    /// Read the configuration file again, and take what can change while the replica runs; only say so if `dry_run`.
    Reload {
        #[serde(default)]
        dry_run: bool,
    },
    /// Begin to copy the guest's memory for a backup. The copy lasts as long as this connection.
    CopyMemory { mib_per_s: u64 },
    /// Begin a backup of the guest's disks, as of the next sync; and of the copied memory, as of the next sync that leaves
    /// little of it to be copied. It lasts as long as this connection.
    Backup {
        keep_mib: u64,
        mib_per_s: u64,
        #[serde(default)]
        with_memory: bool,
    },
    /// Read a disk of the running backup with this number; with `only_changes`, what was written since the one that its
    /// `since` names.
    BackupDisk {
        backup: u64,
        disk: usize,
        #[serde(default)]
        only_changes: bool,
    },
    /// Read the memory of the running backup with this number, once it is whole.
    BackupMemory { backup: u64 },
    /// End this replica.
    Shutdown,
    /// The word of a replica to the others that it was told to end.
    Stops,
    /// Test hook: SIGKILL the hypervisor and this process when a sync that this replica leads
    /// enters the phase; of a secondary only in `apply`, with the guest's memory written in part.
    CrashInPhase { phase: plover_syncvm::Phase },
    /// Test hook: the same on a leader, at a fault injection point in the release of an output on a
    /// match; `d` is the transfer of a checkpoint.
    CrashInArea { area: plover_replica::Area },
    /// Test hook: SIGSTOP this process and its supervisor before a frame that it is about to release.
    StopInRelease,
    /// Attach to the guest's console.
    Console,
    /// Look at the guest's display.
    Display,
    /// The word of a replica to the leader: a viewer of its host looks at the display. It numbers its viewers.
    Look { viewer: u64 },
    /// The word of a replica to another: bytes between a viewer and the guest, in base64; none at their end. It is answered
    /// when they are passed on.
    Viewed {
        viewer: u64,
        to_guest: bool,
        bytes: String,
    },
    /// Ask the agent in the guest. The answer is what it has returned.
    Guest { order: GuestOrder },
    /// Type this on the guest's console. The answer says whether the guest has it for sure.
    Type { text: String },
}

impl Op {
    /// Whether only the leader can carry it out.
    pub fn is_for_leader(&self) -> bool {
        matches!(
            self,
            Self::Console
                | Self::Display
                | Self::Look { .. }
                | Self::Switchover { .. }
                | Self::Member { .. }
                | Self::DiskGrow { .. }
                | Self::DiskTell { .. }
                | Self::Guest { .. }
        ) || self.is_an_input()
    }

    /// Whether another replica may ask for it.
    pub fn may_be_sent_on(&self) -> bool {
        matches!(
            self,
            Self::Status
                | Self::Logs { .. }
                | Self::Switchover { .. }
                | Self::Member { .. }
                | Self::DiskRoom { .. }
                | Self::DiskGrow { .. }
                | Self::DiskTell { .. }
                | Self::Guest { .. }
                | Self::Look { .. }
                | Self::Viewed { .. }
        ) || self.is_an_input()
    }

    /// The replica that it is about, where it names one.
    pub fn of(&self) -> Option<u8> {
        match self {
            Self::Logs { of, .. } | Self::DiskRoom { of, .. } => *of,
            _ => None,
        }
    }

    /// How long its answer is waited for.
    pub fn wait(&self) -> Wait {
        let within = match self {
            Self::Guest { .. } => AGENT_WITHIN,
            _ => ANSWER_WITHIN,
        };
        Wait {
            within,
            late: self.late(within.as_secs()),
        }
    }

    fn late(&self, within: u64) -> String {
        match self {
            Self::Logs { of: Some(of), .. } | Self::DiskRoom { of: Some(of), .. } => format!(
                "replica {of} has not answered within {within} s, and its link is up: its process is stopped or hangs, or its \
                 host is busy; look there"
            ),
            Self::Drain { .. } | Self::Undrain { .. } => format!(
                "the replica of this host has not answered within {within} s: its loop or the disk of paths.state_dir stands \
                 still. If `plover status` shows the change, it holds until the process ends, and longer if the disk answers \
                 before; look at its log, and at this host's disks and CPUs"
            ),
            op if op.is_for_leader() => format!(
                "the replica that leads has not answered within {within} s: the request may have been carried out; see \
                 `plover status`"
            ),
            _ => format!(
                "the replica of this host has not answered within {within} s, since its loop stands still: the request may \
                 yet be carried out; look at its log, and at this host's disks and CPUs"
            ),
        }
    }

    /// Whether it is an input to the guest.
    fn is_an_input(&self) -> bool {
        matches!(
            self,
            Self::Power
                | Self::Start
                | Self::Reboot
                | Self::Reset
                | Self::Pause
                | Self::Unpause
                | Self::Type { .. }
        )
    }

    /// The input to the guest that it orders, or the request back if it is another one.
    pub fn into_input(self) -> Result<OperatorInput, Self> {
        Ok(match self {
            Self::Power => OperatorInput::PowerButton,
            Self::Start => OperatorInput::Start,
            Self::Reboot => OperatorInput::Reboot,
            Self::Reset => OperatorInput::Reset,
            Self::Pause => OperatorInput::Pause,
            Self::Unpause => OperatorInput::Unpause,
            Self::Type { text } => OperatorInput::Console(text.into_bytes()),
            other => return Err(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_is_blamed_on_the_replica_that_owes_it() {
        let logs = |of| Op::Logs {
            of,
            last: None,
            process: 0,
            after: 0,
        };
        assert!(logs(Some(2)).wait().late.starts_with("replica 2 has not"));
        for (op, owes) in [
            (logs(None), "the replica of this host"),
            (
                Op::Drain {
                    until_restart: false,
                },
                "the replica of this host",
            ),
            (Op::Switchover { to: None }, "the replica that leads"),
            (Op::Pause, "the replica that leads"),
        ] {
            assert!(op.wait().late.starts_with(owes), "{}", op.wait().late);
        }
    }
}
