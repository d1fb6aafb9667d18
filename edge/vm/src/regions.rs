//! Guest RAM and the blocks of its writable disks, as pages of one [`PageLayout`].

use crate::ram::Ram;
use plover_disk::{Attachment, Blocks};
use plover_types::{BlockNo, PageLayout, PageNo, PageSet};

/// Guest RAM and disks, borrowed to be read.
#[derive(Clone, Copy)]
pub(crate) struct Regions<'a> {
    pub(crate) ram: &'a Ram,
    pub(crate) disks: Option<&'a Attachment>,
}

impl<'a> Regions<'a> {
    /// The guest's page numbers: RAM, then blocks of disks.
    pub(crate) fn layout(self) -> PageLayout {
        PageLayout::new(self.ram.pages(), self.disks.map_or(0, Attachment::blocks))
    }

    /// The disks and the block, if `page` is one. Without disks `page` is left to the RAM, which asserts
    /// that it has such a page.
    fn on_disk(self, page: PageNo) -> Option<(&'a Blocks, BlockNo)> {
        let block = self.layout().block(page)?;
        self.disks.map(|disks| (disks.direct(), block))
    }

    /// Copies a page out.
    pub(crate) fn read(self, page: PageNo, to: &mut [u8]) {
        match self.on_disk(page) {
            Some((blocks, block)) => blocks.read(block, to),
            None => self.ram.read(page, to),
        }
    }

    /// The first page at or after `page` that is allocated; if there is none, the first page after RAM
    /// or disks, whichever `page` belongs to. Pages before it are zero, and reading them would allocate
    /// RAM or page cache.
    pub(crate) fn first_data(self, page: PageNo) -> PageNo {
        match self.on_disk(page) {
            Some((blocks, block)) => {
                let found = BlockNo(blocks.first_data(block));
                self.layout().page_of(found).max(page)
            }
            // The disks are not asked for pages of RAM: they may be slow.
            None => PageNo(self.ram.first_data(page)),
        }
    }

    /// All pages up to `last` that are allocated, and maybe more. The disks are asked only for their
    /// own pages: they may be slow.
    pub(crate) fn touched(self, last: PageNo) -> PageSet {
        let layout = self.layout();
        let mut touched = PageSet::new(layout.pages());
        let mut at = PageNo(0);
        while let Some((start, end)) = self.ram.next_data(at) {
            touched.insert_run(start, end);
            at = PageNo(end);
        }
        let Some((blocks, _)) = self.on_disk(last) else {
            return touched;
        };
        let mut at = BlockNo(0);
        while let Some((start, end)) = blocks.next_data(at) {
            let page = |block| layout.page_of(BlockNo(block)).0;
            touched.insert_run(page(start), page(end));
            at = BlockNo(end);
        }
        touched
    }
}
