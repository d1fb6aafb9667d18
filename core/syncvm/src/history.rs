//! Subpage hashes travel only if they changed since the secondary last sent them (docs/decisions/0032).
//!
//! A page that differs at one syncvm mostly differs at the next one as well, and most of its subpages are
//! unchanged. So both ends remember the last sent hashes of each page. A page's hashes are then sent as a
//! mask of the subpages whose hashes changed, and those hashes:
//!
//! ```text
//!  leader                                        secondary
//!  Subpages(pages, mark of what I heard) ──────▶ the same as mine? else forget all
//!                              ◀──────────────── SubpageHashes(anew or not, masks and hashes)
//! ```
//!
//! A *mark* is a hash of everything that was sent since the history was empty. So equal marks mean equal
//! histories, whatever syncvms failed and whichever of the two led meanwhile. The history holds only
//! hashes that were sent, never hashes of a page's present content. So the leader hears the same hashes
//! as if all of them had travelled.
//!
//! Hashes of another key say nothing about those of this one. So a history is of one key, and both ends begin a
//! new one when the leader draws another ([`HashHistory::under`]). A mark needs no key: it is made of hashes that the
//! guest cannot know, and of the mark before.

use plover_types::{HashKey, PageNo, SUBPAGES_PER_PAGE};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// Pages that are remembered, 256 bytes each. When there are more, only those of the last message stay.
const PAGES_KEPT: usize = 4096;

const MASK_BYTES: usize = SUBPAGES_PER_PAGE / 8;
const HASH_BYTES: usize = size_of::<u64>();

type Hashes = [u64; SUBPAGES_PER_PAGE];

/// The subpage hashes that were sent last of each page, kept by the sender and by the receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashHistory {
    /// The key of its hashes.
    key: Option<HashKey>,
    pages: BTreeMap<PageNo, Hashes>,
    mark: u64,
}

/// The result of [`HashHistory::say`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashReport {
    /// The receiver must forget its history: this report stands alone.
    pub anew: bool,
    /// For each page a mask (little-endian; bit n is subpage n), and 8 bytes for each subpage in it.
    pub bytes: Vec<u8>,
}

impl HashHistory {
    /// The history of hashes under this key; an empty one, if this is of another key.
    pub fn under(&mut self, key: HashKey) -> &mut Self {
        if self.key != Some(key) {
            self.key = Some(key);
            self.forget();
        }
        self
    }

    fn forget(&mut self) {
        self.pages.clear();
        self.mark = 0;
    }

    /// A hash of the whole history; 0 for an empty one.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// The most bytes of a report about this many pages.
    pub fn bytes_max(pages: usize) -> usize {
        pages * (MASK_BYTES + SUBPAGES_PER_PAGE * HASH_BYTES)
    }

    /// Makes a report of the hashes of all subpages of `pages`, page after page, for a receiver whose mark
    /// is `heard`. `hashes` has [`SUBPAGES_PER_PAGE`] for each page.
    pub fn say(&mut self, heard: u64, pages: &[PageNo], hashes: &[u64]) -> HashReport {
        let anew = heard != self.mark;
        if anew {
            self.forget();
        }
        let mut bytes = Vec::new();
        for (page, hashes) in pages.iter().zip(hashes.chunks_exact(SUBPAGES_PER_PAGE)) {
            let before = self.pages.get(page);
            let differs = |subpage: usize| before.is_none_or(|it| it[subpage] != hashes[subpage]);
            let new = |subpage: &usize| differs(*subpage);
            let mask = (0..SUBPAGES_PER_PAGE).filter(new).fold(0, set);
            bytes.extend(&mask.to_le_bytes()[..MASK_BYTES]);
            let new = (0..SUBPAGES_PER_PAGE).filter(new);
            bytes.extend(new.flat_map(|subpage| hashes[subpage].to_le_bytes()));
        }
        self.remember(pages, hashes, &bytes);
        HashReport { anew, bytes }
    }

