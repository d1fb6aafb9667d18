//! Requests of operators that travel from one replica to another.
//!
//! A control socket is reached on its own host only, and most commands are for the leader. So a replica that does
//! not lead sends them on, over the link that it has with the leader anyway, and the answer comes back the same way.
//!
//! ```text
//!   operator ── control.sock ──▶ replica 2 ── Ask ──────────────▶ leader: carries it out
//!            ◀── the answer ────           ◀─ Answer ───────────
//!   a console:                             ── Attach, Typed ───▶
//!                                          ◀─ Answer, Printed, Closed
//! ```
//!
//! A request is never sent on twice, so two replicas that take each other for the leader do not play ball with it.
//! A request or its answer can be lost with a link: the operator is then told that there was no answer, and that the
//! request may have been carried out all the same. Only requests that are harmless twice, or that say what they do,
//! are sent on.
//!
//! These records go by the bulk lane and begin with a byte of their own, so that the core of a replica never sees
//! them: nothing rests on them.

use plover_types::wire;
use serde::{Deserialize, Serialize};

/// The first byte of such a record.
const MARK: u8 = 0xf2;
/// The second byte of an `Ask`.
const ASK: u8 = 0;
const _: () = assert!(MARK > wire::WIRE_VERSION, "a version is taken for a mark");

/// A message from one replica to another, for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Relayed {
    /// Carry out this request, a line of the control socket's.
    Ask {
        /// Names it among the requests of its sender.
        id: u64,
        /// The request.
        request: String,
    },
    /// The answer to an `Ask` or an `Attach`.
    Answer {
        /// From the question.
        id: u64,
        /// The answer, a line of the control socket's.
        answer: String,
    },
    /// Show the guest's console here.
    Attach {
        /// Names the console among those of its sender.
        id: u64,
    },
    /// Bytes that an operator has typed.
    Typed {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes that the guest has printed.
    Printed {
        /// From the `Attach`.
        id: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The console is closed: by the operator, or because the replica leads no more.
    Closed {
        /// From the `Attach`.
        id: u64,
    },
}

impl Relayed {
    /// The record.
    pub fn to_record(&self) -> Vec<u8> {
        wire::encode_part(self, vec![MARK])
    }

    /// Whether a record asks for something to be carried out here.
    pub fn asks(record: &[u8]) -> bool {
        record.starts_with(&[MARK, ASK])
    }

    /// Decodes a record; `None` if it is no such record, or is malformed.
    pub fn of_record(record: &[u8]) -> Option<Result<Self, wire::WireError>> {
        let (&MARK, body) = record.split_first()? else {
            return None;
        };
        Some(
            wire::decode_part(body).and_then(|(relayed, rest)| match rest.len() {
                0 => Ok(relayed),
                left => Err(wire::WireError::Trailing(left)),
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::forms::{assert_every_kind, assert_form};

    #[test]
    fn the_form_of_relayed_requests_is_that_of_their_version() {
        let all = [
            Relayed::Ask {
                id: 1001,
                request: "ask".into(),
            },
            Relayed::Answer {
                id: 1002,
                answer: "answer".into(),
            },
            Relayed::Attach { id: 1003 },
            Relayed::Typed { bytes: vec![4] },
            Relayed::Printed {
                id: 1005,
                bytes: vec![6],
            },
            Relayed::Closed { id: 1007 },
        ];
        assert_every_kind(&all);
        let bytes = all.clone().map(|one| wire::encode_part(&one, Vec::new()));
        assert_form("relayed requests", &bytes);
        for one in all {
            let record = one.to_record();
            assert_eq!(Relayed::of_record(&record), Some(Ok(one)));
            assert!(matches!(
                Relayed::of_record(&record[..record.len() - 1]),
                Some(Err(_))
            ));
        }
        assert_eq!(Relayed::of_record(&[wire::WIRE_VERSION, 1, 2]), None);
        assert_eq!(Relayed::of_record(&[]), None);
    }
}
