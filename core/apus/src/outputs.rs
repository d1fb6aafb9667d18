//! The output check: do the replicas say the same? (APUS §3)
//!
//! Replicas that apply one order of inputs should send one order of outputs. Whether they do
//! shows a program that is not deterministic, a replica whose memory has rotted, or a bug of
//! ours, and none of these shows in the log of inputs. So every replica hashes what it sends,
//! and the hashes are compared through the log of inputs itself:
//!
//! ```text
//!   replica                                     log                     every replica
//!   outputs of a stream ─► OutputHasher ─► Piece ─► (proposed) ─► OutputCheck ─► Verdict
//!                          one hash per 1500 bytes                per stream
//! ```
//!
//! * A stream is what must come in one order: one client connection, say. Different streams may
//!   interleave differently on each replica.
//! * Each hash takes in the one before it, as in the paper. Hence equal hashes at piece `k` mean
//!   equal streams up to there, a lost report costs nothing once a later one arrives, and a
//!   replica that has diverged differs in every piece from then on; the first is reported.
//! * The reports come out of the log in one order, so every replica reaches the same verdict.
//!
//! The hash is a CRC64, as in the paper: it finds accidents and is no defence against someone
//! who forges outputs.

use plover_types::{ReplicaId, ReplicaSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a stream that one hash adds: what fits one Ethernet frame (APUS §3: "MTU size").
pub const PIECE_BYTES: usize = 1500;

/// Pieces of a stream whose hashes are kept for replicas that report late. A replica that is
/// further behind is compared again once it has caught up.
const PIECES_KEPT: usize = 64;

/// Streams that are followed at once, those used last.
const STREAMS_MAX: usize = 1024;

/// The hash of a stream up to the end of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Which stream; the caller names them.
    pub stream: u64,
    /// The piece's place in the stream, from 0.
    pub number: u64,
    /// Where it ends, bytes from the start of the stream.
    pub end: u64,
    /// The hash of everything up to there.
    pub hash: u64,
}

/// What one replica has sent, hashed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputHasher {
    streams: BTreeMap<u64, Hashed>,
    clock: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hashed {
    crc: u64,
    bytes: u64,
    number: u64,
    in_piece: usize,
    used: u64,
}

impl OutputHasher {
    /// Takes in what was sent on `stream` and appends the pieces that this completes.
    pub fn record(&mut self, stream: u64, mut bytes: &[u8], pieces: &mut Vec<Piece>) {
        self.clock += 1;
        if !self.streams.contains_key(&stream) {
            forget_oldest(&mut self.streams, |hashed| hashed.used);
        }
        let hashed = self.streams.entry(stream).or_insert(Hashed {
            crc: CRC_START,
            bytes: 0,
            number: 0,
            in_piece: 0,
            used: 0,
        });
        hashed.used = self.clock;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - hashed.in_piece));
            hashed.crc = crc64(hashed.crc, now);
            hashed.bytes += now.len() as u64;
            hashed.in_piece += now.len();
            if hashed.in_piece == PIECE_BYTES {
                pieces.push(hashed.close(stream));
            }
            bytes = later;
        }
    }

    /// Ends `stream`: what it sent after its last whole piece is a short piece. Nothing if the
    /// stream is not known or ends with a whole piece.
    pub fn finish(&mut self, stream: u64) -> Option<Piece> {
        let mut hashed = self.streams.remove(&stream)?;
        (hashed.in_piece > 0).then(|| hashed.close(stream))
    }
}

impl Hashed {
    /// Ends a piece; its hash is the first thing that the next one takes in.
    fn close(&mut self, stream: u64) -> Piece {
        let piece = Piece {
            stream,
            number: self.number,
            end: self.bytes,
            hash: !self.crc,
        };
        self.crc = crc64(CRC_START, &piece.hash.to_le_bytes());
        self.number += 1;
        self.in_piece = 0;
        piece
    }
}

