//! The operations of the log (PLOVER table 1). `paxos_second` is the in-sync set, which the
//! consensus core knows itself.

use crate::api::OperatorInput;
use plover_types::{Frame, SyncNo};
use serde::{Deserialize, Serialize};

/// The payload of an application entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogOp {
    /// `paxos_input`: a batch of frames for the guest.
    Inputs(Vec<Frame>),
    /// An operator's input to the guest.
    Operator(OperatorInput),
    /// `paxos_syncvm`: the slot ends here, on both sides.
    Syncvm(SyncNo),
    /// `paxos_input` that the leader's guest got when it had sent so many bytes since the last
    /// syncvm: see [`crate::pace`].
    Paced(u64, Vec<Frame>),
}
