//! The output check: whether all replicas send the same (APUS §3).
//!
//! Replicas that apply the same inputs in the same order should send the same outputs. A difference
//! shows a program that is not deterministic, corrupted memory, or a bug in Plover; the log of
//! inputs shows none of these. So every replica hashes what it sends, and the hashes are compared
//! through the log itself:
//!
//! ```text
//!   replica                                    log                     every replica
//!   outputs of a stream ─► OutputHash ─► Piece ─► (proposed) ─► OutputCheck ─► Verdict
//!                          one hash per 1500 bytes                per stream
//! ```
//!
//! * A stream has one order: the answers to one session, say. Different streams may interleave
//!   differently on each replica.
//! * Each hash includes the one before it, as in the paper. So equal hashes at piece `k` mean equal
//!   streams up to there, and a later report makes up for a lost one. A replica that has diverged
//!   differs in every later piece; the first one is reported.
//! * All replicas read the reports from the log in one order and reach the same verdict.
//!
//! The hash is a CRC64, as in the paper. It finds accidents; it does not stop forgery.

use plover_types::{ReplicaId, ReplicaSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a stream that one hash adds: what fits one Ethernet frame (APUS §3: "MTU size").
const PIECE_BYTES: u64 = 1500;

/// Pieces of a stream whose hashes are kept for replicas that report late. A replica that is
/// further behind is compared again once it has caught up.
const PIECES_KEPT: usize = 64;

/// Streams that are compared at a time: those used last.
const STREAMS_MAX: usize = 1024;

/// The hash of a stream up to the end of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The name of the stream.
    pub stream: u64,
    /// The piece's place in the stream, from 0.
    pub number: u64,
    /// Where it ends, bytes from the start of the stream.
    pub end: u64,
    /// The hash of everything up to there.
    pub hash: u64,
}

/// The hash of what one replica has sent on one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputHash {
    /// The CRC of the piece under way, which begins with the hash of the piece before.
    crc: u64,
    bytes: u64,
}

impl OutputHash {
    /// Adds what was sent on `stream`; appends the pieces that this completes.
    pub fn record(&mut self, stream: u64, mut bytes: &[u8], pieces: &mut Vec<Piece>) {
        while !bytes.is_empty() {
            let room = (PIECE_BYTES - self.bytes % PIECE_BYTES) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.crc = crc64(self.crc, now);
            self.bytes += now.len() as u64;
            if now.len() == room {
                pieces.push(self.piece(stream));
                self.crc = crc64(0, &self.crc.to_le_bytes());
            }
            bytes = later;
        }
    }

    /// The short piece at the end of `stream`. `None` if it ends with a whole piece.
    pub fn finish(&self, stream: u64) -> Option<Piece> {
        (self.bytes % PIECE_BYTES > 0).then(|| self.piece(stream))
    }

    fn piece(&self, stream: u64) -> Piece {
        Piece {
            stream,
            number: self.bytes.div_ceil(PIECE_BYTES) - 1,
            end: self.bytes,
            hash: self.crc,
        }
    }
}

/// The reports of all replicas, in the order of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputCheck {
    streams: BTreeMap<u64, Compared>,
    clock: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Compared {
    /// The newest pieces by their number.
    pieces: BTreeMap<u64, Reports>,
    /// As [`Verdict::compared`].
    by: ReplicaSet,
    agreed: u64,
    diverged: Option<Divergence>,
    used: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Reports {
    end: u64,
    hashes: BTreeMap<ReplicaId, u64>,
}

/// Replicas that have sent something else than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The first piece that differs, of those that were compared.
    pub piece: u64,
    /// The replicas that differ from the majority there; without a majority, from the lowest id.
    pub replicas: ReplicaSet,
}

/// The verdict on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The name of the stream.
    pub stream: u64,
    /// Two or more replicas reported the same up to here, bytes. Never past the first piece that
    /// differs.
    pub agreed: u64,
    /// The replicas that were compared up to there; once some have diverged, all that were compared since. Only one is
    /// named before two have reported the same piece.
    pub compared: ReplicaSet,
    /// The replicas that have sent something else, and from where on. Stays until the stream is
    /// forgotten.
    pub diverged: Option<Divergence>,
}

impl OutputCheck {
    /// `replica` has reported `piece`.
    pub fn report(&mut self, replica: ReplicaId, piece: Piece) {
        self.clock += 1;
        if !self.streams.contains_key(&piece.stream) {
            make_room(&mut self.streams, STREAMS_MAX, |it| it.used);
        }
        let compared = self.streams.entry(piece.stream).or_default();
        compared.used = self.clock;
        compared.report(replica, piece);
    }

