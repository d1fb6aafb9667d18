//! The payload of a log entry of this server: the application's bytes, perhaps with their session, or a
//! report for the output check.

use crate::outputs::Piece;
use plover_types::{ReplicaId, wire};
use serde::{Deserialize, Serialize};

/// The most bytes that an envelope adds to an entry: its kind, the session, the number, the length.
pub(crate) const ENVELOPE_BYTES_MAX: usize = 26;

/// The payload of a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Envelope<'a> {
    /// An entry without a session.
    Plain(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// An entry of a session, applied once.
    Session(SessionRequest, #[serde(with = "serde_bytes")] &'a [u8]),
    /// Hashes of what a replica has sent.
    Outputs(ReplicaId, Vec<Piece>),
}

/// Names a request of a session, so that repeating it is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SessionRequest {
    /// Random; drawn by the session's owner.
    pub session: u64,
    /// A session has one request under way at a time. The next one has a higher number; the same
    /// number asks for the answer again.
    pub number: u64,
}

impl<'a> Envelope<'a> {
    /// Appends the encoded envelope to `payload`.
    pub fn put(&self, payload: Vec<u8>) -> Vec<u8> {
        wire::encode_part(self, payload)
    }

    /// Decodes an entry. `None` for an entry that this release does not know: every replica runs the
    /// same release, so all of them skip the same entries.
    pub fn take(payload: &'a [u8]) -> Option<Self> {
        match wire::decode_part(payload) {
            Ok((envelope, [])) => Some(envelope),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken() {
        let (session, number) = (u64::MAX, u64::MAX);
        let request = SessionRequest { session, number };
        let bytes = [7; 1 << 14];
        for envelope in [Envelope::Plain(b"x"), Envelope::Session(request, &bytes)] {
            let payload = envelope.put(Vec::new());
            assert_eq!(Envelope::take(&payload), Some(envelope));
            assert!(payload.len() <= bytes.len() + ENVELOPE_BYTES_MAX);
            for cut in 0..20.min(payload.len()) {
                assert_eq!(Envelope::take(&payload[..cut]), None);
            }
        }
        assert_eq!(Envelope::take(&[9, 1]), None);
    }
}
