//! Operators' inputs to the guest, and their answers.

use plover_types::{ReplicaId, wire};
use serde::{Deserialize, Serialize};

/// The wire version that has [`OperatorInput::Agent`].
const AGENT_VERSION: u8 = 4;

/// An operator's input to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorInput {
    /// Types on the serial console.
    Console(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Presses the power button.
    PowerButton,
    /// Switches a guest on that is off.
    Start,
    /// Presses the power button, and lets the guest boot again when it has powered off.
    Reboot,
    /// Resets the machine of a guest that is on.
    Reset,
    /// Lets the guest stand still, on both sides and whichever leads, until `Unpause`.
    Pause,
    /// Lets a guest go on that stands still since a `Pause`.
    Unpause,
    /// Sends these bytes to the agent in the guest, since wire version 4. Unlike typed bytes, those that the guest has not read
    /// when it is paused are lost: their sender sends them again.
    Agent(#[serde(with = "serde_bytes")] Vec<u8>),
}

impl OperatorInput {
    /// The oldest wire version that has it.
    pub(crate) fn since(&self) -> u8 {
        match self {
            Self::Agent(_) => AGENT_VERSION,
            Self::Console(_)
            | Self::PowerButton
            | Self::Start
            | Self::Reboot
            | Self::Reset
            | Self::Pause
            | Self::Unpause => wire::OLDEST_VERSION,
        }
    }
}

/// Names an operator's input; the node counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Why an operator's input was not taken, or may not have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It was not carried out. Ask the replica that leads.
    #[error(
        "replica {} does not lead, so this was not carried out: ask the one that does, see `plover status`", .0.0
    )]
    NotLeading(ReplicaId),
    /// It was not carried out. Try again.
    #[error(
        "replica {} leads and does not serve yet, so this was not carried out: try again, and see `plover status`", .0.0
    )]
    NotServing(ReplicaId),
    /// It was not carried out. Try again.
    #[error(
        "the log of replica {} has no room, so this was not carried out: try again, and see in `plover status` whether \
         the guest is protected", .0.0
    )]
    NoRoom(ReplicaId),
    /// It was not carried out. Try again, and give less at a time.
    #[error(
        "{} inputs wait at replica {} already, so this was not carried out: try again, more slowly", .1, .0.0
    )]
    TooMany(ReplicaId, usize),
    /// It was not carried out. Try again when all replicas are of one release.
    #[error(
        "the group has wire version {has}, and this takes {since}, so this was not carried out: try again when all replicas \
         run the newer release (`group.version_max` may hold it back)"
    )]
    TooOld {
        /// The version of the group.
        has: u8,
        /// The version that has the input.
        since: u8,
    },
    /// It may have been carried out.
    #[error(
        "replica {} has lost the lead before the other replicas had this: it may have been carried out or not; look at \
         the guest before you try again", .0.0
    )]
    Unsure(ReplicaId),
}