/// What the log has told of all replicas' outputs. To be fed in the order of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputCheck {
    streams: BTreeMap<u64, Compared>,
    clock: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Compared {
    /// The newest pieces, in order; the last has the highest number reported by anyone.
    pieces: VecDeque<Reports>,
    reported_by: ReplicaSet,
    agreed: u64,
    diverged: Option<Divergence>,
    used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reports {
    number: u64,
    end: u64,
    hashes: BTreeMap<ReplicaId, u64>,
}

/// Replicas that have sent something else than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The first piece that differs, of those that were compared.
    pub piece: u64,
    /// Who differs from the majority there; without a majority, who differs from the lowest id.
    pub replicas: ReplicaSet,
}

/// What is known of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which.
    pub stream: u64,
    /// Whoever reported it up to here reported the same, and they were two or more; bytes. Never
    /// past the first piece that differs.
    pub agreed: u64,
    /// Who has reported anything.
    pub reported_by: ReplicaSet,
    /// Who has sent something else, and from where on. Stays until the stream is forgotten.
    pub diverged: Option<Divergence>,
}

impl OutputCheck {
    /// Takes in that `replica` reported `piece`.
    pub fn report(&mut self, replica: ReplicaId, piece: Piece) {
        self.clock += 1;
        if !self.streams.contains_key(&piece.stream) {
            forget_oldest(&mut self.streams, |compared| compared.used);
        }
        let compared = self.streams.entry(piece.stream).or_default();
        compared.used = self.clock;
        compared.report(replica, piece);
    }

    /// What is known of `stream`, if anyone reported it lately.
    pub fn verdict(&self, stream: u64) -> Option<Verdict> {
        self.streams.get(&stream).map(|it| it.verdict(stream))
    }

    /// What is known of every stream, lowest number first.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.streams
            .iter()
            .map(|(stream, compared)| compared.verdict(*stream))
    }
}

impl Compared {
    fn report(&mut self, replica: ReplicaId, piece: Piece) {
        self.reported_by.insert(replica);
        let place = self
            .pieces
            .partition_point(|reports| reports.number < piece.number);
        let known = self
            .pieces
            .get(place)
            .is_some_and(|reports| reports.number == piece.number);
        if !known {
            let too_old = place == 0 && self.pieces.len() >= PIECES_KEPT;
            if too_old {
                return;
            }
            let reports = Reports {
                number: piece.number,
                end: piece.end,
                hashes: BTreeMap::new(),
            };
            self.pieces.insert(place, reports);
        }
        // A restarted replica reports again what it has sent before; its last word counts.
        self.pieces[place].hashes.insert(replica, piece.hash);
        self.judge(place);
        while self.pieces.len() > PIECES_KEPT {
            self.pieces.pop_front();
        }
    }

    fn judge(&mut self, place: usize) {
        let reports = &self.pieces[place];
        let odd = reports.odd_ones();
        if odd.is_empty() {
            if reports.hashes.len() > 1 {
                self.agreed = self.agreed.max(reports.end);
            }
            return;
        }
        match &mut self.diverged {
            // Whoever has parted from the others stays apart. A second one may part only now,
            // but of two that differ nobody can tell which.
            Some(known) if known.piece < reports.number => {
                if reports.hashes.len() > 2 {
                    known.replicas.0 |= odd.0;
                }
            }
            _ => {
                self.diverged = Some(Divergence {
                    piece: reports.number,
                    replicas: odd,
                });
            }
        }
    }

    fn verdict(&self, stream: u64) -> Verdict {
        let same = self
            .diverged
            .map_or(u64::MAX, |it| it.piece * PIECE_BYTES as u64);
        Verdict {
            stream,
            agreed: self.agreed.min(same),
            reported_by: self.reported_by,
            diverged: self.diverged,
        }
    }
}

impl Reports {
    /// Whose hash is not that of the majority of those who reported.
    fn odd_ones(&self) -> ReplicaSet {
        let votes = |hash: u64| self.hashes.values().filter(|it| **it == hash).count();
        let Some(&first) = self.hashes.values().next() else {
            return ReplicaSet::EMPTY;
        };
        let mut usual = first;
        for &hash in self.hashes.values() {
            if votes(hash) > votes(usual) {
                usual = hash;
            }
        }
        let odd = self.hashes.iter().filter(|(_, hash)| **hash != usual);
        ReplicaSet::of(odd.map(|(replica, _)| *replica))
    }
}

