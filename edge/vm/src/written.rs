//! QEMU's own log of written pages, as the agent hands it over (`edge/agent/src/written.c`).
//!
//! ```text
//!   vCPU (KVM, TCG) or device writes         QEMU's main loop              plover
//!   ────────────────────────────────         ───────────────────           ─────────────────
//!   its bit in QEMU's log is set     ──►     the agent takes the log  ──►  takes the bits
//!   (KVM: its page was read-only)            and sets these bits           (sets them to 0)
//! ```
//!
//! Writes through any other mapping than QEMU's are not seen. That is right for `plover`'s own: it only writes what
//! the other side already has.

use crate::VmError;
use crate::ram::Ram;
use plover_types::{PAGE_BYTES, PageSet};
use rustix::fd::BorrowedFd;

/// Pages of one word.
const PAGES: usize = 64;

/// A bit for each page of the machine's RAM: set by the agent, cleared here.
pub(crate) struct WrittenLog {
    bits: Ram,
    words: usize,
}

impl WrittenLog {
    /// Of the first `pages` of the guest, a multiple of 64.
    pub(crate) fn new(pages: usize) -> Result<Self, VmError> {
        assert_eq!(pages % PAGES, 0, "RAM of {pages} pages");
        let bytes = (pages / 8).next_multiple_of(PAGE_BYTES);
        Ok(Self {
            bits: Ram::new(bytes)?,
            words: pages / PAGES,
        })
    }

    /// The file that QEMU inherits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bits.fd()
    }

    /// Adds the pages that were handed over since the last call to `written`.
    pub(crate) fn take(&self, written: &mut PageSet) {
        for word in 0..self.words {
            let mut bits = self.bits.take(word * 8);
            while bits != 0 {
                let first = bits.trailing_zeros();
                let pages = (bits >> first).trailing_ones();
                let at = (word * PAGES) as u32 + first;
                written.insert_run(at, at + pages);
                bits &= !(u64::MAX >> (u64::BITS - pages) << first);
            }
        }
    }

    /// The number of pages that were handed over since then.
    pub(crate) fn count(&self) -> u64 {
        let ones = |word| u64::from(self.bits.load(word * 8).count_ones());
        (0..self.words).map(ones).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::PageNo;

    /// As the agent does.
    fn hand_over(log: &WrittenLog, pages: &[u32]) {
        for page in pages {
            let at = (page / 64) as usize * 8;
            log.bits.store(at, log.bits.load(at) | 1 << (page % 64));
        }
    }

    #[test]
    fn each_page_is_taken_once() {
        const PAGES: usize = 1 << 16;
        let log = WrittenLog::new(PAGES).unwrap();
        let whole_words: Vec<u32> = (640..769).collect();
        for pages in [&[0, 63, 64, 65, 127, 4095, 65_535][..], &whole_words, &[]] {
            hand_over(&log, pages);
            assert_eq!(log.count(), pages.len() as u64);
            let mut written = PageSet::new(PAGES as u32 + 10);
            log.take(&mut written);
            assert!(written.iter().eq(pages.iter().map(|page| PageNo(*page))));
            assert_eq!(log.count(), 0);
        }
    }
}
