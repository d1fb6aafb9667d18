//! Pages that may differ between the two sides.
//!
//! Scanning clears the dirty bits, and with them the only other record that a page was written. From then
//! on the [`Ledger`] owes the page. A page leaves it only when both sides are known to hold the same
//! bytes. So a sync that fails after the scan loses nothing: the next union contains its pages again.

use plover_types::{PageNo, PageSet};

/// The pages this side has written since both sides were last known to be equal.
#[derive(Clone, Debug)]
pub struct Ledger {
    owed: PageSet,
}

impl Ledger {
    /// A ledger for a guest of `pages` pages that equals its peer's.
    pub fn settled(pages: u32) -> Self {
        Self {
            owed: PageSet::new(pages),
        }
    }

    /// A ledger for a guest that may differ from its peer's in every page.
    pub fn all(pages: u32) -> Self {
        Self {
            owed: PageSet::all(pages),
        }
    }

    /// Adds the pages that a scan found (and cleared).
    pub fn owe(&mut self, scanned: &PageSet) {
        self.owed.union_with(scanned);
    }

    /// Adds one page.
    pub fn owe_page(&mut self, page: PageNo) {
        self.owed.insert(page);
    }

    /// The owed pages.
    pub fn owed(&self) -> &PageSet {
        &self.owed
    }

    /// One page has been copied to a peer that is still catching up. The next scan finds a later write.
    pub fn copied(&mut self, page: PageNo) {
        self.owed.remove(page);
    }

    /// Both sides are equal now.
    pub fn settle(&mut self) {
        self.owed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fear: a sync fails after its scan cleared the dirty bits, and the pages are
    /// forgotten.
    #[test]
    fn a_failed_sync_does_not_lose_dirty_pages() {
        let mut ledger = Ledger::settled(100);
        let mut first = PageSet::new(100);
        first.insert(PageNo(3));
        ledger.owe(&first);
        // The sync fails here: `settle` is not called.
        let mut second = PageSet::new(100);
        second.insert(PageNo(7));
        ledger.owe(&second);
        assert_eq!(
            ledger.owed().iter().collect::<Vec<_>>(),
            [PageNo(3), PageNo(7)]
        );
        ledger.settle();
        assert!(ledger.owed().is_empty());
    }
}
