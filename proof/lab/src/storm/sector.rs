//! The content of a sector of a write: the counterpart of `fill` in
//! `guests/tools/plover-storm-server.c`.

use plover_types::SplitMix64;
use std::fmt;

/// Bytes in a sector: the least that a disk writes as a whole.
pub const SECTOR_BYTES: usize = 512;

const MAGIC: &[u8; 8] = b"PLVSTORM";

/// The content of a sector on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// The content of write number *n*.
    Write(u64),
    /// Of no write at this place: damaged, misplaced, or never written.
    Foreign,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(number) => write!(f, "{number}"),
            Self::Foreign => f.write_str("?"),
        }
    }
}

/// The content of sector `place` of write `number`.
pub fn content(number: u64, place: u64) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    let mut rest = SplitMix64::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ place);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&match index {
            0 => *MAGIC,
            1 => number.to_le_bytes(),
            2 => place.to_le_bytes(),
            _ => rest.next_u64().to_le_bytes(),
        });
    }
    bytes
}

/// Finds the write that sector `place` is of.
pub fn identify(bytes: &[u8], place: u64) -> Found {
    let number = bytes.get(8..16).and_then(|word| word.try_into().ok());
    match number.map(u64::from_le_bytes) {
        Some(number) if bytes == content(number, place) => Found::Write(number),
        _ => Found::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_or_another_place_makes_it_foreign() {
        let good = content(7, 123);
        assert_eq!(identify(&good, 123), Found::Write(7));
        assert_eq!(identify(&good, 124), Found::Foreign);
        for index in 0..SECTOR_BYTES {
            let mut bad = good;
            bad[index] ^= 1 << (index % 8);
            assert_eq!(identify(&bad, 123), Found::Foreign, "byte {index}");
        }
        assert_eq!(identify(&[0; SECTOR_BYTES], 0), Found::Foreign);
        assert_eq!(identify(&good[..100], 123), Found::Foreign);
    }
}