    /// The hashes of all subpages of `pages`, from the other end's report. `None` if the report is not
    /// about these pages, which a correct peer never sends.
    pub fn hear(&mut self, anew: bool, pages: &[PageNo], bytes: &[u8]) -> Option<Vec<u64>> {
        if anew {
            self.forget();
        }
        let hashes = self.complete(pages, bytes)?;
        self.remember(pages, &hashes, bytes);
        Some(hashes)
    }

    fn complete(&self, pages: &[PageNo], mut bytes: &[u8]) -> Option<Vec<u64>> {
        let mut all = Vec::with_capacity(pages.len() * SUBPAGES_PER_PAGE);
        for page in pages {
            let mut mask = [0; 8];
            mask[..MASK_BYTES].copy_from_slice(take(&mut bytes, MASK_BYTES)?);
            let mask = u64::from_le_bytes(mask);
            let before = self.pages.get(page);
            for subpage in 0..SUBPAGES_PER_PAGE {
                all.push(if (mask >> subpage) & 1 == 1 {
                    u64::from_le_bytes(take(&mut bytes, HASH_BYTES)?.try_into().ok()?)
                } else {
                    before?[subpage]
                });
            }
        }
        bytes.is_empty().then_some(all)
    }

    fn remember(&mut self, pages: &[PageNo], hashes: &[u64], bytes: &[u8]) {
        let mut mark = Xxh3::with_seed(self.mark);
        for page in pages {
            mark.update(&page.0.to_le_bytes());
        }
        mark.update(bytes);
        self.mark = mark.digest();
        let hashes = hashes.chunks_exact(SUBPAGES_PER_PAGE);
        let of_pages = pages.iter().zip(hashes.filter_map(|it| it.try_into().ok()));
        self.pages
            .extend(of_pages.clone().map(|(at, it)| (*at, it)));
        if self.pages.len() > PAGES_KEPT {
            self.pages = of_pages.map(|(at, it)| (*at, it)).collect();
        }
    }
}

/// Takes the first `count` bytes off `bytes`.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(first)
}

