//! Sets of guest pages.

use crate::PageNo;
use serde::{Deserialize, Serialize};

/// A set of pages of one guest, as a bitmap over all of its pages. This is the form of dirty
/// pages, of the union of two sides' dirty pages, and of debt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
    pages: u32,
}

impl PageSet {
    /// The empty set over a guest of `pages` pages.
    pub fn new(pages: u32) -> Self {
        Self {
            words: vec![0; (pages as usize).div_ceil(64)],
            pages,
        }
    }

    /// Every page of a guest of `pages` pages.
    pub fn all(pages: u32) -> Self {
        let mut set = Self::new(pages);
        set.insert_run(0, pages);
        set
    }

    /// How many pages the guest has (the bound of every member).
    pub fn capacity(&self) -> u32 {
        self.pages
    }

    /// Adds one page. Asserts that it lies in the guest.
    pub fn insert(&mut self, page: PageNo) {
        assert!(
            page.0 < self.pages,
            "page {} outside a guest of {} pages",
            page.0,
            self.pages
        );
        self.words[page.0 as usize / 64] |= 1 << (page.0 % 64);
    }

    /// Adds `start..end`. Asserts that it lies in the guest.
    pub fn insert_run(&mut self, start: u32, end: u32) {
        assert!(
            start <= end && end <= self.pages,
            "run {start}..{end} outside {} pages",
            self.pages
        );
        let mut page = start;
        while page < end {
            let word = (page / 64) as usize;
            let low = page % 64;
            let high = (end - (page - low)).min(64);
            let mask = if high == 64 {
                u64::MAX
            } else {
                (1 << high) - 1
            };
            self.words[word] |= mask & (u64::MAX << low);
            page += high - low;
        }
    }

    /// Takes one page out.
    pub fn remove(&mut self, page: PageNo) {
        if page.0 < self.pages {
            self.words[page.0 as usize / 64] &= !(1 << (page.0 % 64));
        }
    }

    /// Whether `page` is a member.
    pub fn contains(&self, page: PageNo) -> bool {
        page.0 < self.pages && self.words[page.0 as usize / 64] & (1 << (page.0 % 64)) != 0
    }

    /// Adds every page of `other`. Both must be sets over the same guest.
    pub fn union_with(&mut self, other: &Self) {
        assert_eq!(self.pages, other.pages, "sets over different guests");
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a |= b;
        }
    }

    /// Takes every page of `other` out. Both must be sets over the same guest.
    pub fn subtract(&mut self, other: &Self) {
        assert_eq!(self.pages, other.pages, "sets over different guests");
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a &= !b;
        }
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// How many pages are members.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether no page is a member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// The members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = PageNo> + '_ {
        self.iter_from(PageNo(0))
    }

    /// The members from `first` on, in rising order.
    pub fn iter_from(&self, first: PageNo) -> impl Iterator<Item = PageNo> + '_ {
        let start = first.0 as usize / 64;
        let words = self.words.iter().enumerate().skip(start);
        words.flat_map(move |(i, word)| {
            let below = if i == start { first.0 % 64 } else { 0 };
            let mut rest = *word & (u64::MAX << below);
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(PageNo(i as u32 * 64 + bit))
            })
        })
    }

    /// The wire form: runs of neighbouring pages.
    pub fn to_runs(&self) -> Runs {
        Runs::of_rising(self.iter())
    }
}

/// A page set on the wire: `(first page, number of pages)`, rising and not touching each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs(pub Vec<(u32, u32)>);

impl Runs {
    /// The runs of `pages`, which rise.
    pub fn of_rising(pages: impl IntoIterator<Item = PageNo>) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut previous_end = 0;
        for page in pages {
            match runs.last_mut() {
                Some((_, len)) if previous_end == page.0 => *len += 1,
                _ => runs.push((page.0, 1)),
            }
            previous_end = page.0 + 1;
        }
        Self(runs)
    }

    /// The set over a guest of `pages` pages, or `None` if a run lies outside of it, or the runs do not rise.
    pub fn to_set(&self, pages: u32) -> Option<PageSet> {
        let mut set = PageSet::new(pages);
        let mut before = 0;
        for &(start, len) in &self.0 {
            let end = start.checked_add(len)?;
            // A list of a million whole memories would take minutes.
            if start < before || len == 0 || end > pages {
                return None;
            }
            set.insert_run(start, end);
            before = end;
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The bitmap against a dumb twin.
        #[test]
        fn page_set_is_a_set(ops in prop::collection::vec((0u32..500, 0u32..500, any::<bool>()), 0..60)) {
            let mut fast = PageSet::new(500);
            let mut slow = BTreeSet::new();
            for (a, b, add) in ops {
                let (start, end) = (a.min(b), a.max(b));
                if add {
                    fast.insert_run(start, end);
                    slow.extend(start..end);
                } else {
                    fast.remove(PageNo(a));
                    slow.remove(&a);
                }
                prop_assert_eq!(fast.len() as usize, slow.len());
            }
            prop_assert_eq!(fast.iter().map(|p| p.0).collect::<Vec<_>>(), slow.iter().copied().collect::<Vec<_>>());
            for from in [0, 1, 63, 64, 250, 499, 500, 700] {
                let rest = slow.range(from..).copied().collect::<Vec<_>>();
                prop_assert_eq!(fast.iter_from(PageNo(from)).map(|p| p.0).collect::<Vec<_>>(), rest);
            }
            prop_assert_eq!(fast.to_runs().to_set(500), Some(fast));
        }
    }

    #[test]
    fn runs_outside_the_guest_are_rejected() {
        assert!(Runs(vec![(5, 6)]).to_set(10).is_none());
        assert!(Runs(vec![(u32::MAX, 2)]).to_set(10).is_none());
        assert!(Runs(vec![(5, 5)]).to_set(10).is_some());
    }

    #[test]
    fn runs_that_do_not_rise_are_rejected() {
        assert!(Runs(vec![(0, 3), (3, 2), (7, 1)]).to_set(10).is_some());
        for bad in [vec![(0, 10); 2], vec![(4, 2), (5, 1)], vec![(4, 0)]] {
            assert!(Runs(bad).to_set(10).is_none());
        }
    }
}
