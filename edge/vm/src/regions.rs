//! All that a guest's two copies are compared by, as pages with one numbering: guest RAM, then the
//! blocks of its writable disks.

use crate::ram::Ram;
use plover_disk::{Attachment, BlockNo};
use plover_types::{PageNo, PageSet};

/// Guest RAM and disks, borrowed to be read.
#[derive(Clone, Copy)]
pub(crate) struct Regions<'a> {
    pub(crate) ram: &'a Ram,
    pub(crate) disks: Option<&'a Attachment>,
}

/// The block that `page` is, if it lies behind the `ram_pages` of guest RAM.
pub(crate) fn block_of(page: PageNo, ram_pages: u32) -> Option<BlockNo> {
    page.0.checked_sub(ram_pages).map(BlockNo)
}

impl<'a> Regions<'a> {
    /// Pages of RAM and disks together.
    pub(crate) fn pages(self) -> u32 {
        self.ram.pages() + self.disks.map_or(0, Attachment::blocks)
    }

    fn disk_of(self, page: PageNo) -> Option<(&'a Attachment, BlockNo)> {
        let block = block_of(page, self.ram.pages())?;
        // Without disks there is no such page: the RAM says so.
        self.disks.map(|disks| (disks, block))
    }

    /// Copies a page out.
    pub(crate) fn read(self, page: PageNo, to: &mut [u8]) {
        match self.disk_of(page) {
            Some((disks, block)) => disks.direct().read(block, to),
            None => self.ram.read(page, to),
        }
    }

    /// The first page at or after `page` that something is allocated for; where there is none, the
    /// first behind all of the same kind. What lies before it is zero, and reading it would allocate
    /// RAM, or the system's memory for files.
    pub(crate) fn first_data(self, page: PageNo) -> PageNo {
        let ram_pages = self.ram.pages();
        let Some(block) = block_of(page, ram_pages) else {
            // The disks are not asked: they may be slow.
            return PageNo(self.ram.first_data(page).min(ram_pages));
        };
        let start = self
            .disks
            .map_or(0, |disks| disks.direct().first_data(block));
        PageNo((ram_pages + start).max(page.0))
    }

    /// All pages up to `last` that something is allocated for, and maybe more. The disks are asked only
    /// for pages of theirs: they may be slow.
    pub(crate) fn touched(self, last: PageNo) -> PageSet {
        let mut touched = PageSet::new(self.pages());
        let mut at = PageNo(0);
        while let Some((start, end)) = self.ram.next_data(at) {
            touched.insert_run(start, end);
            at = PageNo(end);
        }
        let base = self.ram.pages();
        if last.0 < base {
            return touched;
        }
        let mut at = BlockNo(0);
        while let Some((start, end)) = self.disks.and_then(|disks| disks.direct().next_data(at)) {
            touched.insert_run(base + start, base + end);
            at = BlockNo(end);
        }
        touched
    }
}
