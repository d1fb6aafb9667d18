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
//! Mail may be lost: the receiver asks for it again. It keeps the parts that it has: if the sender only paused, the rest of
//! them follows, and if the sender begins anew, it does so with the first part.

use crate::outputs::Piece;
use plover_types::{Index, Micros, ReplicaId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of state in one record.
const PART_BYTES: usize = 64 << 10;
/// The largest state that is taken over.
pub(crate) const STATE_BYTES_MAX: u64 = 1 << 30;
/// After this time without a part the replica asks again, perhaps another peer.
const ASK_EVERY: Micros = Micros::from_ms(300);
/// After a state that was too large, the next one is made after this time: making one takes long.
const REFUSE_FOR: Micros = Micros::from_ms(60_000);

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
pub(crate) struct Outgoing {
    sending: BTreeMap<ReplicaId, Sending>,
    /// The last state was too large: until then no other one is made.
    refused_until: Micros,
}

impl Outgoing {
    /// Begins to send a snapshot to `peer`, unless a new enough one is on its way.
    ///
    /// # Errors
    /// The size of a snapshot that is too large.
    pub fn begin(
        &mut self,
        now: Micros,
        peer: ReplicaId,
        least: Index,
        snapshot: impl FnOnce() -> (Index, Vec<u8>),
    ) -> Result<(), usize> {
        let under_way = self.sending.get(&peer);
        if under_way.is_some_and(|it| it.applied >= least) || now < self.refused_until {
            return Ok(());
        }
        let (applied, bytes) = snapshot();
        if bytes.len() as u64 > STATE_BYTES_MAX {
            self.refused_until = now + REFUSE_FOR;
            return Err(bytes.len());
        }
        let sending = Sending {
            applied,
            bytes,
            next: 0,
        };
        self.sending.insert(peer, sending);
        Ok(())
    }

    /// Drops the snapshot on its way to `peer`: the link was lost.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.sending.remove(&peer);
    }

    pub fn is_empty(&self) -> bool {
        self.sending.is_empty()
    }

    /// Sends further parts. `send` returns whether the ring took the record.
    pub fn advance(&mut self, mut send: impl FnMut(ReplicaId, &Mail) -> bool) {
        self.sending.retain(|&peer, sending| {
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

    /// Passes on what `outgoing` sends through a ring that takes `room` records; parts for which `lost` is true do not
    /// arrive. Returns the state once it is whole.
    fn carry(
        outgoing: &mut Outgoing,
        incoming: &mut Incoming,
        room: usize,
        mut lost: impl FnMut() -> bool,
    ) -> Option<Vec<u8>> {
        let (mut left, mut result) = (room, None);
        outgoing.advance(|to, mail| {
            assert_eq!(to, B);
            if left == 0 {
                return false;
            }
            left -= 1;
            let Mail::Part {
                applied,
                total,
                offset,
                bytes,
            } = mail
            else {
                panic!("{mail:?}");
            };
            if !lost() {
                let whole = incoming.part(Micros(1), (A, *applied), (*total, *offset), bytes);
                result = result.take().or(whole.map(<[u8]>::to_vec));
            }
            true
        });
        result
    }

    fn begin(outgoing: &mut Outgoing, bytes: &[u8]) {
        let snapshot = || (Index(9), bytes.to_vec());
        assert_eq!(outgoing.begin(Micros(1), B, Index(1), snapshot), Ok(()));
        let again = outgoing.begin(Micros(1), B, Index(9), || {
            panic!("one that will do is on its way")
        });
        assert_eq!(again, Ok(()));
    }

    /// Sends a snapshot through a ring that takes `room` records at a time. The part of the number `lost`, counted from 1,
    /// does not arrive.
    fn send(bytes: &[u8], room: usize, lost: usize) -> Option<Vec<u8>> {
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::default());
        begin(&mut outgoing, bytes);
        let (mut result, mut number) = (None, 0);
        while !outgoing.is_empty() {
            let whole = carry(&mut outgoing, &mut incoming, room, || {
                number += 1;
                number == lost
            });
            result = result.or(whole);
        }
        result
    }

    #[test]
    fn a_snapshot_arrives_whole_or_not_at_all() {
        let bytes: Vec<u8> = (0..5 * PART_BYTES + 77).map(|at| at as u8).collect();
        for room in 1..7 {
            assert_eq!(send(&bytes, room, 0).as_ref(), Some(&bytes));
            assert_eq!(send(&bytes, room, 3), None);
        }
        assert_eq!(send(&bytes[..1], 1, 0), Some(vec![0]));
    }

    /// The sender stood still for so long that the receiver has asked again.
    #[test]
    fn a_pause_wastes_no_part() {
        let bytes = vec![7; 4 * PART_BYTES];
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::default());
        begin(&mut outgoing, &bytes);
        assert_eq!(carry(&mut outgoing, &mut incoming, 2, || false), None);
        incoming.asked(incoming.ask_at);
        let again = outgoing.begin(incoming.ask_at, B, Index(1), || panic!("it is on its way"));
        assert_eq!(again, Ok(()));
        let whole = carry(&mut outgoing, &mut incoming, 2, || false);
        assert_eq!(whole, Some(bytes));
        assert!(outgoing.is_empty());
    }

    #[test]
    fn a_state_that_is_too_large_is_refused_and_not_made_again_at_once() {
        let bytes = STATE_BYTES_MAX as usize + 1;
        let mut outgoing = Outgoing::default();
        // The kernel gives no memory for zeros that nobody touches.
        let large = || (Index(9), vec![0; bytes]);
        assert_eq!(outgoing.begin(Micros(1), B, Index(1), large), Err(bytes));
        let soon = outgoing.begin(Micros(2), B, Index(1), || panic!("it was made again"));
        assert_eq!(soon, Ok(()));
        assert!(outgoing.is_empty());
        let later = Micros(1) + REFUSE_FOR;
        let small = || (Index(9), vec![0]);
        assert_eq!(outgoing.begin(later, B, Index(1), small), Ok(()));
        assert!(!outgoing.is_empty());
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
