//! The operations of the log (PLOVER table 1). `paxos_second` is the in-sync set, which the
//! consensus core knows itself.

use crate::api::OperatorInput;
use plover_types::{Frame, SyncNo, wire};
use serde::{Deserialize, Serialize};

/// The wire version that has [`LogOp::SyncvmThenRest`].
pub(crate) const REST_VERSION: u8 = 3;

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
    /// As [`Self::Syncvm`]; in the slot that begins here the secondary's guest rests.
    SyncvmThenRest(SyncNo),
}

impl LogOp {
    /// The oldest wire version that has this operation.
    fn since(&self) -> u8 {
        match self {
            Self::SyncvmThenRest(_) => REST_VERSION,
            Self::Operator(input) => input.since(),
            Self::Inputs(_) | Self::Syncvm(_) | Self::Paced(..) => wire::OLDEST_VERSION,
        }
    }

    /// The payload, for the log of a group that has this version.
    ///
    /// # Panics
    /// If a replica of the group may not know the operation.
    pub(crate) fn encode(&self, version: u8) -> Vec<u8> {
        let since = self.since();
        assert!(since <= version, "{self:?} in a group of version {version}");
        wire::encode_since(since, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::forms::{assert_every_kind, assert_form};

    #[test]
    fn the_form_of_operations_is_that_of_their_version() {
        let typed = OperatorInput::Console(vec![1, 2]);
        assert_every_kind(&[
            typed.clone(),
            OperatorInput::PowerButton,
            OperatorInput::Start,
            OperatorInput::Reboot,
            OperatorInput::Reset,
            OperatorInput::Pause,
            OperatorInput::Unpause,
            OperatorInput::Agent(vec![6]),
        ]);
        let frames = vec![Frame(vec![3, 4]), Frame(vec![5])];
        let operations = [
            LogOp::Inputs(frames.clone()),
            LogOp::Operator(typed),
            LogOp::Operator(OperatorInput::PowerButton),
            LogOp::Operator(OperatorInput::Start),
            LogOp::Operator(OperatorInput::Reboot),
            LogOp::Operator(OperatorInput::Reset),
            LogOp::Operator(OperatorInput::Pause),
            LogOp::Operator(OperatorInput::Unpause),
            LogOp::Syncvm(SyncNo(1001)),
            LogOp::Paced(1002, frames),
            LogOp::SyncvmThenRest(SyncNo(1003)),
            LogOp::Operator(OperatorInput::Agent(vec![6])),
        ];
        assert_every_kind(&operations);
        let encode = |it: &LogOp| wire::encode_part(it, Vec::new());
        let of = |version| {
            let known = operations.iter().filter(move |it| it.since() <= version);
            known.map(encode).collect::<Vec<_>>()
        };
        assert_form("log operations of version 2", &of(2));
        assert_form("log operations of version 3", &of(3));
        assert_form("log operations", &of(wire::WIRE_VERSION));
    }
}
