//! Page hashes made before the pause, while the guest still runs.
//!
//! ```text
//!  early scan ─▶ hash, a step at a time ─▶ the pause's scan ─▶ hash the rest
//!    (owed)        a digest *stands* …       … unless this names its page
//! ```
//!
//! A digest stands as long as no scan after it has named its page, and nothing but the guest has
//! written to it. The first scan comes before the first digest, so a page that the guest writes
//! after it was hashed, or while it is, is named by the next scan. That holds for pages that were
//! never dirty as well: the other side's.

use plover_types::{Digest, PageNo, PageSet};
use std::collections::BTreeMap;

/// The digests that stand, and the pages that are to get one.
#[derive(Debug)]
pub struct EarlyHashes {
    key: [u8; 32],
    todo: PageSet,
    /// All pages before this one are done.
    done_before: PageNo,
    asked: Vec<PageNo>,
    /// Of those, the pages that a scan has named since.
    stale: Vec<PageNo>,
    digests: BTreeMap<PageNo, Digest>,
    made: u32,
}

/// Pages of which some digests are known.
#[derive(Debug)]
pub struct Partial {
    digests: Vec<Option<Digest>>,
    missing: Vec<PageNo>,
}

impl EarlyHashes {
    /// Of a guest of `pages` pages, under `key`. Its dirty bits must be cleared before the first
    /// page is hashed.
    pub fn new(pages: u32, key: [u8; 32]) -> Self {
        Self {
            key,
            todo: PageSet::new(pages),
            done_before: PageNo(0),
            asked: Vec::new(),
            stale: Vec::new(),
            digests: BTreeMap::new(),
            made: 0,
        }
    }

    /// The key of all digests.
    pub fn key(&self) -> [u8; 32] {
        self.key
    }

    /// These pages are to be hashed, unless they are already.
    pub fn want(&mut self, pages: &PageSet) {
        self.todo.union_with(pages);
        self.digests.keys().for_each(|page| self.todo.remove(*page));
        self.done_before = PageNo(0);
    }

    /// A scan has named these: they are written, and what was known of them is void. So is what will
    /// be known of a page that was asked for and is not yet answered: perhaps it was hashed before.
    pub fn written(&mut self, pages: &PageSet) {
        self.digests.retain(|page, _| !pages.contains(*page));
        self.todo.subtract(pages);
        let asked = self.asked.iter();
        self.stale
            .extend(asked.filter(|page| pages.contains(**page)));
    }

    /// Whether there are pages to hash.
    pub fn is_waiting(&self) -> bool {
        self.asked.is_empty() && self.todo.iter_from(self.done_before).next().is_some()
    }

    /// The next pages to hash, rising, at most `step`.
    pub fn next(&mut self, step: usize) -> Vec<PageNo> {
        self.asked = self.todo.iter_from(self.done_before).take(step).collect();
        for page in &self.asked {
            self.todo.remove(*page);
        }
        if let Some(last) = self.asked.last() {
            self.done_before = *last;
        }
        self.asked.clone()
    }

    /// The answer to [`Self::next`].
    pub fn hashed(&mut self, digests: Vec<Digest>) {
        let asked = std::mem::take(&mut self.asked);
        assert_eq!(asked.len(), digests.len(), "every page has a digest");
        self.made += asked.len() as u32;
        let stale = std::mem::take(&mut self.stale);
        let both = asked.into_iter().zip(digests);
        self.digests
            .extend(both.filter(|(page, _)| !stale.contains(page)));
    }

    /// How many digests were made in all.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// What is known of `pages`, which rise, under `key`.
    pub fn known(&self, key: &[u8; 32], pages: &[PageNo]) -> Partial {
        if *key != self.key {
            return Partial::unknown(pages);
        }
        let mut standing = self.digests.iter().peekable();
        let mut partial = Partial {
            digests: Vec::with_capacity(pages.len()),
            missing: Vec::new(),
        };
        for page in pages {
            while standing.next_if(|(known, _)| *known < page).is_some() {}
            let found = standing.next_if(|(known, _)| *known == page);
            if found.is_none() {
                partial.missing.push(*page);
            }
            partial.digests.push(found.map(|(_, digest)| *digest));
        }
        partial
    }
}

