//! The options of a TCP header, as places in its bytes (RFC 9293 §3.1).

use std::ops::Range;

/// The most bytes that options can have: a header has at most 15 words, and 5 are fixed.
pub(crate) const OPTIONS_MAX: usize = 40;

/// Option kinds.
pub(crate) const SACK: u8 = 5;
pub(crate) const TIMESTAMPS: u8 = 8;
pub(crate) const MPTCP: u8 = 30;
/// Signatures over the segment (RFC 2385, RFC 5925). Only the two ends could change its numbers.
pub(crate) const SIGNATURES: [u8; 2] = [19, 29];

const END: u8 = 0;
const NOTHING: u8 = 1;

/// Each option's kind, and the place of the bytes after its kind and length. Ends at the first
/// malformed option.
pub(crate) fn walk(bytes: &[u8]) -> impl Iterator<Item = (u8, Range<usize>)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        while bytes.get(at) == Some(&NOTHING) {
            at += 1;
        }
        let kind = *bytes.get(at).filter(|kind| **kind != END)?;
        let length = usize::from(*bytes.get(at + 1)?);
        let place = at + 2..at + length;
        if length < 2 || place.end > bytes.len() {
            return None;
        }
        at = place.end;
        Some((kind, place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_at_any_place() {
        let bytes = [
            1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 8, 10, 9, 9, 9, 9, 7, 7, 7, 7, 0, 3,
        ];
        let found: Vec<_> = walk(&bytes).collect();
        assert_eq!(found, [(SACK, 4..12), (TIMESTAMPS, 14..22)]);
    }

    #[test]
    fn nonsense_ends_the_walk() {
        for bytes in [&[2][..], &[2, 0], &[2, 1, 9], &[2, 9, 1], &[]] {
            assert_eq!(walk(bytes).count(), 0, "{bytes:?}");
        }
    }
}
