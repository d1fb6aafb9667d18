//! The messages between clients and the server, and their frames.
//!
//! ```text
//!   length (4)  CRC32C of the body (4)  body: version (1), message
//! ```
//!
//! TCP's own checksum is weak and does not cover what a proxy does; the CRC costs little. A frame that
//! is too long, has a wrong checksum or does not decode ends the connection, because the start of the
//! next one is not known. Decoding never panics and allocates nothing for the bytes that it borrows.

use crate::outputs::Verdict;
use apus::{Durability, Phase};
use plover_types::wire::{self, OLDEST_VERSION, WireError};
use plover_types::{Index, ReplicaId, ReplicaSet, View, Viewstamp};
use serde::{Deserialize, Serialize};

/// The largest body of a frame, bytes. Larger than the largest entry by far more than what a
/// message adds.
pub(crate) const FRAME_BYTES_MAX: usize = 17 << 20;
/// The largest entry, and the largest answer, that certainly fit a frame.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 16 << 20;
const HEADER_BYTES: usize = 8;

/// Why bytes are not a frame. The connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Damage, or the peer is not Plover.
    #[error("a frame of {0} bytes exceeds the largest of {FRAME_BYTES_MAX}")]
    TooLong(usize),
    /// The client has keys, and this replica has none for its clients.
    #[error(
        "the client speaks TLS, and this replica does not with its clients: leave out --key and --trust, or start the \
         replica with them"
    )]
    Tls,
    /// Damage on the way.
    #[error("the checksum of a frame is wrong")]
    Checksum,
    /// The peer is of another release, or has a bug. Use the release that the group runs.
    #[error("a frame that does not decode: {0}")]
    Message(#[from] WireError),
}

/// Whether a client begins with TLS. A frame of ours of this length has another body.
pub(crate) fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 3, _, _, _, 1, 0, _, _, 3, 3, ..])
}

/// Whether all that a server has said is that it does not understand us: an alert of TLS.
pub(crate) fn is_alert(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15, 3, _, 0, 2, _, _])
}

/// A message from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Append `bytes`. With `session`, once for each number, however often the client repeats it.
    Append {
        /// The client's name for this request; comes back with the reply.
        number: u64,
        /// The session that `number` belongs to.
        session: Option<u64>,
        /// The entry.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The committed entries after `since`, then [`Reply::End`] or, with `follow`, those to
    /// come. From any replica.
    Tail {
        /// The last entry that the client has.
        since: Index,
        /// Whether to go on.
        follow: bool,
    },
    /// Where this replica stands.
    Status,
    /// Begin a new log after every replica has lost the old one's entries.
    Begin,
    /// Change the group.
    Member(MemberChange),
}

/// A change of the group. Carried out by the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// Let a replica in: it catches up first, then votes.
    Add {
        /// Its name in the group.
        id: ReplicaId,
        /// Where the others reach it.
        address: String,
    },
    /// Remove a replica.
    Remove {
        /// Its name in the group.
        id: ReplicaId,
    },
}

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// The entry is committed and applied.
    Appended {
        /// The request.
        number: u64,
        /// Where it took effect; earlier for a repeated request of a session.
        at: Viewstamp,
        /// The state machine's answer.
        #[serde(borrow, with = "serde_bytes")]
        answer: &'a [u8],
    },
    /// Not appended, or not known to be.
    Refused {
        /// The request.
        number: u64,
        /// Why.
        why: Refusal,
    },
    /// Another replica leads, or none: repeat the request there.
    Elsewhere {
        /// The request.
        number: u64,
        /// The leader, if it is known.
        leader: Option<ReplicaId>,
        /// Where it serves clients, if that is known.
        address: Option<String>,
    },
    /// A committed entry.
    Entry {
        /// Its place.
        at: Viewstamp,
        /// Its bytes.
        #[serde(borrow, with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// Entries that the client asked for have been trimmed.
    Trimmed {
        /// The last entry that is gone.
        base: Index,
    },
    /// All committed entries have been sent.
    End,
    /// Where the replica stands.
    Status(Box<StatusReport>),
    /// How far a longer operation has come.
    Progress(String),
    /// An operation is done.
    Done(String),
    /// An operation was refused or failed: why, and what to do.
    Failed(String),
}