/// Makes room for one more stream.
fn forget_oldest<T>(streams: &mut BTreeMap<u64, T>, used: impl Fn(&T) -> u64) {
    if streams.len() >= STREAMS_MAX {
        let oldest = streams.iter().min_by_key(|(_, it)| used(it));
        if let Some(stream) = oldest.map(|(stream, _)| *stream) {
            streams.remove(&stream);
        }
    }
}

const CRC_START: u64 = u64::MAX;

/// CRC-64/XZ (the ECMA-182 polynomial, reflected), without the final inversion.
fn crc64(crc: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(crc, |crc, byte| {
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
        let mut hasher = OutputHasher::default();
        let mut pieces = Vec::new();
        for part in bytes.chunks(part) {
            hasher.record(7, part, &mut pieces);
        }
        pieces.extend(hasher.finish(7));
        pieces
    }

    #[test]
    fn the_hash_is_the_standard_one() {
        assert_eq!(!crc64(CRC_START, b"123456789"), 0x995d_c9bb_df19_39fa);
    }

    #[test]
    fn three_that_say_the_same_agree_to_the_last_byte() {
        let sent = vec![1; 4000];
        let mut check = OutputCheck::default();
        for replica in R {
            for piece in pieces(&sent, 100) {
                check.report(replica, piece);
            }
        }
        let verdict = check.verdict(7).unwrap();
        assert_eq!((verdict.agreed, verdict.diverged), (4000, None));
        assert_eq!(verdict.reported_by, ReplicaSet::of(R));
        assert_eq!(check.verdict(8), None);
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
                let verdict = check.verdict(7).unwrap();
                let diverged = verdict.diverged.expect("the byte is found");
                assert_eq!(diverged.piece, 3210 / PIECE_BYTES as u64);
                assert_eq!(diverged.replicas, ReplicaSet::of([odd]));
                assert_eq!(verdict.agreed, 3000);
            }
        }
    }

    #[test]
    fn a_replica_far_behind_is_compared_when_it_has_caught_up() {
        let sent = vec![3; PIECE_BYTES * (PIECES_KEPT + 10)];
        let mut check = OutputCheck::default();
        let reports = pieces(&sent, PIECE_BYTES);
        for piece in &reports {
            check.report(R[0], *piece);
        }
        check.report(R[1], reports[0]);
        assert_eq!(check.verdict(7).unwrap().agreed, 0, "too long ago");
        check.report(R[1], *reports.last().unwrap());
        assert_eq!(check.verdict(7).unwrap().agreed, sent.len() as u64);
    }

    #[test]
    fn memory_is_bounded() {
        let mut check = OutputCheck::default();
        let mut hasher = OutputHasher::default();
        let mut done = Vec::new();
        for stream in 0..3 * STREAMS_MAX as u64 {
            hasher.record(stream, &[0; PIECE_BYTES], &mut done);
        }
        for piece in done {
            check.report(R[0], piece);
        }
        assert_eq!(hasher.streams.len(), STREAMS_MAX);
        assert_eq!(check.streams.len(), STREAMS_MAX);
        assert!(check.verdict(0).is_none(), "the oldest went first");
    }

    proptest! {
        /// However the bytes were cut into calls, and whatever stands elsewhere.
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
            let verdict = check.verdict(7).unwrap();
            let first = bytes.iter().zip(&other).position(|(a, b)| a != b);
            let found = verdict.diverged.map(|it| it.piece);
            prop_assert_eq!(found, first.map(|at| (at / PIECE_BYTES) as u64));
            let agreed = first.map_or(bytes.len(), |at| at / PIECE_BYTES * PIECE_BYTES);
            prop_assert_eq!(verdict.agreed, agreed as u64);
        }
    }
}
