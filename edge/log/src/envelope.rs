//! What a log entry of this server holds: whose it is, then the bytes.
//!
//! ```text
//!   0  bytes                                  an entry without a session
//!   1  session (8)  number (8)  bytes         an entry of a session, applied once
//!   2  replica (1)  pieces                    what a replica has sent, for the output check
//! ```

use crate::outputs::Piece;
use plover_types::{ReplicaId, wire};

/// The most bytes that an envelope adds.
pub(crate) const ENVELOPE_BYTES_MAX: usize = 17;

/// Names a request of a session, so that repeating it is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionRequest {
    /// Which session: a random name that its owner drew.
    pub session: u64,
    /// The request's number. A session has one request under way at a time; the next has a
    /// higher number, the same number asks for the answer again.
    pub number: u64,
}

/// A decoded entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Envelope<'a> {
    Plain(&'a [u8]),
    Session(SessionRequest, &'a [u8]),
    Outputs(ReplicaId, Vec<Piece>),
}

/// Appends an entry of the application to `out`.
pub(crate) fn put(session: Option<SessionRequest>, bytes: &[u8], out: &mut Vec<u8>) {
    match session {
        None => out.push(0),
        Some(SessionRequest { session, number }) => {
            out.push(1);
            out.extend_from_slice(&session.to_le_bytes());
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Appends a report for the output check to `out`.
pub(crate) fn put_outputs(replica: ReplicaId, pieces: &[Piece], out: &mut Vec<u8>) {
    out.extend_from_slice(&[2, replica.0]);
    out.extend_from_slice(&wire::encode(&pieces));
}

/// Takes an entry apart. `None` for what this version does not know: every replica runs the
/// same release, so all of them skip the same entries.
pub(crate) fn take(entry: &[u8]) -> Option<Envelope<'_>> {
    let (kind, rest) = entry.split_first()?;
    match kind {
        0 => Some(Envelope::Plain(rest)),
        1 => {
            let (session, rest) = rest.split_first_chunk()?;
            let (number, bytes) = rest.split_first_chunk()?;
            let request = SessionRequest {
                session: u64::from_le_bytes(*session),
                number: u64::from_le_bytes(*number),
            };
            Some(Envelope::Session(request, bytes))
        }
        2 => {
            let (replica, pieces) = rest.split_first()?;
            let pieces = wire::decode(pieces).ok()?;
            Some(Envelope::Outputs(ReplicaId(*replica), pieces))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken() {
        let request = SessionRequest {
            session: 3,
            number: u64::MAX,
        };
        let piece = Piece {
            stream: 1,
            number: 2,
            end: 3000,
            hash: 9,
        };
        let mut out = Vec::new();
        put(None, b"x", &mut out);
        assert_eq!(take(&out), Some(Envelope::Plain(b"x")));
        out.clear();
        put(Some(request), b"yz", &mut out);
        assert_eq!(out.len(), ENVELOPE_BYTES_MAX + 2);
        assert_eq!(take(&out), Some(Envelope::Session(request, b"yz")));
        for cut in 1..ENVELOPE_BYTES_MAX {
            assert_eq!(take(&out[..cut]), None);
        }
        out.clear();
        put_outputs(ReplicaId(2), &[piece], &mut out);
        assert_eq!(
            take(&out),
            Some(Envelope::Outputs(ReplicaId(2), vec![piece]))
        );
        assert_eq!(take(&out[..out.len() - 1]), None);
        assert_eq!(take(&[]), None);
        assert_eq!(take(&[9, 1]), None);
    }
}