    /// The verdicts on all streams, lowest name first.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.streams
            .iter()
            .map(|(stream, compared)| compared.verdict(*stream))
    }
}

impl Compared {
    fn report(&mut self, replica: ReplicaId, piece: Piece) {
        let oldest = self.pieces.keys().next();
        if self.pieces.len() >= PIECES_KEPT && oldest.is_some_and(|it| piece.number < *it) {
            return;
        }
        let reports = self.pieces.entry(piece.number).or_default();
        reports.end = piece.end;
        // A restarted replica reports again what it has sent before; its last report counts.
        reports.hashes.insert(replica, piece.hash);
        let by = ReplicaSet::of(reports.hashes.keys().copied());
        let (odd, end) = (reports.odd_ones(), reports.end);
        self.judge(piece.number, odd, by, end);
        while self.pieces.len() > PIECES_KEPT {
            self.pieces.pop_first();
        }
    }

    /// Of the replicas `by` that have reported the piece `number`, which ends at `end`, those in `odd` differ.
    fn judge(&mut self, number: u64, odd: ReplicaSet, by: ReplicaSet, end: u64) {
        if by.len() < 2 {
            if self.by.len() < 2 {
                self.by = by;
            }
            return;
        }
        if self.diverged.is_none() && odd.is_empty() {
            // A replica that was compared only further back may have sent anything since.
            if end >= self.agreed {
                (self.agreed, self.by) = (end, by);
            }
            return;
        }
        self.by.0 |= by.0;
        if odd.is_empty() {
            self.agreed = self.agreed.max(end);
            return;
        }
        match &mut self.diverged {
            // A replica that has diverged stays so. A second one may diverge only now, but with
            // two reports that differ there is no telling which of them is wrong.
            Some(known) if known.piece < number => {
                if by.len() > 2 {
                    known.replicas.0 |= odd.0;
                }
            }
            _ => {
                self.diverged = Some(Divergence {
                    piece: number,
                    replicas: odd,
                });
            }
        }
    }

    fn verdict(&self, stream: u64) -> Verdict {
        // A replica may have reported any number.
        let same = self
            .diverged
            .map_or(u64::MAX, |it| it.piece.saturating_mul(PIECE_BYTES));
        Verdict {
            stream,
            agreed: self.agreed.min(same),
            compared: self.by,
            diverged: self.diverged,
        }
    }
}

impl Reports {
    /// The replicas whose hash is not that of the majority.
    fn odd_ones(&self) -> ReplicaSet {
        let votes = |hash: &u64| self.hashes.values().filter(|it| *it == hash).count();
        // `max_by_key` returns the last of several with most votes. In reverse order that is the hash of
        // the lowest id.
        let usual = self.hashes.values().rev().max_by_key(|hash| votes(hash));
        let odd = self.hashes.iter().filter(|(_, hash)| Some(*hash) != usual);
        ReplicaSet::of(odd.map(|(replica, _)| *replica))
    }
}

/// Makes room for one more entry: removes the entry that was used longest ago if `map` has `max` of
/// them.
pub(crate) fn make_room<T>(
    map: &mut BTreeMap<u64, T>,
    max: usize,
    used: impl Fn(&T) -> u64,
) -> Option<(u64, T)> {
    if map.len() < max {
        return None;
    }
    let oldest = *map.iter().min_by_key(|(_, it)| used(it))?.0;
    map.remove_entry(&oldest)
}

/// Continues `crc` with `bytes`: CRC-64/XZ (the ECMA-182 polynomial, reflected).
fn crc64(crc: u64, bytes: &[u8]) -> u64 {
    !bytes.iter().fold(!crc, |crc, byte| {
        CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8)
    })
}