/// Why an entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Split it.
    TooLarge {
        /// Bytes of the largest entry.
        max: u64,
    },
    /// The session has used a later number.
    Stale,
}

/// Where a replica stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Its name in the group.
    pub id: ReplicaId,
    /// Its phase.
    pub phase: Phase,
    /// The highest view it has promised.
    pub view: View,
    /// The leader, if it knows one.
    pub leader: Option<ReplicaId>,
    /// Where the leader serves clients.
    pub leader_address: Option<String>,
    /// The replicas that vote.
    pub voters: ReplicaSet,
    /// The replicas that catch up and do not vote yet.
    pub learners: ReplicaSet,
    /// The replicas to which it has a link.
    pub linked: ReplicaSet,
    /// When an acknowledgement counts.
    pub durability: Durability,
    /// The last entry of its log.
    pub last: Viewstamp,
    /// The last committed entry it knows of.
    pub commit: Index,
    /// The last entry that its state machine reflects.
    pub applied: Index,
    /// Entries up to here have been trimmed.
    pub base: Index,
    /// Payload bytes in its log.
    pub log_bytes: u64,
    /// Entries that wait for a majority.
    pub pending: u64,
    /// Connected clients.
    pub clients: u64,
    /// Messages and frames that did not decode or did not fit.
    pub rejected: u64,
    /// Every replica has lost the log, and the operator has to begin a new one
    /// ([`Request::Begin`]).
    pub lost: bool,
    /// The output check, per stream.
    pub outputs: Vec<Verdict>,
}

/// Appends `message` as a frame to `out`.
pub(crate) fn put<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    out.push(OLDEST_VERSION);
    *out = wire::encode_part(message, std::mem::take(out));
    let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
    let length = u32::try_from(body.len()).expect("entries are bounded far below");
    assert!(body.len() <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// How many bytes the first frame of `input` takes, once they are all there.
pub(crate) fn whole_frame(input: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some((length, _)) = input.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(length));
    }
    let bytes = HEADER_BYTES + length;
    Ok((input.len() >= bytes).then_some(bytes))
}

/// The message in one whole frame.
pub(crate) fn take<'a, T: Deserialize<'a>>(frame: &'a [u8]) -> Result<T, FrameError> {
    let (header, body) = frame.split_at(HEADER_BYTES);
    if crc32c::crc32c(body).to_le_bytes() != header[4..] {
        return Err(FrameError::Checksum);
    }
    match wire::decode_front(body)? {
        (message, []) => Ok(message),
        (_, rest) => Err(WireError::Trailing(rest.len()).into()),
    }
}

#[cfg(test)]
mod form;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let mut out = vec![7];
        let request = Request::Append {
            number: 3,
            session: Some(9),
            bytes: b"hello",
        };
        put(&request, &mut out);
        out.split_off(1)
    }

    #[test]
    fn what_is_put_is_taken_once_all_of_it_is_there() {
        let frame = frame();
        for cut in 0..frame.len() {
            assert_eq!(whole_frame(&frame[..cut]), Ok(None));
        }
        assert_eq!(
            whole_frame(&[&frame[..], b"more"].concat()),
            Ok(Some(frame.len()))
        );
        let request: Request<'_> = take(&frame).unwrap();
        assert!(matches!(
            request,
            Request::Append {
                bytes: b"hello",
                ..
            }
        ));
    }

    #[test]
    fn no_damage_goes_unnoticed_and_none_panics() {
        let good = frame();
        for at in 4..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(
                take::<Request<'_>>(&bad),
                Err(FrameError::Checksum),
                "byte {at}"
            );
        }
        let mut old = good.clone();
        old[HEADER_BYTES] = 9;
        let crc = crc32c::crc32c(&old[HEADER_BYTES..]).to_le_bytes();
        old[4..8].copy_from_slice(&crc);
        let version = FrameError::Message(WireError::Version(9));
        assert_eq!(take::<Request<'_>>(&old), Err(version));
        assert!(take::<Reply<'_>>(&[0; 8]).is_err());
        assert!(matches!(
            whole_frame(&[255; 9]),
            Err(FrameError::TooLong(_))
        ));
    }
}
