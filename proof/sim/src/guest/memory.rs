//! The guest's memory as its hypervisor sees it: dirty bits, and pages of 4096 bytes to hash, read and
//! write.

use super::FakeGuest;
use crate::rng::mix;
use plover_syncvm::chunk::{self, ChunkError, ChunkWriter, PageContent};
use plover_syncvm::subpages::{Divergent, SubpageMask};
use plover_types::{Digest, HashKey, PAGE_BYTES, PageNo, PageSet, SUBPAGE_BYTES};
use std::collections::BTreeMap;

/// Where the second half of a page's word lies.
const UPPER_HALF: usize = PAGE_BYTES / 2;

/// The first eight bytes.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("it is longer"))
}

/// A number of 16 bytes of the key, and of the function: the two functions never agree.
fn seed(key: &HashKey, at: usize) -> u64 {
    let bytes = &key.bytes()[at..];
    let seed = mix(word(bytes), word(&bytes[8..]));
    match key {
        HashKey::Xxh3(_) => seed,
        HashKey::Universal(_) => !seed,
    }
}

/// Queues that the devices have at most: an older one is taken down for a new one.
const QUEUES_MAX: usize = 4;

impl FakeGuest {
    pub(super) fn write(&mut self, page: u32, value: u64) {
        self.memory[page as usize] = value;
        self.dirty.insert(PageNo(page));
    }

    /// Writes a page with random content, so that it differs between the two sides.
    pub(super) fn scribble(&mut self) {
        let page = self.any_page();
        let value = self.rng.word();
        self.write(page, value);
    }

    pub(super) fn any_page(&mut self) -> u32 {
        self.rng.range(3, u64::from(self.habits.ram_pages()) - 1) as u32
    }

    /// A transaction on its disks: all of their blocks, or none.
    pub(super) fn write_disks(&mut self, history: u64) {
        for page in self.habits.ram_pages()..self.habits.pages {
            self.write(page, history);
        }
        self.devices.flushed = history;
    }

    /// The blocks of its disks, by page.
    pub fn disk_blocks(&self) -> Vec<(u32, u64)> {
        let pages = self.habits.ram_pages()..self.habits.pages;
        pages
            .map(|page| (page, self.memory[page as usize]))
            .collect()
    }

    /// The driver of a device sets up a queue at an empty page.
    pub(super) fn set_up_queue(&mut self, word: u64) {
        let page = 3 + (word % (u64::from(self.habits.ram_pages()) - 3)) as u32;
        self.write(page, 0);
        self.devices.queues.push(page);
        if self.devices.queues.len() > QUEUES_MAX {
            self.devices.queues.remove(0);
        }
    }

    /// Collects and clears the dirty bits.
    pub fn scan(&mut self) -> PageSet {
        std::mem::replace(&mut self.dirty, PageSet::new(self.habits.pages))
    }

    /// The dirty pages that a scan would find.
    pub fn dirty(&self) -> &PageSet {
        &self.dirty
    }

    /// All of its memory.
    pub fn memory(&self) -> &[u64] {
        &self.memory
    }

    /// Hashes pages under a key.
    pub fn hash(&self, key: &HashKey, pages: &[PageNo]) -> Vec<Digest> {
        let (low, high) = (seed(key, 0), seed(key, 16));
        let digest = |page: &PageNo| {
            let value = self.memory[page.0 as usize];
            Digest(u128::from(mix(low, value)) | (u128::from(mix(high, value)) << 64))
        };
        pages.iter().map(digest).collect()
    }

    /// A keyed hash of each subpage of each page.
    pub fn hash_subpages(&self, key: &HashKey, pages: &[PageNo]) -> Vec<u64> {
        let key = seed(key, 0);
        let mut hashes = Vec::new();
        for page in pages {
            let bytes = self.page(*page);
            let subpages = bytes.chunks_exact(SUBPAGE_BYTES);
            hashes.extend(subpages.map(|subpage| mix(key, word(subpage))));
        }
        hashes
    }

    /// Reads pages into a chunk.
    pub fn read_pages(&self, pages: &[PageNo]) -> Vec<u8> {
        let whole: Vec<Divergent> = pages.iter().map(|page| (*page, SubpageMask::ALL)).collect();
        self.read_blocks(&whole)
    }

    /// Reads subpages into a chunk.
    pub fn read_blocks(&self, pages: &[Divergent]) -> Vec<u8> {
        let mut writer = ChunkWriter::new();
        for (page, mask) in pages {
            writer.push_subpages(*page, *mask, &self.page(*page));
        }
        writer.finish()
    }

    /// A page's bytes: its value in two halves, each at the beginning of a subpage.
    fn page(&self, page: PageNo) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        let value = self.memory[page.0 as usize].to_le_bytes();
        bytes[..4].copy_from_slice(&value[..4]);
        bytes[UPPER_HALF..UPPER_HALF + 4].copy_from_slice(&value[4..]);
        bytes
    }

    /// Writes a chunk's pages from outside. As with a real guest, the dirty bits do not see it.
    pub fn write_chunk(&mut self, bytes: &[u8]) -> Result<(), ChunkError> {
        for page in chunk::read(bytes, self.habits.pages) {
            let (page, content) = page?;
            self.memory[page.0 as usize] = self.changed_by(page, &content);
        }
        Ok(())
    }

    /// A page's value after `content` is written into it.
    fn changed_by(&self, page: PageNo, content: &PageContent<'_>) -> u64 {
        let mut bytes = self.page(page);
        content.apply(&mut bytes);
        let mut value = [0; 8];
        value[..4].copy_from_slice(&bytes[..4]);
        value[4..].copy_from_slice(&bytes[UPPER_HALF..UPPER_HALF + 4]);
        u64::from_le_bytes(value)
    }

    /// The blocks of its disks in page chunks that were checked before, as they are once these are
    /// written.
    pub fn staged_blocks(&self, chunks: &[Vec<u8>]) -> BTreeMap<u32, u64> {
        let pages = chunks
            .iter()
            .flat_map(|chunk| chunk::read(chunk, self.habits.pages));
        let first = self.habits.ram_pages();
        let blocks = pages.flatten().filter(|(page, _)| page.0 >= first);
        blocks
            .map(|(page, content)| (page.0, self.changed_by(page, &content)))
            .collect()
    }
}
