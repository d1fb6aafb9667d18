//! Whether pages are hashed before the pause, and when that begins.
//!
//! What is hashed while the guests run need not be hashed while they stand, unless it is written
//! again. That costs a second scan on each side, a fault for each page that is written again, and
//! the hashes of those for nothing. So it begins late in the slot, when most of what will be
//! written has been; only in slots that are long and write much; and only while enough of the
//! hashes turn out to be of use.

use plover_types::Micros;

/// Of the slot's usual length, how much passes before the early scan: 3/4. What is written in the
/// last quarter is left to the pause, and a quarter of the shortest slot in question, 2 ms, is time
/// to hash some thousand pages.
const BEGINS_AT: (u64, u64) = (3, 4);

/// Fewer of the early hashes than this part, of 1024, are not worth their making: as many again are
/// then made for nothing.
const KEPT_MIN_1024: u32 = 512;

/// Slots between two tries where it did not pay.
const TRY_EVERY: u32 = 64;

/// What early work is worth the while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyConfig {
    /// Whether there is any.
    pub on: bool,
    /// Not in slots that are usually shorter.
    pub slot_min: Micros,
    /// Not in slots that usually dirty fewer pages, on both sides together.
    pub pages_min: u32,
    /// How many pages are hashed in one go, between two looks at what else has happened.
    pub step_pages: u32,
}

impl Default for EarlyConfig {
    /// 256 pages take a core 0.1 to 0.2 ms on either side, and as much again for their part of the
    /// exchange, which is what the early scan takes: with 400 of them pauses were found to be shorter.
    /// Off, since requests a second were not found to be more (docs/decisions/0019). 128 pages at a time keep a frame waiting for less than 0.1 ms.
    fn default() -> Self {
        Self {
            on: false,
            slot_min: Micros::from_ms(8),
            pages_min: 256,
            step_pages: 128,
        }
    }
}

/// Decides when early work begins, and learns from each sync what it was worth.
#[derive(Clone, Debug)]
pub struct EarlyRule {
    config: EarlyConfig,
    /// Smoothed, of the last slots.
    slot: Micros,
    pages: u32,
    /// Of the early hashes, those that were of use, of 1024; smoothed.
    kept_1024: u32,
    syncs: u32,
}

/// How many early hashes were made in a slot, and how many of them were of use in its sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyFound {
    /// Made.
    pub made: u32,
    /// Of use.
    pub kept: u32,
}

impl EarlyRule {
    /// A rule before anything was learnt.
    pub fn new(config: EarlyConfig) -> Self {
        Self {
            config,
            slot: Micros::ZERO,
            pages: 0,
            kept_1024: 1024,
            syncs: 0,
        }
    }

    /// The age at which this slot's early scan is due, if there is to be one.
    pub fn begins_at(&self) -> Option<Micros> {
        let EarlyConfig {
            on,
            slot_min,
            pages_min,
            ..
        } = self.config;
        let pays = self.kept_1024 >= KEPT_MIN_1024 || self.syncs % TRY_EVERY == 0;
        let worth = on && self.slot >= slot_min && self.pages >= pages_min && pays;
        worth.then_some(Micros(self.slot.0 * BEGINS_AT.0 / BEGINS_AT.1))
    }

    /// Learns from a finished sync: how long its slot was, how many pages both sides had written,
    /// and what became of the early hashes, where there were some.
    pub fn learn(&mut self, slot: Micros, pages: u32, found: Option<EarlyFound>) {
        self.syncs = self.syncs.wrapping_add(1);
        let first = self.slot == Micros::ZERO;
        let smooth = |old: u64, new: u64| if first { new } else { (old * 7 + new) / 8 };
        self.slot = Micros(smooth(self.slot.0, slot.0));
        self.pages = smooth(self.pages.into(), pages.into()) as u32;
        if let Some(EarlyFound { made, kept }) = found.filter(|found| found.made > 0) {
            let share = u64::from(kept.min(made)) * 1024 / u64::from(made);
            self.kept_1024 = ((u64::from(self.kept_1024) * 3 + share) / 4) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Micros = Micros::from_ms(20);

    const ON: EarlyConfig = EarlyConfig {
        on: true,
        slot_min: Micros::from_ms(8),
        pages_min: 256,
        step_pages: 128,
    };

    fn found(made: u32, kept: u32) -> Option<EarlyFound> {
        Some(EarlyFound { made, kept })
    }

    #[test]
    fn only_long_slots_that_write_much_begin_early() {
        let rule = |slot, pages| {
            let mut rule = EarlyRule::new(ON);
            (0..20).for_each(|_| rule.learn(slot, pages, None));
            rule.begins_at()
        };
        assert_eq!(rule(LONG, 2000), Some(Micros::from_ms(15)));
        assert_eq!(rule(Micros::from_ms(5), 2000), None);
        assert_eq!(rule(LONG, 150), None);
        let mut rule = EarlyRule::new(EarlyConfig { on: false, ..ON });
        rule.learn(LONG, 2000, None);
        assert_eq!(rule.begins_at(), None);
    }

    /// A guest that writes the same pages over and over gets nothing from it; one that has changed
    /// its ways is found out.
    #[test]
    fn hashes_for_nothing_are_given_up_and_tried_again() {
        let mut rule = EarlyRule::new(ON);
        let mut tries = |kept: u32| {
            let mut tries = 0;
            for _ in 0..1000 {
                let begins = rule.begins_at().is_some();
                tries += u32::from(begins);
                rule.learn(LONG, 2000, found(1000, kept).filter(|_| begins));
            }
            tries
        };
        let in_vain = tries(100);
        assert!((10..30).contains(&in_vain), "{in_vain}");
        let of_use = tries(900);
        assert!(of_use > 700, "{of_use}");
    }
}