impl Partial {
    /// Of pages of which nothing is known.
    pub fn unknown(pages: &[PageNo]) -> Self {
        Self {
            digests: vec![None; pages.len()],
            missing: pages.to_vec(),
        }
    }

    /// The pages that are to be hashed, rising.
    pub fn missing(&self) -> &[PageNo] {
        &self.missing
    }

    /// How many digests are known.
    pub fn known(&self) -> u32 {
        (self.digests.len() - self.missing.len()) as u32
    }

    /// The digests of all pages, with those that were missing.
    pub fn complete(self, fresh: &[Digest]) -> Vec<Digest> {
        assert_eq!(self.missing.len(), fresh.len(), "every page has a digest");
        let mut fresh = fresh.iter();
        let take = |known: Option<Digest>| known.or_else(|| fresh.next().copied());
        self.digests.into_iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u32 = 24;
    const KEY: [u8; 32] = [7; 32];

    fn set(pages: &[u32]) -> PageSet {
        let mut set = PageSet::new(PAGES);
        pages.iter().for_each(|page| set.insert(PageNo(*page)));
        set
    }

    /// Hashes what is wanted of `memory`, `step` pages at a time.
    fn work(early: &mut EarlyHashes, memory: &[u128], step: usize) {
        let pages = early.next(step);
        let digests = pages.iter().map(|page| Digest(memory[page.0 as usize]));
        early.hashed(digests.collect());
    }

    #[test]
    fn what_is_written_after_its_hash_is_hashed_again() {
        let mut memory = [0; PAGES as usize];
        let mut early = EarlyHashes::new(PAGES, KEY);
        early.want(&set(&[1, 2, 5]));
        while early.is_waiting() {
            work(&mut early, &memory, 2);
        }
        assert_eq!(early.made(), 3);
        memory[2] = 9;
        early.written(&set(&[2]));
        let partial = early.known(&KEY, &[1, 2, 4, 5].map(PageNo));
        assert_eq!(partial.missing(), [PageNo(2), PageNo(4)]);
        assert_eq!(partial.known(), 2);
        let all = partial.complete(&[2, 4].map(|page| Digest(memory[page])));
        assert_eq!(all, [0, 9, 0, 0].map(Digest));
        assert_eq!(
            early.known(&[8; 32], &[PageNo(1)]).known(),
            0,
            "another key"
        );
    }

    proptest! {
        /// Whatever is written, scanned and hashed in whatever order: what is known is true.
        #[test]
        fn a_digest_that_stands_is_true(ops in prop::collection::vec((0u8..5, 0..PAGES), 0..120)) {
            let mut late: Option<Vec<Digest>> = None;
            let mut memory = [0u128; PAGES as usize];
            let mut dirty = set(&[]);
            let mut early = EarlyHashes::new(PAGES, KEY);
            for (time, (op, page)) in ops.into_iter().enumerate() {
                match op {
                    0 => {
                        memory[page as usize] = time as u128;
                        dirty.insert(PageNo(page));
                    }
                    1 => {
                        early.written(&dirty);
                        early.want(&dirty);
                        dirty.clear();
                    }
                    2 => early.want(&set(&[page])),
                    // An answer may come when the page has been written, and scanned, since.
                    3 if late.is_none() && early.is_waiting() => {
                        let pages = early.next(1 + page as usize % 3);
                        late = Some(pages.iter().map(|page| Digest(memory[page.0 as usize])).collect());
                    }
                    _ => late.take().into_iter().for_each(|digests| early.hashed(digests)),
                }
            }
            early.written(&dirty);
            late.into_iter().for_each(|digests| early.hashed(digests));
            let all: Vec<PageNo> = (0..PAGES).map(PageNo).collect();
            let partial = early.known(&KEY, &all);
            let fresh: Vec<_> = partial.missing().iter().map(|p| Digest(memory[p.0 as usize])).collect();
            prop_assert_eq!(partial.complete(&fresh), memory.map(Digest));
        }
    }
}
