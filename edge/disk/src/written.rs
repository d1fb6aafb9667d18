//! The set of blocks that a guest has written since the last scan.
//!
//! A bitmap with two levels: a bit for each block, and a bit for each 64 of those. So the cost of a scan
//! depends on how much was written, not on the size of the disk.
//!
//! A block is noted *after* it was written and before the guest's request is answered. If it were noted
//! before the write, a scan in between would clear the note and read the old content, and the new content
//! would never be synced. For the same reason the upper bit is set after the lower one.

use plover_types::{PageNo, PageSet};
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The written blocks of one image.
#[derive(Debug)]
pub(crate) struct Written {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
    /// Bits set in `words`.
    /// Below zero for a moment when a note is taken before it is counted.
    count: AtomicI64,
}

impl Written {
    pub(crate) fn new(blocks: u32) -> Self {
        let words = (blocks as usize).div_ceil(64);
        let zeroes = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: zeroes(words),
            summary: zeroes(words.div_ceil(64)),
            count: AtomicI64::new(0),
        }
    }

    /// Notes `blocks`, which were written.
    pub(crate) fn note(&self, blocks: Range<u32>) {
        for block in blocks {
            let (word, bit) = (block as usize / 64, 1 << (block % 64));
            if self.words[word].fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::AcqRel);
        }
    }

    /// How many blocks are noted.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed).max(0) as u32
    }

    /// Moves the notes into `set`; block 0 is the page `base`.
    pub(crate) fn take(&self, base: PageNo, set: &mut PageSet) {
        for (i, upper) in self.summary.iter().enumerate() {
            let mut rest = upper.swap(0, Ordering::AcqRel);
            while rest != 0 {
                let word = i * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let mut bits = self.words[word].swap(0, Ordering::AcqRel);
                let taken = i64::from(bits.count_ones());
                self.count.fetch_sub(taken, Ordering::Relaxed);
                while bits != 0 {
                    let block = word as u32 * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    set.insert(PageNo(base.0 + block));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a simple model, with scans in between.
        #[test]
        fn every_block_is_told_once(ops in prop::collection::vec((0u32..9000, 0u32..80, any::<bool>()), 0..40)) {
            let written = Written::new(9000);
            let mut twin = BTreeSet::new();
            for (start, len, scan) in ops {
                let end = (start + len).min(9000);
                written.note(start..end);
                twin.extend(start + 7..end + 7);
                prop_assert_eq!(written.count() as usize, twin.len());
                if scan {
                    let mut set = PageSet::new(9007);
                    written.take(PageNo(7), &mut set);
                    prop_assert_eq!(set.iter().map(|p| p.0).collect::<Vec<_>>(), twin.iter().copied().collect::<Vec<_>>());
                    twin.clear();
                }
            }
        }
    }

    /// A note made while another thread scans is in that scan or in the next.
    #[test]
    fn a_scan_beside_writers_loses_nothing() {
        const BLOCKS: u32 = 50_000;
        let written = Written::new(BLOCKS);
        let mut all = PageSet::new(BLOCKS);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|half| {
                    let written = &written;
                    scope.spawn(move || {
                        (half..BLOCKS)
                            .step_by(2)
                            .for_each(|b| written.note(b..b + 1))
                    })
                })
                .collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                written.take(PageNo(0), &mut all);
            }
        });
        written.take(PageNo(0), &mut all);
        assert_eq!(all.len(), BLOCKS);
        assert_eq!(written.count(), 0);
    }
}