fn set(mask: u64, bit: usize) -> u64 {
    mask | (1 << bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages(numbers: std::ops::Range<u32>) -> Vec<PageNo> {
        numbers.map(PageNo).collect()
    }

    /// Hashes of subpages; all differ from those of another `salt`.
    fn hashes(pages: &[PageNo], salt: u64) -> Vec<u64> {
        let of = |page: &PageNo| (u64::from(page.0) << 32) | (salt << 8);
        let subpages = 0..SUBPAGES_PER_PAGE as u64;
        pages
            .iter()
            .flat_map(|page| subpages.clone().map(move |subpage| of(page) | subpage))
            .collect()
    }

    /// Sends a report from one end to the other; returns its bytes.
    fn exchange(ends: &mut [HashHistory; 2], pages: &[PageNo], hashes: &[u64]) -> usize {
        let [says, hears] = ends;
        let said = says.say(hears.mark(), pages, hashes);
        let heard = hears.hear(said.anew, pages, &said.bytes);
        assert_eq!(heard.as_deref(), Some(hashes));
        assert_eq!(says, hears);
        said.bytes.len()
    }

    #[test]
    fn only_new_hashes_are_sent() {
        let mut ends = <[HashHistory; 2]>::default();
        let pages = pages(7..17);
        let mut list = hashes(&pages, 1);
        assert_eq!(
            exchange(&mut ends, &pages, &list),
            HashHistory::bytes_max(10)
        );
        assert_eq!(exchange(&mut ends, &pages, &list), 10 * MASK_BYTES);
        list[SUBPAGES_PER_PAGE] = 0;
        list[10 * SUBPAGES_PER_PAGE - 1] = 0;
        assert_eq!(
            exchange(&mut ends, &pages, &list),
            10 * MASK_BYTES + 2 * HASH_BYTES
        );
        // A page that was not in the last message is remembered as well.
        let other = super::tests::pages(90..91);
        exchange(&mut ends, &other, &hashes(&other, 1));
        assert_eq!(exchange(&mut ends, &pages, &list), 10 * MASK_BYTES);
    }

    /// Cases: a syncvm that fails after the secondary has sent its hashes, a new leader, a new secondary.
    #[test]
    fn ends_that_remember_other_things_begin_anew() {
        let mut ends = <[HashHistory; 2]>::default();
        let pages = pages(0..5);
        exchange(&mut ends, &pages, &hashes(&pages, 1));
        let heard = ends[1].mark();
        ends[0].say(heard, &pages, &hashes(&pages, 2));
        let all = HashHistory::bytes_max(5);
        assert_eq!(exchange(&mut ends, &pages, &hashes(&pages, 1)), all);
        assert_eq!(
            exchange(&mut ends, &pages, &hashes(&pages, 1)),
            5 * MASK_BYTES
        );
        for forgets in 0..2 {
            ends[forgets] = HashHistory::default();
            assert_eq!(exchange(&mut ends, &pages, &hashes(&pages, 1)), all);
        }
    }

    #[test]
    fn a_history_is_of_one_key() {
        let mut ends = <[HashHistory; 2]>::default();
        let pages = pages(0..5);
        let keys = [1, 2].map(|key| HashKey::Universal([key; 32]));
        let mut under = |key| {
            for end in &mut ends {
                end.under(key);
            }
            exchange(&mut ends, &pages, &hashes(&pages, 1))
        };
        assert_eq!(under(keys[0]), HashHistory::bytes_max(5));
        assert_eq!(under(keys[0]), 5 * MASK_BYTES);
        assert_eq!(under(keys[1]), HashHistory::bytes_max(5));
        assert_eq!(under(keys[0]), HashHistory::bytes_max(5));
    }

    /// The two ends exchange their roles and keep their histories.
    #[test]
    fn a_former_leader_may_become_secondary() {
        let mut ends = <[HashHistory; 2]>::default();
        let pages = pages(0..5);
        exchange(&mut ends, &pages, &hashes(&pages, 1));
        ends.reverse();
        assert_eq!(
            exchange(&mut ends, &pages, &hashes(&pages, 1)),
            5 * MASK_BYTES
        );
    }

    #[test]
    fn the_history_keeps_a_bounded_number_of_pages() {
        let mut ends = <[HashHistory; 2]>::default();
        let many = pages(0..PAGES_KEPT as u32);
        exchange(&mut ends, &many, &hashes(&many, 1));
        let last = pages(9_000..9_010);
        exchange(&mut ends, &last, &hashes(&last, 1));
        assert_eq!(ends[0].pages.len(), 10);
        assert_eq!(
            exchange(&mut ends, &last, &hashes(&last, 1)),
            10 * MASK_BYTES
        );
    }

    #[test]
    fn hashes_of_other_pages_are_refused() {
        let pages = pages(0..2);
        let said = HashHistory::default()
            .say(0, &pages, &hashes(&pages, 1))
            .bytes;
        let hear = |bytes: &[u8]| HashHistory::default().hear(true, &pages, bytes);
        assert!(hear(&said).is_some());
        assert_eq!(hear(&said[..said.len() - 1]), None);
        assert_eq!(hear(&[&said[..], &[0]].concat()), None);
        assert_eq!(hear(&[]), None);
        let nothing_new = [0; 2 * MASK_BYTES];
        assert_eq!(hear(&nothing_new), None, "nothing was said before");
    }

    proptest! {
        #[test]
        fn the_receiver_rebuilds_the_hashes_that_were_sent(
            lists in prop::collection::vec((0..40_u32, 1..20_u32, 0..3_u64, any::<bool>()), 1..30)
        ) {
            let mut ends = <[HashHistory; 2]>::default();
            for (from, count, salt, is_lost) in lists {
                let pages = pages(from..from + count);
                let list = hashes(&pages, salt);
                if is_lost {
                    let heard = ends[1].mark();
                    ends[0].say(heard, &pages, &list);
                } else {
                    exchange(&mut ends, &pages, &list);
                }
            }
        }
    }
}
