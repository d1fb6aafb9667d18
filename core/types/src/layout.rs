//! The numbering of a guest's pages.

use crate::PageNo;
use std::ops::Range;

/// Bytes in a guest page. Dirty tracking, hashing and transfer all work in this unit.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a disk block. It equals a page, so that a sync treats both alike.
pub const DISK_BLOCK_BYTES: usize = PAGE_BYTES;

/// Bytes of a subpage: the unit of a divergent page that is hashed, and sent if it differs. Chosen by
/// measurement (docs/decisions/0014): smaller ones send fewer bytes of memory and more of hashes.
pub const SUBPAGE_BYTES: usize = 128;

/// Subpages of a page, at most 64.
pub const SUBPAGES_PER_PAGE: usize = PAGE_BYTES / SUBPAGE_BYTES;

/// A block of a guest's writable disks, counted through all of them in the order of the
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNo(pub u32);

/// The page numbers of a guest: those of its RAM, and after them those of its writable disks' blocks.
///
/// ```text
///   0            ram_pages               pages
///   ├─ guest RAM ────┼─ disk blocks ────────┤
/// ```
///
/// ```
/// use plover_types::{BlockNo, PageLayout, PageNo};
///
/// let layout = PageLayout::new(1000, 24);
/// assert!(layout.is_ram(PageNo(999)) && layout.is_disk(PageNo(1000)));
/// assert_eq!(layout.block(PageNo(1001)), Some(BlockNo(1)));
/// assert_eq!(layout.page_of(BlockNo(1)), PageNo(1001));
/// assert_eq!(layout.pages(), 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    ram_pages: u32,
    disk_blocks: u32,
}

impl PageLayout {
    /// A guest with so many pages of RAM and blocks of disks. Asserts that all of them can be numbered.
    pub fn new(ram_pages: u32, disk_blocks: u32) -> Self {
        assert!(
            ram_pages.checked_add(disk_blocks).is_some(),
            "{ram_pages} pages of RAM and {disk_blocks} blocks of disks are too many"
        );
        Self {
            ram_pages,
            disk_blocks,
        }
    }

    /// Pages of RAM and blocks of disks together.
    pub fn pages(self) -> u32 {
        self.ram_pages + self.disk_blocks
    }

    /// Pages of RAM.
    pub fn ram_pages(self) -> u32 {
        self.ram_pages
    }

    /// Blocks of disks.
    pub fn disk_blocks(self) -> u32 {
        self.disk_blocks
    }

    /// The numbers of the pages of RAM.
    pub fn ram(self) -> Range<u32> {
        0..self.ram_pages
    }

    /// The numbers of the pages that are blocks of disks.
    pub fn disk(self) -> Range<u32> {
        self.ram_pages..self.pages()
    }

    /// Whether this page is RAM.
    pub fn is_ram(self, page: PageNo) -> bool {
        page.0 < self.ram_pages
    }

    /// Whether this page is a block of a disk.
    pub fn is_disk(self, page: PageNo) -> bool {
        self.disk().contains(&page.0)
    }

    /// The block that this page is; `None` for RAM.
    pub fn block(self, page: PageNo) -> Option<BlockNo> {
        page.0.checked_sub(self.ram_pages).map(BlockNo)
    }

    /// The page that this block is.
    pub fn page_of(self, block: BlockNo) -> PageNo {
        PageNo(self.ram_pages + block.0)
    }
}
