//! Messages between servers beside consensus, on the bulk lane: where they serve clients, hashes of
//! their outputs (for the output check), entries that the leader is to propose, and their state for a replica
//! that is far behind.
//!
//! ```text
//!   far behind                              any replica ahead
//!      Want ────────────────────────────────►  snapshot taken once
//!      ◄──────────── Part{0} Part{1} … (as the ring has room)
//!      restored; continues with the log from there
//! ```
//!
//! Mail may be lost: the receiver asks for it again.

use crate::outputs::Piece;
use plover_types::{Index, Micros, ReplicaId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of state in one record.
const PART_BYTES: usize = 64 << 10;
/// The largest state that is taken over.
const STATE_BYTES_MAX: u64 = 1 << 30;
/// After this time without a part the replica asks again, perhaps another peer.
const ASK_EVERY: Micros = Micros::from_ms(300);

/// One record on the bulk lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mail {
    /// From each side of a link that comes up: where this replica serves clients.
    Hello { clients: Option<String> },
    /// To the leader, which proposes it: hashes of what this replica has sent.
    Outputs(Vec<Piece>),
    /// To the leader, which proposes it: an entry of the application.
    Propose(#[serde(with = "serde_bytes")] Vec<u8>),
    /// From a replica whose state ends before the log begins: it needs one that reflects at least
    /// `least`. The answer is the parts of a snapshot.
    Want { least: Index },
    /// Part of a snapshot that reflects `applied`.
    Part {
        applied: Index,
        total: u64,
        offset: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
}

/// A snapshot on its way to a peer.
#[derive(Debug)]
struct Sending {
    applied: Index,
    bytes: Vec<u8>,
    next: usize,
}

/// Snapshots on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(BTreeMap<ReplicaId, Sending>);

impl Outgoing {
    /// Begins to send a snapshot to `peer`, unless a new enough one is on its way.
    pub fn begin(
        &mut self,
        peer: ReplicaId,
        least: Index,
        snapshot: impl FnOnce() -> (Index, Vec<u8>),
    ) {
        let under_way = self.0.get(&peer);
        if under_way.is_none_or(|it| it.applied < least) {
            let (applied, bytes) = snapshot();
            let sending = Sending {
                applied,
                bytes,
                next: 0,
            };
            self.0.insert(peer, sending);
        }
    }

    /// Drops the snapshot on its way to `peer`: the link was lost.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.0.remove(&peer);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends further parts. `send` returns whether the ring took the record.
    pub fn advance(&mut self, mut send: impl FnMut(ReplicaId, &Mail) -> bool) {
        self.0.retain(|&peer, sending| {
            while sending.next < sending.bytes.len() {
                let end = (sending.next + PART_BYTES).min(sending.bytes.len());
                let part = Mail::Part {
                    applied: sending.applied,
                    total: sending.bytes.len() as u64,
                    offset: sending.next as u64,
                    bytes: sending.bytes[sending.next..end].to_vec(),
                };
                if !send(peer, &part) {
                    return true;
                }
                sending.next = end;
            }
            false
        });
    }
}

/// A snapshot that this replica waits for.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    from: Option<(ReplicaId, Index)>,
    bytes: Vec<u8>,
    pub ask_at: Micros,
}

impl Incoming {
    /// This replica has asked a peer.
    pub fn asked(&mut self, now: Micros) {
        self.from = None;
        self.bytes.clear();
        self.ask_at = now + ASK_EVERY;
    }

    /// Takes a part. Returns the whole snapshot after its last part.
    pub fn part(
        &mut self,
        now: Micros,
        from: (ReplicaId, Index),
        (total, offset): (u64, u64),
        bytes: &[u8],
    ) -> Option<&[u8]> {
        if offset == 0 {
            self.from = Some(from);
            self.bytes.clear();
        }
        let fits = offset == self.bytes.len() as u64
            && offset + bytes.len() as u64 <= total
            && total <= STATE_BYTES_MAX;
        if self.from != Some(from) || !fits {
            return None;
        }
        self.bytes.extend_from_slice(bytes);
        self.ask_at = now + ASK_EVERY;
        (self.bytes.len() as u64 == total).then_some(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId(0);
    const B: ReplicaId = ReplicaId(1);

    /// Sends a snapshot through a ring that takes `room` records at a time; parts for which
    /// `lost` is true do not arrive.
    fn carry(bytes: &[u8], room: usize, lost: impl Fn(usize) -> bool) -> Option<Vec<u8>> {
        let mut outgoing = Outgoing::default();
        let mut incoming = Incoming::default();
        outgoing.begin(B, Index(1), || (Index(9), bytes.to_vec()));
        outgoing.begin(B, Index(9), || panic!("one that will do is on its way"));
        let (mut result, mut number) = (None, 0);
        while !outgoing.is_empty() {
            let mut left = room;
            outgoing.advance(|to, mail| {
                assert_eq!(to, B);
                if left == 0 {
                    return false;
                }
                left -= 1;
                number += 1;
                let Mail::Part {
                    applied,
                    total,
                    offset,
                    bytes,
                } = mail
                else {
                    panic!("{mail:?}");
                };
                if !lost(number) {
                    let whole = incoming.part(Micros(1), (A, *applied), (*total, *offset), bytes);
                    result = result.take().or(whole.map(<[u8]>::to_vec));
                }
                true
            });
        }
        result
    }

    #[test]
    fn a_snapshot_arrives_whole_or_not_at_all() {
        let bytes: Vec<u8> = (0..5 * PART_BYTES + 77).map(|at| at as u8).collect();
        for room in 1..7 {
            assert_eq!(carry(&bytes, room, |_| false).as_ref(), Some(&bytes));
            assert_eq!(carry(&bytes, room, |number| number == 3), None);
        }
        assert_eq!(carry(&bytes[..1], 1, |_| false), Some(vec![0]));
    }

    #[test]
    fn parts_that_do_not_fit_are_dropped() {
        let mut incoming = Incoming::default();
        let mut part = |from, total, offset| {
            incoming
                .part(Micros(1), (from, Index(1)), (total, offset), b"xy")
                .is_some()
        };
        assert!(!part(A, 4, 0));
        assert!(!part(B, 4, 2), "of another sender");
        assert!(!part(A, u64::MAX, 2), "too large");
        assert!(!part(A, 3, 2), "longer than it says");
        assert!(part(A, 4, 2));
    }
}
