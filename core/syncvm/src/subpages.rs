//! Of a divergent page only the subpages that differ travel (docs/decisions/0014).
//!
//! Two replicas that did the same work differ only in a few words of a page: a time stamp, a counter, a
//! pointer. So once the divergent pages are known, both sides hash their subpages, and only subpages with
//! different hashes are sent.
//!
//! A subpage's hash has 64 bits. They only select the subpages to send of a page that 128 bits have shown to
//! differ. A guest that does not see the key makes two different subpages look the same with a chance of one
//! in 2^64 a subpage (docs/decisions/0055), and a page in which no subpage seems to differ is sent whole.

use plover_types::{PageNo, SUBPAGE_BYTES, SUBPAGES_PER_PAGE};

/// Pages whose subpage hashes a leader asks for at most. More divergent pages are sent whole: their hashes would be 1 MiB
/// and more, and a slot that leaves so many has not changed them by a few bytes each.
pub const PAGES_ASKED_MAX: usize = 8192;

/// A set of subpages of one page: bit n is subpage n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubpageMask(pub u64);

impl SubpageMask {
    /// Every subpage.
    pub const ALL: Self = Self(u64::MAX >> (64 - SUBPAGES_PER_PAGE));

    /// How many subpages.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether it names no subpage.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The byte ranges of its subpages in the page, rising.
    pub fn ranges(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..SUBPAGES_PER_PAGE)
            .filter(move |subpage| (self.0 >> subpage) & 1 == 1)
            .map(|subpage| subpage * SUBPAGE_BYTES..(subpage + 1) * SUBPAGE_BYTES)
    }
}

/// The subpages that differ in each of `pages` divergent pages, by both sides' hashes of all their subpages,
/// page after page. `None` if the lists are not of one length, which a correct peer never sends.
pub fn compare_subpages(pages: usize, ours: &[u64], theirs: &[u64]) -> Option<Vec<SubpageMask>> {
    let count = pages * SUBPAGES_PER_PAGE;
    if ours.len() != count || theirs.len() != count {
        return None;
    }
    let pairs = ours
        .chunks_exact(SUBPAGES_PER_PAGE)
        .zip(theirs.chunks_exact(SUBPAGES_PER_PAGE));
    let masks = pairs.map(|(ours, theirs)| {
        let differ = ours.iter().zip(theirs).map(|(a, b)| u64::from(a != b));
        let mask = SubpageMask(differ.rev().fold(0, |mask, bit| (mask << 1) | bit));
        // The page is known to differ. If no subpage shows it, two hashes are equal by chance.
        if mask.is_empty() {
            SubpageMask::ALL
        } else {
            mask
        }
    });
    Some(masks.collect())
}

/// A divergent page and its subpages that differ.
pub type Divergent = (PageNo, SubpageMask);

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::PAGE_BYTES;

    #[test]
    fn masks_name_exactly_the_subpages_that_differ() {
        let ours: Vec<u64> = (0..2 * SUBPAGES_PER_PAGE as u64).collect();
        let mut theirs = ours.clone();
        theirs[0] = 99;
        theirs[SUBPAGES_PER_PAGE - 1] = 99;
        let masks = compare_subpages(2, &ours, &theirs).unwrap();
        assert_eq!(masks[0], SubpageMask(1 | (1 << (SUBPAGES_PER_PAGE - 1))));
        assert_eq!(masks[0].len(), 2);
        let ranges: Vec<_> = masks[0].ranges().collect();
        assert_eq!(
            ranges,
            [0..SUBPAGE_BYTES, PAGE_BYTES - SUBPAGE_BYTES..PAGE_BYTES]
        );
        assert_eq!(
            masks[1],
            SubpageMask::ALL,
            "it differs, though no hash says where"
        );
        assert_eq!(compare_subpages(2, &ours, &theirs[1..]), None);
        assert_eq!(SubpageMask::ALL.ranges().count(), SUBPAGES_PER_PAGE);
    }
}
