//! The output check: whether all programs send the same (APUS §3).
//!
//! ```text
//!   outputs of a connection ─► pieces of N bytes ─► Claim ─► (log) ─► votes of one piece ─► Verdict
//! ```
//!
//! Only whole pieces are compared, and the last one if the program itself has ended the connection. How much
//! a program sends before it notices that its client is gone depends on time and proves nothing.
//!
//! A replica judges itself by what its program has sent in this life, never by its claims in the log: a
//! program that was restored is given the same log once more, with the claims of its former life in it.

use crate::api::{Difference, Excerpts};
use crate::{Claim, ConnectionId, Excerpt};
use plover_types::{Micros, ReplicaId, ReplicaSet};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Claims that go in one entry at most, and how long the first one of them waits for others.
const CLAIMS_MAX: usize = 64;
const CLAIMS_WAIT: Micros = Micros::from_ms(20);

/// Pieces that are compared at a time, the newest, and own pieces whose bytes are kept, those of the newest
/// connections. A piece that is forgotten is not compared.
const PIECES_MAX: usize = 4096;
const KEPT_MAX: usize = 1024;

/// Bytes of an excerpt that an operator is shown.
const SHOWN_BYTES: usize = 48;

/// The name of a piece.
type Name = (ConnectionId, u64);

/// The piece of one connection that is under way.
#[derive(Clone, Debug, Default)]
struct Piece {
    from: u64,
    bytes: Vec<u8>,
}

/// What replicas have claimed about one piece: length and hash.
#[derive(Clone, Debug, Default)]
struct Votes {
    of: BTreeMap<ReplicaId, (u32, u64)>,
    /// The difference was reported.
    reported: bool,
    /// The replicas that were found wrong.
    wrong: ReplicaSet,
}

/// What follows from a vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Replicas differ, and no majority agrees yet.
    Differs(Difference),
    /// A majority agrees, and these replicas differ from it.
    Wrong(Difference),
}

#[derive(Clone, Debug)]
pub(crate) struct Check {
    me: ReplicaId,
    members: ReplicaSet,
    size: Option<u32>,
    under_way: BTreeMap<ConnectionId, Piece>,
    /// Bytes of whole pieces, for excerpts.
    kept: BTreeMap<Name, Vec<u8>>,
    votes: BTreeMap<Name, Votes>,
    /// Their names and those of former ones, the oldest first.
    order: VecDeque<Name>,
    claims: Vec<Claim>,
    claims_due: Micros,
    /// Excerpts that wait for another replica's.
    excerpts: BTreeMap<Name, Excerpt>,
}

impl Check {
    pub fn new(me: ReplicaId, members: ReplicaSet, size: Option<u32>) -> Self {
        Self {
            me,
            members,
            size,
            under_way: BTreeMap::new(),
            kept: BTreeMap::new(),
            votes: BTreeMap::new(),
            order: VecDeque::new(),
            claims: Vec::new(),
            claims_due: Micros::NEVER,
            excerpts: BTreeMap::new(),
        }
    }

    /// The own program has sent `bytes`.
    pub fn sent(
        &mut self,
        now: Micros,
        connection: ConnectionId,
        mut bytes: &[u8],
        verdicts: &mut Vec<Verdict>,
    ) {
        let Some(size) = self.size else { return };
        while !bytes.is_empty() {
            let piece = self.under_way.entry(connection).or_default();
            let room = size as usize - piece.bytes.len();
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
            piece.bytes.extend_from_slice(part);
            bytes = rest;
            if piece.bytes.len() == size as usize {
                let from = piece.from;
                piece.from += u64::from(size);
                let whole = std::mem::take(&mut piece.bytes);
                self.claim(now, (connection, from), whole, verdicts);
            }
        }
    }

    /// The own program has ended the connection: its last piece is compared, too.
    pub fn ended(&mut self, now: Micros, connection: ConnectionId, verdicts: &mut Vec<Verdict>) {
        if let Some(last) = self.under_way.remove(&connection) {
            if !last.bytes.is_empty() {
                self.claim(now, (connection, last.from), last.bytes, verdicts);
            }
        }
    }

