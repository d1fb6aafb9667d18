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

fn verdict_on(check: &OutputCheck, stream: u64) -> Option<Verdict> {
    check.verdicts().find(|it| it.stream == stream)
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
    let verdict = verdict_on(&check, 7).unwrap();
    assert_eq!((verdict.agreed, verdict.diverged), (4000, None));
    assert_eq!(verdict.reported_by, ReplicaSet::of(R));
    assert_eq!(verdict_on(&check, 8), None);
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
            let verdict = verdict_on(&check, 7).unwrap();
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
    assert_eq!(verdict_on(&check, 7).unwrap().agreed, 0, "too long ago");
    check.report(R[1], *reports.last().unwrap());
    assert_eq!(verdict_on(&check, 7).unwrap().agreed, sent.len() as u64);
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
    assert!(verdict_on(&check, 0).is_none(), "the oldest went first");
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
        let verdict = verdict_on(&check, 7).unwrap();
        let first = bytes.iter().zip(&other).position(|(a, b)| a != b);
        let found = verdict.diverged.map(|it| it.piece);
        prop_assert_eq!(found, first.map(|at| (at / PIECE_BYTES) as u64));
        let agreed = first.map_or(bytes.len(), |at| at / PIECE_BYTES * PIECE_BYTES);
        prop_assert_eq!(verdict.agreed, agreed as u64);
    }
}
