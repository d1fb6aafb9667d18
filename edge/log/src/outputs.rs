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
mod tests;
