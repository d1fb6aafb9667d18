//! Of a divergent page only the blocks that differ travel (docs/decisions/0014).
//!
//! Two replicas that did the same work differ only in a few words of a page: a time stamp, a counter, a
//! pointer. So once the divergent pages are known, both sides hash their blocks, and only blocks with
//! different hashes are sent.
//!
//! A block's hash has 64 bits of the same keyed hash as a page's. They only select the blocks to send of
//! a page that 128 bits have shown to differ. A guest that does not see the key makes two different
//! blocks look the same with a chance of one in 2^64 a block, and a page in which no block seems to
//! differ is sent whole.

use plover_types::{PageNo, SUBPAGE_BYTES, SUBPAGES_PER_PAGE};

/// Which blocks of a page: bit n is block n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMask(pub u64);

impl BlockMask {
    /// Every block.
    pub const ALL: Self = Self(u64::MAX >> (64 - SUBPAGES_PER_PAGE));

    /// How many blocks.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether it names no block.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The byte ranges of its blocks in the page, rising.
    pub fn ranges(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..SUBPAGES_PER_PAGE)
            .filter(move |block| self.0 >> block & 1 == 1)
            .map(|block| block * SUBPAGE_BYTES..(block + 1) * SUBPAGE_BYTES)
    }
}

/// The blocks that differ in each of `pages` divergent pages, by both sides' hashes of all their blocks,
/// page after page. `None` if the lists are not of one length, which a correct peer never sends.
pub fn compare_blocks(pages: usize, ours: &[u64], theirs: &[u64]) -> Option<Vec<BlockMask>> {
    let count = pages * SUBPAGES_PER_PAGE;
    if ours.len() != count || theirs.len() != count {
        return None;
    }
    let pairs = ours
        .chunks_exact(SUBPAGES_PER_PAGE)
        .zip(theirs.chunks_exact(SUBPAGES_PER_PAGE));
    let masks = pairs.map(|(ours, theirs)| {
        let differ = ours.iter().zip(theirs).map(|(a, b)| u64::from(a != b));
        let mask = BlockMask(differ.rev().fold(0, |mask, bit| mask << 1 | bit));
        // The page is known to differ. If no block shows it, two hashes are equal by chance.
        if mask.is_empty() {
            BlockMask::ALL
        } else {
            mask
        }
    });
    Some(masks.collect())
}

/// A divergent page and its blocks that differ.
pub type Divergent = (PageNo, BlockMask);

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::PAGE_BYTES;

    #[test]
    fn masks_name_exactly_what_differs() {
        let ours: Vec<u64> = (0..2 * SUBPAGES_PER_PAGE as u64).collect();
        let mut theirs = ours.clone();
        theirs[0] = 99;
        theirs[SUBPAGES_PER_PAGE - 1] = 99;
        let masks = compare_blocks(2, &ours, &theirs).unwrap();
        assert_eq!(masks[0], BlockMask(1 | 1 << (SUBPAGES_PER_PAGE - 1)));
        assert_eq!(masks[0].len(), 2);
        let ranges: Vec<_> = masks[0].ranges().collect();
        assert_eq!(
            ranges,
            [0..SUBPAGE_BYTES, PAGE_BYTES - SUBPAGE_BYTES..PAGE_BYTES]
        );
        assert_eq!(
            masks[1],
            BlockMask::ALL,
            "it differs, though no hash says where"
        );
        assert_eq!(compare_blocks(2, &ours, &theirs[1..]), None);
        assert_eq!(BlockMask::ALL.ranges().count(), SUBPAGES_PER_PAGE);
    }
}