    /// The connection is over.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.under_way.remove(&connection);
    }

    fn claim(&mut self, now: Micros, name: Name, bytes: Vec<u8>, verdicts: &mut Vec<Verdict>) {
        let claim = Claim {
            connection: name.0,
            from: name.1,
            length: bytes.len() as u32,
            hash: xxh3_64(&bytes),
        };
        self.kept.insert(name, bytes);
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_first();
        }
        if self.claims.is_empty() {
            self.claims_due = now + CLAIMS_WAIT;
        }
        if self.claims.len() == PIECES_MAX {
            // The log has been full for long.
            self.claims.remove(0);
        }
        self.claims.push(claim);
        verdicts.extend(self.vote(self.me, &claim));
    }

    /// The claims to propose now, if any.
    pub fn due(&mut self, now: Micros) -> Option<Vec<Claim>> {
        if self.claims.is_empty() || (now < self.claims_due && self.claims.len() < CLAIMS_MAX) {
            return None;
        }
        let rest = self.claims.split_off(self.claims.len().min(CLAIMS_MAX));
        Some(std::mem::replace(&mut self.claims, rest))
    }

    /// When claims are due.
    pub fn deadline(&self) -> Micros {
        if self.claims.is_empty() {
            Micros::NEVER
        } else {
            self.claims_due
        }
    }

    /// The log says what `replica` claims.
    pub fn claimed(&mut self, replica: ReplicaId, claim: &Claim) -> Option<Verdict> {
        if self.size.is_none() || replica == self.me || !self.members.contains(replica) {
            return None;
        }
        self.vote(replica, claim)
    }

    fn vote(&mut self, replica: ReplicaId, claim: &Claim) -> Option<Verdict> {
        let name = (claim.connection, claim.from);
        let quorum = self.members.len() / 2 + 1;
        let order = &mut self.order;
        let votes = self.votes.entry(name).or_insert_with(|| {
            order.push_back(name);
            Votes::default()
        });
        votes.of.insert(replica, (claim.length, claim.hash));
        let count = |vote: (u32, u64)| votes.of.values().filter(|it| **it == vote).count();
        let first = votes.of.values().next().copied();
        let all_agree = first.is_some_and(|it| count(it) == votes.of.len());
        let verdict = if all_agree {
            if votes.of.len() == self.members.len() {
                self.votes.remove(&name);
                self.kept.remove(&name);
            }
            None
        } else {
            let usual = votes.of.values().copied().find(|it| count(*it) >= quorum);
            let odd = votes.of.iter().filter(|(_, it)| Some(**it) != usual);
            let replicas = ReplicaSet::of(odd.map(|(id, _)| *id));
            let (connection, from) = name;
            let difference = Difference {
                connection,
                from,
                replicas,
            };
            if usual.is_none() {
                let is_new = !std::mem::replace(&mut votes.reported, true);
                is_new.then_some(Verdict::Differs(difference))
            } else {
                let is_new = votes.wrong != replicas;
                votes.wrong = replicas;
                is_new.then_some(Verdict::Wrong(difference))
            }
        };
        self.forget_oldest();
        verdict
    }

    /// Where a replica is away, pieces wait for its vote.
    fn forget_oldest(&mut self) {
        while self.votes.len() > PIECES_MAX {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            self.votes.remove(&oldest);
        }
        if self.order.len() > 2 * PIECES_MAX {
            self.order.retain(|name| self.votes.contains_key(name));
        }
    }

    /// The own bytes of a piece that differs, for the log.
    pub fn excerpt(&self, difference: &Difference) -> Option<Excerpt> {
        let (connection, from) = (difference.connection, difference.from);
        let bytes = self.kept.get(&(connection, from))?.clone();
        Some(Excerpt {
            replica: self.me,
            connection,
            from,
            bytes,
        })
    }

    /// The log has an excerpt. Returns both, once there are two that differ.
    pub fn excerpted(&mut self, excerpt: Excerpt) -> Option<Excerpts> {
        let name = (excerpt.connection, excerpt.from);
        let Some(one) = self.excerpts.get(&name) else {
            self.excerpts.insert(name, excerpt);
            if self.excerpts.len() > KEPT_MAX {
                self.excerpts.pop_first();
            }
            return None;
        };
        if one.bytes == excerpt.bytes {
            return None;
        }
        let same = one.bytes.iter().zip(&excerpt.bytes);
        let same = same.take_while(|(a, b)| a == b).count();
        let shown = |bytes: &[u8]| bytes[same..].iter().take(SHOWN_BYTES).copied().collect();
        let both = Excerpts {
            connection: name.0,
            position: name.1 + same as u64,
            one: (one.replica, shown(&one.bytes)),
            other: (excerpt.replica, shown(&excerpt.bytes)),
        };
        self.excerpts.remove(&name);
        Some(both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::{Index, View, Viewstamp};

    const R: [ReplicaId; 3] = [ReplicaId(0), ReplicaId(1), ReplicaId(2)];

    fn connection() -> ConnectionId {
        ConnectionId(Viewstamp {
            view: View(16),
            index: Index(7),
        })
    }

    /// The claims of a replica whose program has sent `bytes` in parts.
    fn claims(bytes: &[u8], part: usize, ends: bool) -> (Check, Vec<Claim>) {
        let mut check = Check::new(R[0], ReplicaSet::of(R), Some(100));
        let mut none = Vec::new();
        for part in bytes.chunks(part) {
            check.sent(Micros(1), connection(), part, &mut none);
        }
        if ends {
            check.ended(Micros(1), connection(), &mut none);
        }
        let claims = std::iter::from_fn(|| check.due(Micros::NEVER)).flatten();
        let claims = claims.collect();
        (check, claims)
    }

    #[test]
    fn claims_do_not_depend_on_how_bytes_come() {
        let bytes: Vec<u8> = (0..950).map(|at| (at % 251) as u8).collect();
        let (_, whole) = claims(&bytes, 950, false);
        assert_eq!(whole.len(), 9, "whole pieces alone");
        for part in [1, 7, 100, 333] {
            assert_eq!(claims(&bytes, part, false).1, whole);
        }
        let (_, ended) = claims(&bytes, 64, true);
        assert_eq!((&ended[..9], ended[9].length), (&whole[..], 50));
    }

    /// One replica is away, so no piece gets all votes. The oldest connection is used last.
    #[test]
    fn pieces_that_wait_for_a_vote_do_not_keep_newer_ones_from_being_compared() {
        let mut check = Check::new(R[0], ReplicaSet::of(R), Some(1));
        let of = |index| {
            ConnectionId(Viewstamp {
                view: View(16),
                index: Index(index),
            })
        };
        let mut verdicts = Vec::new();
        let mut both_send = |check: &mut Check, connection, from, byte: u8, others: u8| {
            check.sent(Micros(1), connection, &[byte], &mut verdicts);
            let claim = Claim {
                connection,
                from,
                length: 1,
                hash: xxh3_64(&[others]),
            };
            check.claimed(R[1], &claim)
        };
        for from in 0..PIECES_MAX as u64 {
            assert_eq!(both_send(&mut check, of(9), from, 1, 1), None);
        }
        for from in 0..2 * PIECES_MAX as u64 {
            assert_eq!(both_send(&mut check, of(7), from, 1, 1), None);
        }
        let differs = both_send(&mut check, of(7), 2 * PIECES_MAX as u64, 1, 2);
        assert!(matches!(differs, Some(Verdict::Differs(_))), "{differs:?}");
        assert!(check.order.len() <= 2 * PIECES_MAX);
    }

    #[test]
    fn a_minority_is_named_and_no_majority_is_reported_once() {
        let right = [1; 300];
        let mut wrong = right;
        wrong[150] = 2;
        let (mut check, own) = claims(&wrong, 300, false);
        let (_, others) = claims(&right, 300, false);
        assert_eq!(check.claimed(R[1], &others[0]), None);
        let difference = |odd: &[ReplicaId]| Difference {
            connection: connection(),
            from: 100,
            replicas: ReplicaSet::of(odd.iter().copied()),
        };
        let differs = check.claimed(R[1], &others[1]);
        assert_eq!(differs, Some(Verdict::Differs(difference(&R[..2]))));
        let mut third = others[1];
        third.hash ^= 1;
        assert_eq!(check.claimed(R[2], &third), None, "reported already");
        let wrong = check.claimed(R[2], &others[1]);
        assert_eq!(wrong, Some(Verdict::Wrong(difference(&R[..1]))));
        assert_eq!(
            check.claimed(R[0], &own[1]),
            None,
            "its own former life's claim"
        );
        let excerpt = check.excerpt(&difference(&R[..1])).unwrap();
        assert_eq!(check.excerpted(excerpt.clone()), None);
        let other = Excerpt {
            replica: R[1],
            bytes: vec![1; 100],
            ..excerpt
        };
        let both = check.excerpted(other).unwrap();
        assert_eq!((both.position, both.one.1[0], both.other.1[0]), (150, 2, 1));
    }

    #[test]
    fn what_all_agree_on_is_forgotten() {
        let (mut check, own) = claims(&[3; 200], 200, false);
        for claim in &own {
            assert_eq!(check.claimed(R[1], claim), None);
            assert_eq!(check.claimed(R[2], claim), None);
        }
        assert!(check.votes.is_empty() && check.kept.is_empty());
    }
}