const CRC_TABLE: [u64; 256] = {
    const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const R: [ReplicaId; 3] = [ReplicaId(0), ReplicaId(1), ReplicaId(2)];

    /// The pieces of one stream sent in parts of `part` bytes.
    fn pieces(bytes: &[u8], part: usize) -> Vec<Piece> {
        let mut hash = OutputHash::default();
        let mut pieces = Vec::new();
        for part in bytes.chunks(part) {
            hash.record(7, part, &mut pieces);
        }
        pieces.extend(hash.finish(7));
        pieces
    }

    fn verdict(check: &OutputCheck) -> Verdict {
        check.verdicts().next().expect("stream 7 was reported")
    }

    #[test]
    fn the_hash_is_the_standard_one() {
        assert_eq!(crc64(0, b"123456789"), 0x995d_c9bb_df19_39fa);
    }

    #[test]
    fn one_wrong_byte_is_found_in_its_piece_whoever_reports_first() {
        let right = vec![1; 6000];
        let mut wrong = right.clone();
        wrong[3210] = 2;
        for odd in R {
            for first in 0..3 {
                let mut check = OutputCheck::default();
                for turn in 0..3 {
                    let replica = R[(first + turn) % 3];
                    let sent = if replica == odd { &wrong } else { &right };
                    for piece in pieces(sent, 999) {
                        check.report(replica, piece);
                    }
                }
                let verdict = verdict(&check);
                let diverged = verdict.diverged.expect("the byte is found");
                assert_eq!(diverged.piece, 3210 / PIECE_BYTES);
                assert_eq!(diverged.replicas, ReplicaSet::of([odd]));
                assert_eq!(verdict.agreed, 3000);
            }
        }
    }

    #[test]
    fn a_replica_far_behind_is_compared_when_it_has_caught_up() {
        let sent = vec![3; PIECE_BYTES as usize * (PIECES_KEPT + 10)];
        let mut check = OutputCheck::default();
        let reports = pieces(&sent, PIECE_BYTES as usize);
        for piece in &reports {
            check.report(R[0], *piece);
        }
        check.report(R[1], reports[0]);
        assert_eq!(verdict(&check).agreed, 0, "too long ago");
        check.report(R[1], *reports.last().unwrap());
        assert_eq!(verdict(&check).agreed, sent.len() as u64);
    }

    #[test]
    fn only_the_replicas_that_were_compared_that_far_are_named() {
        let sent = vec![3; PIECE_BYTES as usize * 10];
        let reports = pieces(&sent, PIECE_BYTES as usize);
        let mut check = OutputCheck::default();
        for piece in &reports {
            check.report(R[0], *piece);
        }
        assert!(verdict(&check).compared.len() < 2, "one alone");
        check.report(R[2], reports[0]);
        assert_eq!(verdict(&check).compared, ReplicaSet::of([R[0], R[2]]));
        for piece in &reports {
            check.report(R[1], *piece);
        }
        let found = verdict(&check);
        assert_eq!(found.agreed, sent.len() as u64);
        assert_eq!(found.compared, ReplicaSet::of([R[0], R[1]]));
        check.report(R[2], reports[9]);
        assert_eq!(verdict(&check).compared, ReplicaSet::of(R));
    }

    #[test]
    fn any_number_of_a_piece_is_taken() {
        let mut check = OutputCheck::default();
        for (replica, hash) in [(R[0], 1), (R[1], 2)] {
            let (stream, number, end) = (7, u64::MAX, u64::MAX);
            let piece = Piece {
                stream,
                number,
                end,
                hash,
            };
            check.report(replica, piece);
        }
        let diverged = verdict(&check).diverged.expect("they differ");
        assert_eq!(diverged.piece, u64::MAX);
    }

    #[test]
    fn memory_is_bounded() {
        let mut check = OutputCheck::default();
        for stream in 0..3 * STREAMS_MAX as u64 {
            let (number, end, hash) = (0, PIECE_BYTES, 0);
            let piece = Piece {
                stream,
                number,
                end,
                hash,
            };
            check.report(R[0], piece);
        }
        assert_eq!(check.streams.len(), STREAMS_MAX);
        assert!(!check.streams.contains_key(&0), "the oldest went first");
    }

    proptest! {
        /// The replicas may record a stream in parts of different sizes, and the flipped byte may be
        /// anywhere.
        #[test]
        fn equal_streams_agree_and_others_do_not(
            bytes in proptest::collection::vec(any::<u8>(), 1..5000),
            part_a in 1usize..3000,
            part_b in 1usize..3000,
            flip in any::<Option<(proptest::sample::Index, u8)>>(),
        ) {
            let mut other = bytes.clone();
            if let Some((at, mask)) = flip {
                let at = at.index(other.len());
                other[at] ^= mask;
            }
            let mut check = OutputCheck::default();
            for piece in pieces(&bytes, part_a) {
                check.report(R[0], piece);
            }
            for piece in pieces(&other, part_b) {
                check.report(R[1], piece);
            }
            let verdict = verdict(&check);
            let first = bytes.iter().zip(&other).position(|(a, b)| a != b);
            let found = verdict.diverged.map(|it| it.piece);
            prop_assert_eq!(found, first.map(|at| at as u64 / PIECE_BYTES));
            let agreed = first.map_or(bytes.len() as u64, |at| at as u64 / PIECE_BYTES * PIECE_BYTES);
            prop_assert_eq!(verdict.agreed, agreed);
        }
    }
}
