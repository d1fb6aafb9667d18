//! Sets of guest pages.

use crate::PageNo;
use serde::{Deserialize, Serialize};

/// A set of pages of one guest, as a bitmap over all of its pages. This is the form of dirty
/// pages, of the union of two sides' dirty pages, and of debt.
///
/// A second bitmap says which words of the first are not zero, so that sets of few pages of a large guest
/// are joined, counted and listed in the time that these pages take: of 64 GiB it has 32 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
    /// Bit n is set if, and only if, word n is not zero.
    used: Vec<u64>,
    pages: u32,
}

/// The places of the bits of `word`, rising.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

/// The bits of a word from place `first` on, which is below 64.
fn from_bit(first: usize) -> u64 {
    u64::MAX << first
}

impl PageSet {
    /// The empty set over a guest of `pages` pages.
    pub fn new(pages: u32) -> Self {
        let words = (pages as usize).div_ceil(64);
        Self {
            words: vec![0; words],
            used: vec![0; words.div_ceil(64)],
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
        self.add(page.0 as usize / 64, 1 << (page.0 % 64));
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
            self.add(word, mask & (u64::MAX << low));
            page += high - low;
        }
    }

    /// Adds the pages `mask` of this word, which are not none.
    fn add(&mut self, word: usize, mask: u64) {
        self.words[word] |= mask;
        self.used[word / 64] |= 1 << (word % 64);
    }

    /// Takes the pages `mask` of this word out.
    fn take(&mut self, word: usize, mask: u64) {
        self.words[word] &= !mask;
        if self.words[word] == 0 {
            self.used[word / 64] &= !(1 << (word % 64));
        }
    }

    /// Takes one page out.
    pub fn remove(&mut self, page: PageNo) {
        if page.0 < self.pages {
            self.take(page.0 as usize / 64, 1 << (page.0 % 64));
        }
    }

    /// Whether `page` is a member.
    pub fn contains(&self, page: PageNo) -> bool {
        page.0 < self.pages && self.words[page.0 as usize / 64] & (1 << (page.0 % 64)) != 0
    }

    /// Adds every page of `other`. Both must be sets over the same guest.
    pub fn union_with(&mut self, other: &Self) {
        assert_eq!(self.pages, other.pages, "sets over different guests");
        for (word, members) in other.words_from(0) {
            self.add(word, members);
        }
    }

    /// Takes every page of `other` out. Both must be sets over the same guest.
    pub fn subtract(&mut self, other: &Self) {
        assert_eq!(self.pages, other.pages, "sets over different guests");
        for (word, members) in other.words_from(0) {
            self.take(word, members);
        }
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        for (at, used) in self.used.iter_mut().enumerate() {
            for bit in bits(std::mem::take(used)) {
                self.words[at * 64 + bit as usize] = 0;
            }
        }
    }

    /// How many pages are members.
    pub fn len(&self) -> u32 {
        let counts = self.words_from(0).map(|(_, members)| members.count_ones());
        counts.sum()
    }

    /// Whether no page is a member.
    pub fn is_empty(&self) -> bool {
        self.used.iter().all(|used| *used == 0)
    }

    /// The words that are not zero, from word `first` on, with their places.
    fn words_from(&self, first: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let start = first / 64;
        let used = self.used.iter().enumerate().skip(start);
        used.flat_map(move |(at, used)| {
            let from = if at == start { first % 64 } else { 0 };
            bits(used & from_bit(from)).map(move |bit| at * 64 + bit as usize)
        })
        .map(|word| (word, self.words[word]))
    }

    /// The members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = PageNo> + '_ {
        self.iter_from(PageNo(0))
    }

    /// The members from `first` on, in rising order.
    pub fn iter_from(&self, first: PageNo) -> impl Iterator<Item = PageNo> + '_ {
        let start = first.0 as usize / 64;
        self.words_from(start).flat_map(move |(word, members)| {
            let from = if word == start { first.0 % 64 } else { 0 };
            bits(members & from_bit(from as usize)).map(move |bit| PageNo(word as u32 * 64 + bit))
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

    /// More than two words of the second bitmap stand for.
    const PAGES: u32 = 2 * 64 * 64 + 500;

    proptest! {
        /// The bitmap against a dumb twin.
        #[test]
        fn page_set_is_a_set(ops in prop::collection::vec((0..PAGES, 0u32..300, 0..7u8), 0..60)) {
            let mut fast = PageSet::new(PAGES);
            let mut slow = BTreeSet::new();
            for (start, length, what) in ops {
                let end = (start + length).min(PAGES);
                let mut other = PageSet::new(PAGES);
                other.insert_run(start, end);
                match what {
                    0 => {
                        fast.remove(PageNo(start));
                        slow.remove(&start);
                    }
                    1 => {
                        fast.subtract(&other);
                        slow.retain(|page| !(start..end).contains(page));
                    }
                    2 => {
                        fast.union_with(&other);
                        slow.extend(start..end);
                    }
                    3 if length < 30 => {
                        fast.clear();
                        slow.clear();
                    }
                    _ => {
                        fast.insert_run(start, end);
                        slow.extend(start..end);
                    }
                }
                prop_assert_eq!(fast.len() as usize, slow.len());
                prop_assert_eq!(fast.is_empty(), slow.is_empty());
            }
            prop_assert_eq!(fast.iter().map(|p| p.0).collect::<Vec<_>>(), slow.iter().copied().collect::<Vec<_>>());
            for from in [0, 1, 63, 64, 250, 4095, 4096, 4097, 8500, PAGES - 1, PAGES, PAGES + 200, u32::MAX] {
                let rest = slow.range(from..).copied().collect::<Vec<_>>();
                prop_assert_eq!(fast.iter_from(PageNo(from)).map(|p| p.0).collect::<Vec<_>>(), rest);
            }
            // Equal members make equal sets, whatever way they came.
            prop_assert_eq!(fast.to_runs().to_set(PAGES), Some(fast));
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
