//! The immediate data of a write: 32 bits, all that InfiniBand carries.
//!
//! ```text
//!    31   30                                             0
//!   ┌────┬────────────────────────────────────────────────┐
//!   │kind│ a position in units of 8 bytes, modulo 2^31    │
//!   └────┴────────────────────────────────────────────────┘
//!     0   written: this write ends at that position of the ring
//!     1   read: the reader has consumed up to there (a credit)
//! ```
//!
//! Records start at multiples of 8 and a ring has at most 2^30 bytes, so a position modulo 2^34
//! is enough to find the whole of it between two bounds that lie less than a ring apart. A
//! position is in the immediate data and not in a cell of memory, because a fabric may tear a
//! write: half of an old and half of a new number would pass for a number.
//!
//! A doorbell is a *hint*. Nothing in the ring is believed because of it.

use crate::ring::Position;

const UNIT: u64 = 8;
const CREDIT: u32 = 1 << 31;
const MARK: u32 = CREDIT - 1;

/// The low bits of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    fn of(position: Position) -> Self {
        Self((position.0 / UNIT) as u32 & MARK)
    }

    /// The position between `low` and `high`, both included, that has these low bits. `None` if
    /// there is none: the doorbell is late, or not of a correct peer.
    pub fn between(self, low: Position, high: Position) -> Option<Position> {
        let start = low.0 / UNIT;
        let ahead = self.0.wrapping_sub(start as u32) & MARK;
        let found = Position((start + u64::from(ahead)) * UNIT);
        (low <= found && found <= high).then_some(found)
    }
}

/// The meaning of a write's immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// The peer has written our ring up to here.
    Written(Mark),
    /// The peer has consumed what we wrote up to here.
    Read(Mark),
}

impl Doorbell {
    pub fn written(to: Position) -> u32 {
        Mark::of(to).0
    }

    pub fn read(to: Position) -> u32 {
        Mark::of(to).0 | CREDIT
    }

    pub fn decode(immediate: u32) -> Self {
        let mark = Mark(immediate & MARK);
        if immediate & CREDIT == 0 {
            Self::Written(mark)
        } else {
            Self::Read(mark)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_position_is_found_again(low in 0u64..1 << 40, ahead in 0u64..1 << 27, more in 0u64..1 << 27) {
            let low = low * UNIT;
            let position = Position(low + ahead * UNIT);
            let high = Position(position.0 + more * UNIT);
            let Doorbell::Written(mark) = Doorbell::decode(Doorbell::written(position)) else {
                panic!("another kind");
            };
            prop_assert_eq!(mark.between(Position(low), high), Some(position));
            let Doorbell::Read(mark) = Doorbell::decode(Doorbell::read(position)) else {
                panic!("another kind");
            };
            prop_assert_eq!(mark.between(Position(low), high), Some(position));
        }

        #[test]
        fn what_is_found_lies_between(immediate: u32, low in 0u64..1 << 40, ring in 0u64..1 << 27) {
            let (low, high) = (Position(low * UNIT), Position((low + ring) * UNIT));
            let (Doorbell::Written(mark) | Doorbell::Read(mark)) = Doorbell::decode(immediate);
            if let Some(found) = mark.between(low, high) {
                prop_assert!(low <= found && found <= high && found.0 % UNIT == 0);
            }
        }

        #[test]
        fn a_late_one_is_not_found(low in 1u64 << 20..1 << 40, behind in 1u64..1 << 20, ring in 0u64..1 << 27) {
            let late = Position((low - behind) * UNIT);
            let Doorbell::Written(mark) = Doorbell::decode(Doorbell::written(late)) else {
                panic!("another kind");
            };
            prop_assert_eq!(mark.between(Position(low * UNIT), Position((low + ring) * UNIT)), None);
        }
    }
}
